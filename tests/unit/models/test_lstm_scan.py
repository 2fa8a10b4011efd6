"""The gradient of a layer is that of the loop over time steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.models.lstm_scan import Gate, read_layer


@pytest.mark.parametrize("masked", [pytest.param(True, marks=pytest.mark.slow), False])
def test_gradients_are_those_of_the_loop_as_it_is_written(masked):
    """They are taken in another order (one product for the recurrent weight): of weights, inputs, state and mask."""
    keys = jax.random.split(jax.random.key(2), 8)
    gates = tuple(Gate(5, 4, bias=0.1, key=key) for key in keys[:4])
    inputs, state = jax.random.normal(keys[4], (6, 5)), tuple(jax.random.normal(keys[5], (2, 4)))
    mask = jax.random.uniform(keys[6], (4,)) if masked else None
    ahead = jax.random.normal(keys[7], (8, 4))  # of the loss in every output and both states

    def written(gates, inputs, state, mask):
        (hidden, cell), outputs = state, []
        for word in inputs:
            joint = jnp.concatenate([word, hidden if mask is None else hidden * mask])
            i, f, g, o = (gate.weight @ joint + gate.bias for gate in gates)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            outputs.append(hidden)
        return jnp.stack(outputs), (hidden, cell)

    def slopes(read):
        def loss(arguments):
            outputs, state = read(*arguments)
            return jnp.sum(jnp.concatenate([outputs, jnp.stack(state)]) * ahead)

        return jax.tree.leaves(jax.grad(loss)((gates, inputs, state, mask)))

    for ours, plain in zip(slopes(read_layer), slopes(written), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)
