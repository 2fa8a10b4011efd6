"""The tied softmax and its loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.models.head import aligned, cross_entropy, exp2, multiply, unit_rows
from sottovoce.models.registry import build


def test_a_zero_embedding_row_is_no_division_by_zero():
    rows, gradient = jax.jit(jax.value_and_grad(lambda e: jnp.sum(unit_rows(e) ** 2)))(np.zeros((2, 3), np.float32))
    assert float(rows) == 0
    assert np.all(np.isfinite(gradient))


def test_cross_entropy_is_minus_the_log_probability():
    scores = jnp.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]])
    wanted = -np.log(np.exp(2.0) / np.exp([1.0, 2.0, 3.0]).sum())
    np.testing.assert_allclose(jax.jit(cross_entropy)(scores, np.array([1, 0])), [wanted, 0.0], atol=1e-6)


def test_a_product_with_a_narrow_weight_is_narrow_and_any_other_is_left_as_it_is():
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.standard_normal((rows, 8)), jnp.float32) for rows in (4, 3))
    np.testing.assert_array_equal(multiply(x, weight), x @ weight.T)
    np.testing.assert_array_equal(multiply(x[0], weight), weight @ x[0])
    narrow = multiply(x, weight.astype(jnp.bfloat16))
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow, x @ weight.T, atol=0.1)


@pytest.mark.parametrize(
    "kind", ["lstm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gru", "stacked_lstm", "gated_cnn"))]
)
def test_the_tables_of_a_model_give_its_logits(kind):
    model = build(kind, 20, {"embedding": 8}, jax.random.key(0))
    tables = model.tables()
    rows = getattr(model, tables.output)
    outputs = jax.random.normal(jax.random.key(1), (3, rows.shape[1]))
    logits = outputs @ (unit_rows(rows) if tables.unit else rows).T
    bias = 0 if tables.bias is None else getattr(model, tables.bias)
    np.testing.assert_allclose(model.logits(outputs), logits + bias, atol=1e-5)
    tokens, state = jnp.asarray([1, 5, 2]), model.initial_state()
    by_rows = model.read_rows(getattr(model, tables.words)[tokens], state)[0]
    np.testing.assert_array_equal(model.read(tokens, state)[0], by_rows)


def test_powers_of_two_are_right_to_the_last_bits_of_a_float():
    powers = np.float32(np.concatenate([np.linspace(-126, 60, 100_001), np.arange(-126, 61)]))
    np.testing.assert_allclose(np.float64(exp2(jnp.asarray(powers))), 2.0 ** np.float64(powers), rtol=5e-7)
    tiny = np.float64(exp2(jnp.asarray([-127.0, -1e4, -jnp.inf])))
    assert np.all((tiny >= 0) & (tiny <= 2.0**-125))


def test_rows_of_narrow_numbers_are_filled_up_to_16_bytes_and_products_do_not_change():
    rng = np.random.default_rng(0)
    x, weight = (
        jnp.asarray(rng.standard_normal((3, 6)), jnp.float32),
        jnp.asarray(rng.standard_normal((5, 6)), jnp.bfloat16),
    )
    assert aligned(x) is x
    assert aligned(weight).shape == (5, 8)
    np.testing.assert_array_equal(multiply(x, aligned(weight)), multiply(x, weight))
    np.testing.assert_array_equal(multiply(x[0], aligned(weight)), multiply(x[0], weight))
