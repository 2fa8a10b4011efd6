"""Each product of a CPU against the plain one; whole updates are in test_lstm_users.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import cpu
from sottovoce.kernels.cpu import Kept, Table, read, read_back, read_table, step_table, through_unit_rows
from sottovoce.kernels.lstm_users import LN2, PLAIN, Step, activate, gate_gradients

WORDS, SIZE, HIDDEN, TIME, LANES = 11, 4, 3, 5, 2
TOKENS = TIME * LANES


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_close(one, other) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_rows_that_are_the_same_get_the_change_of_each():
    delta, ids, change = normal(1, WORDS, SIZE), jnp.array([3, 5, 3, 0]), normal(2, 4, SIZE)
    after, squares = cpu.add_rows(delta, jnp.sum(jnp.square(delta)), ids, change)
    expected = np.asarray(delta).copy()
    np.add.at(expected, np.asarray(ids), np.asarray(change))
    assert_close((after, squares), (expected, np.sum(np.square(expected))))


@pytest.mark.slow
@pytest.mark.parametrize("tile", [4, 11, 100], ids=["tiles and a rest", "one tile", "all at once"])
def test_the_table_is_read_and_stepped_as_by_the_plain_products(tile):
    outputs, table, delta = normal(1, TOKENS, SIZE), normal(2, WORDS, SIZE), normal(3, WORDS, SIZE)
    scale, offset, share = jnp.array([0.7]), jnp.full(TOKENS, 0.25), jnp.linspace(0.05, 0.15, TOKENS)
    given = Table(table, delta, scale[0])
    kept = Kept(jnp.full((WORDS, TOKENS), jnp.nan), jnp.full(WORDS, jnp.nan))  # what lies there before is not read
    total, mean, kept = read_table(outputs, given, offset, kept, tile)
    plain, plain_mean, _ = PLAIN.scores(outputs[None], table, delta[None], scale, offset[None])
    assert_close((total, mean), (plain[0], plain_mean[0]))

    ids = np.random.default_rng(4).integers(0, WORDS, size=(2, TOKENS))  # some are the same
    assert len(np.unique(ids)) < ids.size
    of_words = normal(5, TOKENS, SIZE)
    expected, expected_squares = PLAIN.step_table(
        outputs[None], of_words[None], table, delta[None], (offset + jnp.log2(total))[None], share[None],
        ids[:1], ids[1:], Step(scale, jnp.ones(1), 0.5), None,
    )  # fmt: skip
    weighted = LN2 * share[:, None] * outputs
    new, squares = step_table(weighted / total[:, None], given, 0.5, kept, tile)
    assert_close(squares, jnp.sum(jnp.square(new)))
    own = np.concatenate([ids[1], ids[0]])
    change = -0.5 * through_unit_rows(given.rows(own), jnp.concatenate([of_words, -weighted]))
    new, squares = cpu.add_rows(new, squares, own, change)
    assert_close((new, squares), (expected[0], expected_squares[0]))


@pytest.mark.slow
def test_the_recurrence_and_its_gradient_are_those_of_the_plain_products():
    words, bias = normal(1, 1, TIME, LANES, 4 * HIDDEN), normal(2, 1, 4 * HIDDEN)
    recurrent, delta, scale = normal(3, 4 * HIDDEN, HIDDEN), normal(4, 1, 4 * HIDDEN, HIDDEN), jnp.full((1, 4), 0.7)
    hidden, cell = normal(5, 1, LANES, HIDDEN), normal(6, 1, LANES, HIDDEN)
    gates, cells, before, after = PLAIN.read(words, bias, recurrent, delta, scale, hidden, cell)
    weight = recurrent + 0.7 * delta[0]
    expected = gates, cells, jnp.concatenate([before, after[:, -1:]], axis=1)
    assert_close([part[None] for part in read(words[0] + bias[0], weight, hidden[0], cell[0])], list(expected))
    above = normal(7, 1, TIME, LANES, HIDDEN)
    expected, sums = PLAIN.read_back(above, gates, cells, recurrent, delta, scale)
    assert_close(read_back(above[0], gates[0], cells[0], weight)[None], expected)
    assert_close(sums, jnp.sum(expected, axis=(1, 2)))


def test_the_gradients_of_the_gates_are_those_of_jax():
    inputs, before, of_hidden, of_cell = normal(1, 4 * HIDDEN), normal(2, HIDDEN), normal(3, HIDDEN), normal(4, HIDDEN)

    def step(inputs, before):
        i, f, g, o = activate(inputs)
        after = f * before + i * g
        return o * jnp.tanh(after), after

    @jax.jit
    def both(inputs, before, of_hidden, of_cell):
        (_, after), back = jax.vjp(step, inputs, before)
        found = gate_gradients(jnp.concatenate(activate(inputs)), before, after, of_hidden, of_cell)
        return found, back((of_hidden, of_cell))

    assert_close(*both(inputs, before, of_hidden, of_cell))
