from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from examples import examples
from sottovoce.data.store import Store
from sottovoce.local.update import Trained, clip_update
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.fixed_point import add, add_all, values, zeros
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm, Task
from sottovoce_evidence.bounds import grid_of
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

BOUND = 1.5
numbers = st.floats(-BOUND, BOUND, width=32, allow_subnormal=False)
sizes = st.sampled_from([1, 5, 40])  # each is a program
contributions = arrays(np.float32, st.tuples(sizes, st.just(3)), elements=numbers)


add_jitted = jax.jit(add_all)


def summed(parts: np.ndarray, blocks: int = 1) -> np.ndarray:
    grid, total = grid_of(BOUND), zeros(jnp.zeros(3))
    for block in np.array_split(parts, blocks):
        total = add(total, add_jitted(block, grid))
    return np.asarray(values((total,), (grid,))[0])


@given(parts=contributions)
@examples(60)
def test_a_sum_is_exact_and_the_same_in_any_order_and_blocks(parts):
    grid = grid_of(BOUND)
    exact = np.trunc(parts.astype(np.float64) / grid).sum(axis=0) * grid
    np.testing.assert_array_equal(summed(parts), exact)
    np.testing.assert_array_equal(summed(parts[::-1], blocks=min(4, len(parts))), exact)


def test_a_gpu_that_adds_both_halves_at_once_has_the_same_sum(monkeypatch):
    longest = np.repeat(np.float32([[BOUND, -BOUND, -grid_of(BOUND)]]), 40, axis=0)
    drawn = np.random.default_rng(0).uniform(-BOUND, BOUND, (57, 3)).astype(np.float32)
    leaves = {"one": np.concatenate([longest, drawn]), "two": np.concatenate([drawn, longest])[:, :2]}
    expected = add_all(leaves, grid_of(BOUND))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.tree.map(np.testing.assert_array_equal, add_all(leaves, grid_of(BOUND)), expected)


@given(parts=contributions)
@examples(60)
def test_one_contribution_moves_a_sum_by_no_more_than_itself(parts):
    moved = np.abs(summed(parts) - summed(np.concatenate([parts[:-1], np.zeros((1, 3), np.float32)])))
    assert np.all(moved <= np.abs(parts[-1]))
    assert np.all(moved >= np.abs(parts[-1]) - grid_of(BOUND))


def test_a_million_of_the_longest_fit():
    grid, total = grid_of(1.0), zeros(jnp.zeros(1))
    for _ in range(32):
        total = add(total, add_all(jnp.full((2**15, 1), -1.0), grid))
    assert float(values((total,), (grid,))[0][0]) == -(2.0**20)


def test_as_many_of_the_shortest_fit_as_at_once_are_allowed():
    """A step below zero has a lower half of all ones: 2^15 of them nearly fill a whole number."""
    grid = grid_of(1.0)
    total = add_all(jnp.full((2**15, 1), -grid), grid)
    for _ in range(2):
        total = add(total, add_all(jnp.full((2**15, 1), -grid), grid))
    assert float(values((total,), (grid,))[0][0]) == -3 * 2**15 * grid


@dataclass(frozen=True)
class Scripted:
    """An update of one number, which a user's only token chooses."""

    clipping: FlatClip
    numbers: tuple[float, ...]

    def steps(self, length):
        return length * 0 + 1

    def train(self, model, user, key, clip_norms, last):
        update = {"x": jnp.asarray(self.numbers, jnp.float32)[user.tokens[:1]]}
        return Trained(update, jnp.zeros(()), jnp.array(False), jnp.zeros(()))

    def __call__(self, model, user, key, clip_norms, last):
        return clip_update(self, self.train(model, user, key, clip_norms, last), clip_norms)


ONE_BY_ONE = pytest.param(SumInBlocks(1), id="one by one", marks=pytest.mark.slow)


@pytest.mark.parametrize("sum_updates", [ONE_BY_ONE, pytest.param(SumInBlocks(64), id="in blocks")])
def test_a_user_cannot_move_a_sum_by_the_rounding_of_others(vocabulary, sum_updates):
    """Others add half a unit in the last place more, and half a unit less: a float32 total above 32 keeps the one and
    drops the other, one below keeps both. A user who lifts the total above 32 would move it by 60 units more."""
    half = 2.0**-19  # of the last place of numbers from 32 on
    numbers = (0.99, 0.9, half * 1.001, -half * 0.999)
    clip = FlatClip(1.0)
    algorithm = Algorithm(
        Mechanism(Poisson(1.0), clip, FixedDenominator(1.0), 1.0), Scripted(clip, numbers), Server(None)
    )  # fmt: skip
    crowd, pairs = [[0]] * 32, [[2], [3]] * 60
    totals = []
    for victim in ([[1]], [[]]):
        store = Store.from_users([*crowd, *victim, *pairs], vocabulary, tokens_per_user=1)
        rows = np.arange(store.users)
        rows = rows if victim[0] else np.delete(rows, len(crowd))
        summed = sum_updates(
            algorithm, Task({"x": jnp.zeros(1)}, rows, np.ones(1, np.float32), jax.random.key(0)), store
        )
        totals.append(float(summed.total["x"][0]))
    assert totals[0] - totals[1] == pytest.approx(0.9, abs=1e-6)
    tokens = [token for users in (crowd, [[1]], pairs) for (token,) in users]
    in_float32 = [np.cumsum(np.float32(numbers)[np.delete(tokens, skipped)])[-1] for skipped in ([], [len(crowd)])]
    assert in_float32[0] - in_float32[1] > 0.9 + 1e-4, "floating point would pass this test"


def test_the_slow_sum_is_the_same_to_the_bit(vocabulary):
    numbers = tuple(np.random.default_rng(0).uniform(-2, 2, size=40).tolist())
    clip = FlatClip(1.0)
    algorithm = Algorithm(
        Mechanism(Poisson(1.0), clip, FixedDenominator(1.0), 1.0), Scripted(clip, numbers), Server(None), weight_cap=3.0
    )  # fmt: skip
    store = Store.from_users([[token] * (1 + token % 4) for token in range(40)], vocabulary, tokens_per_user=4)
    task = Task({"x": jnp.zeros(1)}, np.arange(40), np.ones(1, np.float32), jax.random.key(0))
    arguments = (algorithm, task, store)
    slow, *others = sum_one_by_one(*arguments), SumInBlocks(1)(*arguments), SumInBlocks(16)(*arguments)
    for other in others:
        assert float(other.total["x"][0]) == float(slow.total["x"][0])
        assert float(other.weight) == float(slow.weight)
        assert float(other.bits[0]) == float(slow.bits[0])


def test_more_than_a_whole_number_holds_are_refused():
    """32,769 of them at once would come out 32 clip norms short."""
    with pytest.raises(ValueError, match="more than 32768"):
        add_all(jnp.ones((2**15 + 1, 1)), grid_of(1.0))
    with pytest.raises(SottoError, match="32769"):
        Recipe().replace(run={"block": 2**15 + 1})
