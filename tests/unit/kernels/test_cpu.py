"""Each product of a CPU against the plain one; whole updates are in test_lstm_users.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels.cpu import ONE_USER, exp2
from sottovoce.kernels.lstm_users import PLAIN, Step, activate, gate_gradients

WORDS, SIZE, HIDDEN, TIME, LANES = 11, 4, 3, 5, 2
TOKENS = TIME * LANES


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_close(one, other) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_exp2_is_as_exact_as_its_fit():
    power = np.concatenate([np.linspace(-126, 126, 5001), np.linspace(-0.5, 0.5, 101)]).astype(np.float32)
    np.testing.assert_allclose(jax.jit(exp2)(power), np.exp2(np.float64(power)), rtol=5e-7)
    assert float(exp2(jnp.float32(-1000.0))) == 2.0**-126


@pytest.mark.parametrize("scale", [0.7, -1.0], ids=["a user who trains", "one who has finished"])
def test_the_table_is_read_and_stepped_as_by_the_plain_products(scale):
    outputs, table, delta = normal(1, 1, TOKENS, SIZE), normal(2, WORDS, SIZE), normal(3, 1, WORDS, SIZE)
    scale, offset = jnp.array([scale]), jnp.full((1, TOKENS), 0.25)
    (ours, mean, kept), (plain, plain_mean, _) = (
        jax.jit(products.scores)(outputs, table, delta, scale, offset) for products in (ONE_USER, PLAIN)
    )
    assert_close((ours, mean), (plain, plain_mean))
    level, share = offset + jnp.log2(plain), jnp.full((1, TOKENS), 1 / TOKENS)
    ids = np.random.default_rng(4).integers(0, WORDS, size=(2, 1, TOKENS))
    step = Step(scale, jnp.ones(1), 0.5)
    given = (outputs, normal(5, 1, TOKENS, SIZE), table, delta, level, share, *map(jnp.asarray, ids), step)
    (new, squares), (expected, expected_squares) = (
        jax.jit(products.step_table)(*given, scores) for products, scores in ((ONE_USER, kept), (PLAIN, None))
    )
    assert_close(new, expected)
    if scale[0] > 0:
        assert_close(squares, expected_squares)
    else:
        np.testing.assert_array_equal(new, delta)


@pytest.mark.parametrize("scale", [0.7, -1.0], ids=["a user who trains", "one who has finished"])
def test_a_weight_is_stepped_as_by_the_plain_products(scale):
    step = Step(jnp.full((1, 4), scale), jnp.ones(1), 0.5)
    given = (normal(1, 1, TOKENS, 4 * HIDDEN), normal(2, 1, TOKENS, SIZE), normal(3, 1, 4 * HIDDEN, SIZE), step)
    assert_close(*(jax.jit(products.step)(*given) for products in (ONE_USER, PLAIN)))


def test_the_recurrence_and_its_gradient_are_those_of_the_plain_products():
    words, bias = normal(1, 1, TIME, LANES, 4 * HIDDEN), normal(2, 1, 4 * HIDDEN)
    recurrent, delta, scale = normal(3, 4 * HIDDEN, HIDDEN), normal(4, 1, 4 * HIDDEN, HIDDEN), jnp.full((1, 4), 0.7)
    hidden, cell = normal(5, 1, LANES, HIDDEN), normal(6, 1, LANES, HIDDEN)
    given = (words, bias, recurrent, delta, scale, hidden, cell)
    read = [jax.jit(products.read)(*given) for products in (ONE_USER, PLAIN)]
    assert_close(*read)
    gates, cells, _ = read[1]
    above = normal(7, 1, TIME, LANES, HIDDEN)
    given = (above, gates, cells, recurrent, delta, scale)
    assert_close(*(jax.jit(products.read_back)(*given) for products in (ONE_USER, PLAIN)))


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
