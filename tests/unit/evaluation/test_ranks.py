"""The ranks and losses of targets, found a tile at a time, against those of all logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.evaluation import ranks
from sottovoce.evaluation.ranks import Softmax, ranks_of
from sottovoce.models.head import tables_of

TIME, SIZE = 11, 6


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_ties_are_broken_as_by_argmax():
    scores = jnp.array([[1.0, 2.0, 2.0, 0.0]])
    assert [int(ranks_of(scores, jnp.array([token])).rank[0]) for token in range(4)] == [2, 0, 1, 3]


SIZES = {"tiles and a rest": 26, "tiles": 20, "a rest": 7}
KINDS = {"rows at norm 1": True, "any rows and a bias": False}
TABLES = [
    pytest.param(words, unit, id=f"{size}, {kind}", marks=[] if words == 26 and unit else [pytest.mark.slow])
    for size, words in SIZES.items()
    for kind, unit in KINDS.items()
]


@pytest.mark.parametrize(("words", "unit"), TABLES)
def test_a_table_in_tiles_gives_the_ranks_and_losses_of_its_logits(monkeypatch, words, unit):
    """Losses within 1e-5; the same ranks, also where logits are equal."""
    for name, value in {"TILE": 10, "SLABS": 2, "GROUP": 4}.items():
        monkeypatch.setattr(ranks, name, value)
    draw = np.random.default_rng(0).integers
    rows = jnp.asarray(draw(-4, 5, size=(words, SIZE)) / 8, jnp.float32)  # few numbers: logits are exact
    bias = jnp.zeros(words) if unit else jnp.asarray(draw(-40, 41, size=words), jnp.float32)
    outputs = jnp.asarray(draw(-30, 31, size=(TIME, SIZE)), jnp.float32).at[0].set(0.0)  # the first: all equal
    targets, counted = jnp.asarray(draw(0, words, size=TIME)), jnp.ones(TIME)
    found = jax.jit(lambda *given: Softmax(rows, bias, unit).ranks(*given))(outputs, targets, counted)
    expected = ranks_of(outputs @ rows.T + bias, targets)
    np.testing.assert_array_equal(found.rank, expected.rank)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5, atol=1e-5)
    assert len(np.unique(expected.rank)) > 3


@pytest.mark.slow
def test_what_is_not_a_number_is_not_likely():
    rows, bias = normal(0, 9, SIZE), jnp.zeros(9)
    outputs, targets, counted = normal(1, 3, SIZE), jnp.array([1, 2, 3]), jnp.ones(3)
    for softmax, given in (
        (Softmax(rows.at[5, 0].set(jnp.nan), bias, False), outputs),
        (Softmax(rows, bias.at[5].set(jnp.inf), False), outputs),
        (Softmax(rows, bias, True), outputs * jnp.nan),
    ):
        found = softmax.ranks(given, targets, counted)
        assert not np.any(np.isfinite(found.loss))
    assert np.all(np.asarray(found.rank) == 9)


@pytest.mark.slow
def test_targets_that_do_not_count_cost_nothing(monkeypatch):
    monkeypatch.setattr(ranks, "GROUP", 2)
    found = Softmax(normal(0, 9, SIZE), jnp.zeros(9), False).ranks(
        normal(1, 4, SIZE), jnp.array([1, 2, 3, 4]), jnp.array([0.0, 0.0, 0.0, 1.0])
    )
    assert np.all(np.asarray(found.loss[:2]) == 0)
    assert np.all(np.asarray(found.loss[2:]) > 0)


def test_models_with_plain_tables_are_read_in_tiles(any_model):
    assert Softmax.fits(any_model) == (tables_of(any_model) is not None)
    assert not Softmax.fits(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), any_model))
    assert not Softmax.fits({"a": 1})
