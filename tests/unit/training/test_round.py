"""One round through `play_round`: the norms that users clip to, and what the next round's norms follow."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from sottovoce.data.store import Store
from sottovoce.local.update import FedAvg
from sottovoce.privacy.clipping import FlatClip, PerLayerClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm
from sottovoce_evidence.adaptive import QuantileTracking
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.schedule import Schedule

TRACKING = QuantileTracking(0.9, 0.5, bit_noise=3.0, cohort=20.0)
MOVING = {
    "schedule": {"clip_schedule": Schedule(((1, 1.0), (2, 0.1), (3, 3.0)))},
    "adaptive": {"tracking": TRACKING},
}


class Watched:
    def __init__(self):
        self.asked, self.noised, self.keys = [], [], Secrets.seeded(4).keys(1)

    def watching(self, add_noise):
        def watched(mechanism, query, *rest):
            self.asked.append(query)
            noised, noise = add_noise(mechanism, query, *rest)
            self.noised.append(noised)
            return noised, noise

        return watched

    def charge(self, event):
        return bytes(32)


CLIPS = [FlatClip(0.2), pytest.param(PerLayerClip.even(0.2, 11), marks=pytest.mark.slow)]


@pytest.mark.parametrize("moving", MOVING)
@pytest.mark.parametrize("clip", CLIPS, ids=["flat", "per layer"])
def test_users_clip_to_the_norm_of_the_round_and_the_next_follows_the_noised_bits(
    model, vocabulary, clip, moving, monkeypatch
):
    watched = Watched()
    monkeypatch.setattr(Mechanism, "add_noise", watched.watching(Mechanism.add_noise))
    mechanism = Mechanism(Poisson(1.0), clip, FixedDenominator(1.0), 0.8, **MOVING[moving])
    # One user, whose every step leaves the ball.
    update = FedAvg(clip, True, batch=2, unroll=4, learning_rate=300.0)
    algorithm = Algorithm(mechanism, update, Server(optax.sgd(1e-3)))
    store = Store.from_users([list(range(39, 58))], vocabulary, tokens_per_user=24)
    state = algorithm.server.start(model, mechanism.start())
    norms = []
    for number in (1, 2, 3):
        before = state.clip_norms
        norms.append(joint_norm(mechanism.clip_norms(number, before)))
        watched.keys = Secrets.seeded(4).keys(number)
        state, _ = play_round(algorithm, state, store, watched, SumInBlocks(2))
        sent = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(watched.asked[-1].update)])
        assert np.linalg.norm(sent) <= norms[-1]
        assert np.linalg.norm(sent) > 0.8 * norms[-1]
        if moving == "adaptive":
            followed = TRACKING.next_clip_norms(before, watched.noised[-1].bits)
            np.testing.assert_array_equal(state.clip_norms, followed)
            assert np.any(followed != TRACKING.next_clip_norms(before, watched.asked[-1].bits))
    assert len(set(norms)) == 3


@pytest.mark.slow
def test_the_servers_rate_follows_its_schedule_round_by_round(model, vocabulary):
    clip = FlatClip(0.2)
    mechanism = Mechanism(Poisson(1.0), clip, FixedDenominator(1.0), 0.0)
    server = Server(optax.sgd(1.0), Schedule(((1, 1.0), (2, 0.25))))
    algorithm = Algorithm(mechanism, FedAvg(clip, True, batch=2, unroll=4, learning_rate=0.5), server)
    store = Store.from_users([list(range(39, 58))], vocabulary, tokens_per_user=24)
    moved = []
    for rounds_done in (0, 1):
        state = server.start(model)._replace(round=rounds_done)
        after, _ = play_round(algorithm, state, store, Watched(), SumInBlocks(2))
        pairs = zip(jax.tree.leaves(after.params), jax.tree.leaves(model), strict=True)
        moved.append(np.concatenate([np.ravel(one - other) for one, other in pairs]))
    assert np.linalg.norm(moved[0]) > 0.1
    np.testing.assert_allclose(moved[1], 0.25 * moved[0], atol=1e-7)
