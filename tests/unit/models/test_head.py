"""The tied softmax and its loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.models.head import cross_entropy, unit_rows


def test_a_zero_embedding_row_is_no_division_by_zero():
    rows, gradient = jax.jit(jax.value_and_grad(lambda e: jnp.sum(unit_rows(e) ** 2)))(np.zeros((2, 3), np.float32))
    assert float(rows) == 0
    assert np.all(np.isfinite(gradient))


def test_cross_entropy_is_minus_the_log_probability():
    scores = jnp.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]])
    wanted = -np.log(np.exp(2.0) / np.exp([1.0, 2.0, 3.0]).sum())
    np.testing.assert_allclose(jax.jit(cross_entropy)(scores, np.array([1, 0])), [wanted, 0.0], atol=1e-6)
