"""Neighbour replay: real rounds on two populations that differ in one user, under the same randomness.

Whoever the user is, what a round asks of its cohort moves by no more than the mechanism declares: in units of the noise
that is added to it, by 1/z when a user is added or removed, by 2/z when one is replaced. And nothing else that anyone
could see of a round differs.
"""

from __future__ import annotations

import itertools
import logging

import jax
import numpy as np
import optax
import pytest

from sottovoce.data.store import Store
from sottovoce.data.words import BOS, EOS
from sottovoce.local.keys import local_key
from sottovoce.local.objective import plain
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy import clipping
from sottovoce.privacy.clipping import PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import rounded_gaussian
from sottovoce.privacy.sampling import FixedSize, Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm, Task
from sottovoce_evidence.adaptive import QuantileTracking
from sottovoce_evidence.schedule import CONSTANT, Schedule

LENGTH, S, Z, POISON = 24, 0.5, 0.8, 59
SERVER = Server(optax.sgd(1.0))  # one for all: another would be compiled again
USERS = {
    "ordinary": [BOS, 45, 46, 47, EOS, BOS, 48, 49, EOS],
    "of maximal length": list(range(39, 58)) + [50] * 5,
    "one word over and over": [50] * LENGTH,
    "of a single token": [44],
    "of half the weight": [51, 52, 53, 54, 55],
    "without tokens": [],
    "without targets": [BOS] * 5,
    "whose loss is not finite": [BOS, POISON, POISON, EOS],
}
SILENT = ("without tokens", "without targets", "whose loss is not finite")
CROWD = [[BOS, 45 + i, 46, 47 + i, EOS, 50] for i in range(3)]


def poisoned(model, received, batch, state, key):
    """A loss that is not finite wherever the poisonous word stands: what an adversary's text may do to a model."""
    losses, state = plain(model, received, batch, state, key)
    return losses * jax.numpy.where(batch.targets == POISON, jax.numpy.inf, 1.0), state


# A rate at which every step leaves the ball of radius S.
LOCAL = {"batch": 2, "unroll": 4, "learning_rate": 30.0, "objective": poisoned}
UPDATES = {
    "fedavg, every step": lambda clip: FedAvg(clip, True, **LOCAL),
    "fedavg, at the end": lambda clip: FedAvg(clip, False, **LOCAL),
    "fedsgd": lambda clip: FedSGD(clip, **LOCAL),
}
LAYERS = {"clip_norm": S, "clip_norms": PerLayerClip.even(S, 11).clip_norms}
BOUNDED = {name.replace("_", " "): name for name, kind in clipping.CLIPS.items() if kind.bounded}
CLIPS = {
    **{shown: clipping.CLIPS.build(name, **LAYERS) for shown, name in BOUNDED.items()},
    "per layer, given": PerLayerClip(tuple(S * share for share in (0.9, *([0.1] * 10)))),
}
ESTIMATORS = {
    "fixed": FixedDenominator(2.0),
    "clipped": ClippedDenominator(2.0),
    "clipped low": ClippedDenominator(0.4),
}
TRACKING = QuantileTracking(0.5, 0.2, bit_noise=2.0, cohort=2.0)
# What moves the clip norm or the noise, and the rounds (with the clip norms tracked so far, as factors) to replay.
SCHEDULES = {
    "constant": ({}, [(1, None)]),
    "clip norm by steps": ({"clip_schedule": Schedule(((1, 1.0), (3, 0.2)))}, [(2, None), (3, None)]),
    "noise by steps": ({"noise_schedule": Schedule(((1, 2.0), (3, 0.5)))}, [(2, None), (3, None)]),
    "adaptive": ({"tracking": TRACKING}, [(1, 1.0), (6, 0.3)]),
}  # fmt: skip
QUICK = ("fedavg, every step", "flat")
CASES = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow) for case in itertools.product(UPDATES, CLIPS)
]


class Replay:
    """Rounds of one update and clip. A sum over the same users under the same clip norms is worked out once."""

    def __init__(self, model, vocabulary, update, clip, weight_cap):
        self.model, self.vocabulary, self.weight_cap = model, vocabulary, weight_cap
        self.clip, self.update, self._sums = CLIPS[clip], UPDATES[update](CLIPS[clip]), {}

    def mechanisms(self, sampler):
        for estimator, (name, (options, _)) in itertools.product(ESTIMATORS, SCHEDULES.items()):
            yield name, Mechanism(sampler, self.clip, ESTIMATORS[estimator], Z, **options)

    def query(self, mechanism, users, cohort, clip_norms):
        names = (tuple(map(tuple, users)), tuple(cohort), tuple(clip_norms))
        if names not in self._sums:
            store = Store.from_users(users, self.vocabulary, tokens_per_user=LENGTH)
            algorithm = Algorithm(mechanism, self.update, SERVER, self.weight_cap)
            key = local_key(Secrets.seeded(4).keys(1).local)
            self._sums[names] = SumInBlocks(4)(algorithm, Task(self.model, cohort, clip_norms, key), store)
        summed = self._sums[names]
        return mechanism.estimate(summed.total, summed.weight, summed.bits)

    def move(self, mechanism, number, tracked, users, other, cohort, other_cohort):
        """How far the query moves between two populations, in units of the noise; and the estimate, in its own."""
        if tracked is not None:
            tracked = np.float32(tracked) * mechanism.start()
        clip_norms = mechanism.clip_norms(number, tracked)
        one = self.query(mechanism, users, cohort, clip_norms)
        two = self.query(mechanism, other, other_cohort, clip_norms)
        update_std, bit_std = mechanism.noise_std(number, clip_norms)
        pairs = list(zip(jax.tree.leaves(one.update), jax.tree.leaves(two.update), strict=True))
        parts = [(np.float64(a) - np.float64(b)).ravel() for a, b in pairs]
        moved = np.linalg.norm(np.concatenate(parts))
        assert np.isfinite(moved)
        bits = [] if one.bits is None else np.ravel(np.float64(one.bits) - np.float64(two.bits)) / bit_std
        z = mechanism.event(number).noise_multiplier
        return np.linalg.norm([moved / update_std, *bits]) * z, moved / mechanism.sensitivity(clip_norms)


@pytest.mark.parametrize("weight_cap", [pytest.param(1.0, marks=pytest.mark.slow), 10.0])
@pytest.mark.parametrize(("update", "clip"), CASES)
def test_one_user_moves_a_round_by_at_most_the_sensitivity(model, vocabulary, update, clip, weight_cap):
    """Added or removed, with everybody drawn, which is the worst case for the newcomer."""
    replay, largest = Replay(model, vocabulary, update, clip, weight_cap), 0.0
    for (schedule, mechanism), crowd in itertools.product(replay.mechanisms(Poisson(1.0)), (0, 1, 3)):
        for (name, newcomer), (number, tracked) in itertools.product(USERS.items(), SCHEDULES[schedule][1]):
            populations = CROWD[:crowd], [*CROWD[:crowd], newcomer]
            cohorts = (mechanism.sampler.sample(users, bytes(32)) for users in populations)
            whole, update_alone = replay.move(mechanism, number, tracked, *populations, *cohorts)
            assert whole <= 1 + 1e-6, f"a user {name} moves a round too far ({schedule})"
            assert update_alone <= 1 + 1e-6
            largest = max(largest, update_alone)
            if name in SILENT:
                # They add nothing; with unequal weights they may still count in a denominator.
                assert update_alone <= 0.5
    assert largest > 0.9, "no user came near the bound, so the test shows little"


@pytest.mark.parametrize(("update", "clip"), CASES)
def test_replacing_a_user_moves_a_round_by_at_most_twice_the_sensitivity(model, vocabulary, update, clip):
    """With cohorts of fixed size, where the same rows are drawn whoever stands in them."""
    replay, sampler, largest = Replay(model, vocabulary, update, clip, 10.0), FixedSize(2, 3), 0.0
    cohort = sampler.sample(range(3), Secrets.seeded(4).keys(1).sampling)
    row = int(cohort[0])
    for schedule, mechanism in replay.mechanisms(sampler):
        for (one, other), (number, tracked) in itertools.product(
            itertools.combinations(USERS, 2), SCHEDULES[schedule][1]
        ):
            populations = [[*CROWD[:row], USERS[name], *CROWD[row:2]] for name in (one, other)]
            whole, update_alone = replay.move(mechanism, number, tracked, *populations, cohort, cohort)
            assert whole <= 2 + 1e-6, f"replacing a user {one} by one {other} moves a round too far ({schedule})"
            largest = max(largest, update_alone)
    assert largest > 1.0, "nobody moved a round further than adding a user may, so the test shows little"


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedSize(10, 40)], ids=str)
def test_a_user_who_is_not_drawn_changes_nothing(model, vocabulary, sampler):
    secret = Secrets.seeded(4).keys(1).sampling
    drawn = set(sampler.sample(range(40), secret).tolist())
    absent = max(set(range(1, 40)) - drawn)
    users = (CROWD * 14)[:40]
    others = [*users]
    others[absent] = USERS["of maximal length"]
    replay = Replay(model, vocabulary, "fedavg, every step", "flat", 10.0)
    mechanism = Mechanism(sampler, CLIPS["flat"], ESTIMATORS["clipped"], noise_multiplier=1.0)
    cohorts = [sampler.sample(range(40), secret) for _ in range(2)]
    assert replay.move(mechanism, 1, None, users, others, *cohorts) == (0.0, 0.0)
    if isinstance(sampler, Poisson):  # a user added at the end and not drawn: all others' coins stay as they are
        fewer = set(sampler.sample(range(absent), secret).tolist())
        assert fewer == {row for row in drawn if row < absent}


class Watched:
    """A noise, and a ledger, that write down what they are asked."""

    def __init__(self):
        self.seen, self.keys = [], Secrets.seeded(4).keys(1)

    def noise(self, key, size, std, stream):
        self.seen.append(("noise", size, std, key, stream))
        return rounded_gaussian(key, size, std, stream)

    def charge(self, event):
        self.seen.append(("charge", event))
        return bytes(32)


@pytest.mark.parametrize("tracking", [None, TRACKING], ids=["fixed norm", "adaptive"])
def test_nothing_else_of_a_round_depends_on_a_user(model, vocabulary, caplog, tracking, monkeypatch):
    """The same draws of the same shapes and scales, the same charge, the same lines in a log, whoever takes part."""
    caplog.set_level(logging.DEBUG, "sottovoce")
    schedule = CONSTANT if tracking else Schedule(((1, 1.0), (2, 0.5)))
    crowd = CROWD[:2]
    populations = [[], crowd, *([*crowd, newcomer] for newcomer in USERS.values())]
    seen = []
    for users in populations:
        watched = Watched()
        monkeypatch.setattr("sottovoce.privacy.mechanism.rounded_gaussian", watched.noise)
        mechanism = Mechanism(
            Poisson(1.0), CLIPS["flat"], ESTIMATORS["fixed"], Z, clip_schedule=schedule, tracking=tracking
        )
        algorithm = Algorithm(mechanism, UPDATES["fedavg, every step"](CLIPS["flat"]), SERVER, 10.0)
        state = algorithm.server.start(model, mechanism.start())
        store = Store.from_users(users, vocabulary, tokens_per_user=LENGTH)
        caplog.clear()
        state, _ = play_round(algorithm, state, store, watched, SumInBlocks(4))
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(state._replace(params=None))]
        seen.append((watched.seen, shapes, state.round, [record.getMessage() for record in caplog.records]))
    for other in seen[1:]:
        assert other == seen[0]
    kinds = [entry[0] for entry in seen[0][0]]
    noised = ["noise"] * (1 if tracking is None else 2)
    assert kinds == ["charge", *noised], "a round is paid for before anything is noised, and noised once"
