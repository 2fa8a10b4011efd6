"""Central training is plain SGD over the users' texts one after another, written here a second time."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from by_hand import lanes_of, slopes_of, step_along
from family import FAMILY
from sottovoce.data.store import Store
from sottovoce.data.words import BOS
from sottovoce.local.update import FedAvg, FedSGD, User
from sottovoce.models.transformer import Transformer
from sottovoce.privacy.clipping import NoClip
from sottovoce.privacy.estimators import TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.training.server import Server
from sottovoce.training.strategy import Work
from sottovoce.training.types import Algorithm
from sottovoce.training.variants import central
from sottovoce.training.variants.central import Central, join_texts
from sottovoce_evidence.accounting import NonPrivate
from sottovoce_evidence.schedule import Schedule

LANES, UNROLL, RATE = 3, 4, 0.7
CAREFUL = 0.2  # the rate of transformers, whose norms of norms make rounding errors grow
PASSES = Central(users_a_round=5, seed=11)
OPTIMISERS = {"sgd": optax.sgd(1.0), "momentum": optax.sgd(0.5, momentum=0.9), "adam": optax.adam(0.01)}


class Notebook:
    def __init__(self):
        self.spent = []

    def charge(self, event):
        self.spent.append(event)
        return bytes(32)


def play(algorithm, central, state, store, payment):
    return central.play(algorithm, Work(store, None), state, payment)


def make_algorithm(optimiser, rate=RATE) -> Algorithm:
    return Algorithm(
        Mechanism(Poisson(1.0), NoClip(), TrueAverage(), noise_multiplier=0.0),
        FedSGD(NoClip(), batch=LANES, unroll=UNROLL, learning_rate=rate),
        Server(optimiser),
    )


@partial(jax.jit, static_argnums=0)
def step_of(optimiser, gradient, state, model):
    change, state = optimiser.update(gradient, state, model)
    return optax.apply_updates(model, change), state


def by_hand(model, optimiser, state, tokens, key, rate=RATE):
    """One stream, lane after lane: no loop over steps that is compiled. `key` is the round's, for dropout."""
    lanes = lanes_of(tokens, LANES)
    remembered = [model.initial_state() for _ in lanes]
    for number, step in enumerate(range(0, len(lanes[0][0]), UNROLL)):
        keys = jax.random.split(jax.random.fold_in(key, number), LANES)
        pieces = [(inputs[step : step + UNROLL], targets[step : step + UNROLL]) for inputs, targets in lanes]
        slopes, count = slopes_of(model, pieces, remembered, keys, UNROLL)
        model, state = step_of(optimiser, step_along(slopes, rate / count), state, model)
    return model, state


def assert_alike(one, other, within=2e-6):
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=within)


OTHERS = [("lstm", "momentum"), ("lstm", "adam"), *((name, "sgd") for name in FAMILY if name != "lstm")]
CASES = [("lstm", "sgd"), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]


@pytest.mark.slow
@pytest.mark.parametrize(("any_model", "name"), CASES, indirect=["any_model"])
def test_central_training_is_sgd_over_the_joined_texts(store, any_model, name):
    """Three rounds of five users among thirteen: the third ends the first pass and begins the second."""
    optimiser, notebook = OPTIMISERS[name], Notebook()
    rate, within = (CAREFUL, 1e-5) if isinstance(any_model, Transformer) else (RATE, 2e-6)
    algorithm = make_algorithm(optimiser, rate)
    central.descend.clear_cache()
    state, played = algorithm.server.start(any_model), None
    expected, memory = any_model, optimiser.init(any_model)
    for number in (1, 2, 3):
        rows = PASSES.rows(store.users, number)
        state, played = play(algorithm, PASSES, state, store, notebook)
        tokens = np.concatenate([store[row] for row in rows])
        expected, memory = by_hand(expected, optimiser, memory, tokens, PASSES.key(number), rate)
        assert state.round == number
        assert (played.users, played.tokens) == (5, sum(len(store[row]) for row in rows))
    assert_alike(state.params, expected, within)
    assert_alike(state.optimiser, memory, within)
    assert notebook.spent == [NonPrivate()] * 3
    assert central.descend._cache_size() == 1  # one program, whoever's turn it is
    assert not np.allclose(jax.tree.leaves(state.params)[0], jax.tree.leaves(any_model)[0])


@pytest.mark.slow
def test_central_training_is_fedavg_of_one_who_wrote_it_all(store, model):
    """The same lanes, the same carried state, the same steps as a device takes."""
    algorithm = make_algorithm(OPTIMISERS["sgd"])
    state, played = play(algorithm, PASSES, algorithm.server.start(model), store, Notebook())
    text = join_texts(store, PASSES.rows(store.users, 1))
    local = FedAvg(NoClip(), False, batch=LANES, unroll=UNROLL, learning_rate=RATE)
    someone = User(jnp.asarray(text.tokens), jnp.asarray(text.length))
    steps = local.steps(int(text.length))
    result = local(model, someone, jax.random.key(0), np.full(1, np.inf, np.float32), steps)
    assert_alike(state.params, jax.tree.map(jnp.add, model, result.update))
    np.testing.assert_allclose(float(played.loss), float(result.loss), rtol=1e-5)


@pytest.mark.slow
def test_steps_that_are_not_finite_or_have_no_target_change_nothing(vocabulary, model):
    """Adam would move by its memory alone."""
    silent = Store.from_users([[BOS] * 24] * 5, vocabulary, tokens_per_user=24)
    algorithm = make_algorithm(OPTIMISERS["adam"])
    start = algorithm.server.start(model)
    warm = jax.tree.map(jnp.ones_like, start.optimiser)
    state, _ = play(algorithm, PASSES, start._replace(optimiser=warm), silent, Notebook())
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, start.params)
    poisoned, played = play(
        algorithm, PASSES, start._replace(params=broken),
        Store.from_users([[BOS, 5, 6, 7, 1]] * 5, vocabulary, tokens_per_user=24), Notebook(),
    )  # fmt: skip
    assert jax.tree.all(jax.tree.map(lambda one, other: bool(jnp.all(one == other)), state.params, start.params))
    assert jax.tree.all(
        jax.tree.map(lambda one, other: bool(jnp.all(one == other)), poisoned.optimiser, start.optimiser)
    )
    assert played.diagnostics()["not_finite"] == 3  # 25 tokens in three lanes, four at a time
    assert played.diagnostics()["loss"] == 0


@pytest.mark.slow
def test_a_schedule_of_the_servers_rate_is_a_rate_of_that_round(store, model):
    """Half the server's rate in round 2 is half of η in it."""
    falling = dataclasses.replace(
        make_algorithm(OPTIMISERS["sgd"]), server=Server(OPTIMISERS["sgd"], Schedule(((1, 1.0), (2, 0.5))))
    )
    slower = dataclasses.replace(
        make_algorithm(OPTIMISERS["sgd"]),
        user_update=FedSGD(NoClip(), batch=LANES, unroll=UNROLL, learning_rate=RATE / 2),
    )
    first, _ = play(falling, PASSES, falling.server.start(model), store, Notebook())
    plain, _ = play(make_algorithm(OPTIMISERS["sgd"]), PASSES, first._replace(round=0), store, Notebook())
    again, _ = play(falling, PASSES, first._replace(round=0), store, Notebook())
    assert_alike(again.params, plain.params)  # round 1 is as without it
    second, _ = play(falling, PASSES, first, store, Notebook())
    expected, _ = play(slower, PASSES, first, store, Notebook())
    assert_alike(second.params, expected.params)
