"""Turning privacy off recovers plain federated averaging, written a second time without the package."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from by_hand import lanes_of, slopes_of, step_along
from family import FAMILY, send
from free import Free
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg, User
from sottovoce.models.transformer import Transformer
from sottovoce.privacy.clipping import FlatClip, NoClip
from sottovoce.privacy.estimators import TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round, sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm

LANES, UNROLL, RATE, CAP = 3, 4, 2.0, 20.0
CAREFUL = 0.5  # the rate of models that are a norm of a norm: at a higher one rounding errors grow from step to step
MODELS = ["lstm", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILY if name != "lstm")]


def plain_user_update(model, tokens, key, rate):
    """SGD over one user, by hand. `key` is the user's, for models with dropout."""
    lanes = lanes_of(tokens, LANES)
    states = [model.initial_state() for _ in lanes]
    start = model = jax.tree.map(np.asarray, model)
    first_pass = jax.random.fold_in(key, 0)
    for number, step in enumerate(range(0, len(lanes[0][0]), UNROLL)):
        keys = jax.random.split(jax.random.fold_in(first_pass, number), LANES)
        pieces = [(read[step : step + UNROLL], wanted[step : step + UNROLL]) for read, wanted in lanes]
        slopes, count = slopes_of(model, pieces, states, keys, UNROLL)
        if count:
            model = jax.tree.map(np.subtract, model, step_along(slopes, rate / count))
    return jax.tree.map(np.subtract, model, start)


@pytest.mark.parametrize("any_model", MODELS, indirect=True)
def test_privacy_off_is_plain_federated_averaging(store, any_model):
    rate = CAREFUL if isinstance(any_model, Transformer) else RATE
    algorithm = Algorithm(
        Mechanism(Poisson(1.0), NoClip(), TrueAverage(), noise_multiplier=0.0),
        FedAvg(NoClip(), True, batch=LANES, unroll=UNROLL, learning_rate=rate),
        Server(optax.sgd(1.0)),
        weight_cap=CAP,
    )

    keys = Secrets.seeded(0).keys(1)
    state, _ = play_round(algorithm, algorithm.server.start(any_model), store, Free(keys), sum_one_by_one)
    users = [row for row in range(store.users) if len(store[row])]
    weights = [min(len(store[row]) / CAP, 1.0) for row in users]
    own = [jax.random.fold_in(local_key(keys.local), row) for row in users]
    updates = [plain_user_update(any_model, store[row], key, rate) for row, key in zip(users, own, strict=True)]
    for index, (before, after) in enumerate(zip(*map(jax.tree.leaves, (any_model, state.params)), strict=True)):
        mean = sum(w * jax.tree.leaves(u)[index] for w, u in zip(weights, updates, strict=True)) / sum(weights)
        np.testing.assert_allclose(after - before, mean, rtol=1e-5, atol=3e-6)
        assert float(jnp.abs(mean).max()) > 1e-4


@pytest.mark.slow
def test_a_clip_that_nothing_reaches_and_no_clip_are_the_same_to_the_bit(store, model):
    ends = []
    for clip in (NoClip(), FlatClip(1e6)):
        update = FedAvg(clip, True, batch=LANES, unroll=UNROLL, learning_rate=RATE)
        block = store.gather([0])
        user, steps = User(jnp.asarray(block.tokens[0]), jnp.asarray(block.lengths[0])), update.steps(block.lengths[0])
        result = send(update, model, user, jax.random.key(0), jnp.asarray(clip.clip_norms), steps)
        ends.append(result.update)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)
