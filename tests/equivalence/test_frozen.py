"""A model with a frozen part: only `params` are trained, clipped, noised and kept in the state."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from family import HalfFrozen
from free import Free
from sottovoce.data.words import BOS
from sottovoce.local.objective import Penalised, plain
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.models.contract import parameter_count, split
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round, sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm, Task

CLIP, RATE, UNROLL, SERVER = 0.3, 2.0, 5, Server(optax.sgd(1.0))
SUMS = {"one by one": sum_one_by_one, "in blocks": SumInBlocks(4)}
BOTH_SUMS = [pytest.param("one by one", marks=pytest.mark.slow), "in blocks"]
# All that is trained, written out: what `trained()` says is not asked here.
TRAINED = [
    *(lambda m, g=gate, p=part: getattr(getattr(m.lstm, g), p) for gate in ("input_gate", "forget_gate", "cell_gate",
      "output_gate") for part in ("weight", "bias")), lambda m: m.lstm.projection, lambda m: m.lstm.projection_bias,
]  # fmt: skip


@pytest.fixture
def half(vocabulary) -> HalfFrozen:
    return HalfFrozen.make(vocabulary.size)


def make(model, noise_std: float = 0.0, user_rate: float = 1.0, **local) -> Algorithm:
    clip = FlatClip(CLIP)
    mechanism = Mechanism(
        Poisson(user_rate), clip, FixedDenominator(6.0), 0.0, experiment=True, experiment_noise_std=noise_std
    )
    update = FedAvg(clip, True, batch=1, unroll=UNROLL, learning_rate=RATE, **local)
    return Algorithm(mechanism, update, SERVER).with_frozen_of(model)


def play(algorithm, model, store, rounds, sum_updates):
    state = SERVER.start(split(model)[0])
    for number in range(1, rounds + 1):
        state, _ = play_round(algorithm, state, store, Free(Secrets.seeded(3).keys(number)), sum_updates)
    return state


def loss_of(trained, model, inputs, targets, state):
    model = eqx.tree_at(lambda m: [get(m) for get in TRAINED], model, trained)
    outputs, state = model.read(inputs, state)
    logs = jax.nn.log_softmax(model.logits(outputs))[jnp.arange(len(targets)), targets]
    counts = targets != BOS
    return -jnp.sum(jnp.where(counts, logs, 0)) / jnp.maximum(jnp.sum(counts), 1), state


def by_hand(model, store, rounds):
    """Two rounds of everybody, with plain lists of arrays."""
    gradient = jax.jit(jax.grad(loss_of, has_aux=True))
    trained = [np.asarray(get(model)) for get in TRAINED]
    for _ in range(rounds):
        total = [np.zeros(leaf.shape) for leaf in trained]
        for row in range(store.users):
            tokens = np.asarray(store[row])
            inputs, state = np.concatenate([[BOS], tokens[:-1]])[: len(tokens)].astype(int), model.initial_state()
            update = [np.zeros(leaf.shape, np.float32) for leaf in trained]
            for start in range(0, len(tokens), UNROLL):
                here = slice(start, start + UNROLL)
                at = [leaf + change for leaf, change in zip(trained, update, strict=True)]
                # Filled up to one shape, to compile once: nothing is read after what is filled in.
                filled = [
                    np.pad(part[here], (0, UNROLL - len(part[here])), constant_values=BOS) for part in (inputs, tokens)
                ]
                slopes, state = gradient(at, model, *filled, state)
                update = [change - RATE * np.asarray(slope) for change, slope in zip(update, slopes, strict=True)]
                norm = np.sqrt(sum(np.sum(change.astype(float) ** 2) for change in update))
                update = [change * min(1, CLIP / max(norm, 1e-30)) for change in update]
            total = [sum_ + min(1, len(tokens)) * change for sum_, change in zip(total, update, strict=True)]
        trained = [leaf + (sum_ / 6).astype(np.float32) for leaf, sum_ in zip(trained, total, strict=True)]
    return trained


@pytest.mark.parametrize("sum_updates", BOTH_SUMS)
def test_two_rounds_are_those_by_hand_and_what_is_frozen_stays_to_the_bit(half, store, sum_updates):
    algorithm = make(half)
    state = play(algorithm, half, store, 2, SUMS[sum_updates])
    after = algorithm.model(state.params)
    for get, expected in zip(TRAINED, by_hand(half, store, 2), strict=True):
        np.testing.assert_allclose(get(after), expected, rtol=0, atol=5e-6)
        assert not np.allclose(get(after), get(half), atol=1e-4)
    assert np.array_equal(after.lstm.embedding, half.lstm.embedding)
    assert np.array_equal(after.order, half.order)


def test_state_sum_and_noise_have_the_parameters_alone(half, store):
    """The squared length of the noise is that of so many draws; with the frozen part it would be twice as long."""
    std = 0.5
    algorithm, traces = make(half, noise_std=std, user_rate=1e-9), []
    params = split(half)[0]
    count, whole = parameter_count(params), parameter_count(half)
    state = SERVER.start(params)
    payment = Free(Secrets.seeded(3).keys(1))
    state, _ = play_round(algorithm, state, store, payment, sum_one_by_one, traces.append)
    assert sum(array.size for array in state.to_arrays().values()) == count < whole / 1.5
    drawn = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(traces[0].noised.update)])
    assert drawn.size == count
    scale = algorithm.mechanism.noise_std(1, algorithm.mechanism.clip_norms(1, None))[0]
    assert abs(np.sum((drawn / scale) ** 2) / count - 1) < 6 * np.sqrt(2 / count)


@pytest.mark.parametrize("sum_updates", BOTH_SUMS)
@pytest.mark.parametrize(
    "local",
    [{}, pytest.param({"objective": Penalised(plain, 0.01)}, marks=pytest.mark.slow)],
    ids=["plain", "penalised"],
)
def test_one_user_more_moves_the_sum_by_no_more_than_the_clip_norm(half, store, sum_updates, local):
    algorithm = make(half, **local)
    norms, key = algorithm.mechanism.clip_norms(1, None), jax.random.key(0)
    everybody = np.arange(store.users)

    def total(cohort):
        task = Task(split(half)[0], cohort, norms, key)
        leaves = jax.tree.leaves(SUMS[sum_updates](algorithm, task, store).total)
        return np.concatenate([np.ravel(leaf) for leaf in leaves])

    whole, moved = total(everybody), []
    for row in everybody:
        moved.append(np.linalg.norm(whole - total(np.delete(everybody, row))))
    assert max(moved) <= CLIP
    assert max(moved) > 0.99 * CLIP  # some user is clipped: the bound is put to the test


@pytest.mark.slow
def test_fedsgd_sends_a_gradient_of_the_parameters_alone(half, store):
    clip = FlatClip(CLIP)
    mechanism = Mechanism(Poisson(1.0), clip, FixedDenominator(6.0), 0.0, experiment=True, experiment_noise_std=0.0)
    algorithm = Algorithm(mechanism, FedSGD(clip, batch=1, unroll=UNROLL), SERVER).with_frozen_of(half)
    task = Task(split(half)[0], np.array([0]), mechanism.clip_norms(1, None), jax.random.key(0))
    slow, fast = (each(algorithm, task, store).total for each in SUMS.values())
    assert jax.tree.structure(slow) == jax.tree.structure(split(half)[0])
    for one, two in zip(jax.tree.leaves(slow), jax.tree.leaves(fast), strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)
