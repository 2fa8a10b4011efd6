from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from family import read
from sottovoce.models.contract import layer_names, parameter_count
from sottovoce.models.head import unit_rows
from sottovoce.models.lstm import LSTM, Gate, read_layer


def test_the_papers_model_has_eleven_parameter_vectors_and_its_size():
    shapes = jax.eval_shape(lambda key: LSTM(10_000, key=key), jax.random.key(0))
    assert parameter_count(shapes) == 1_346_144
    assert layer_names(shapes) == [
        "embedding", "input_gate.weight", "input_gate.bias", "forget_gate.weight", "forget_gate.bias",
        "cell_gate.weight", "cell_gate.bias", "output_gate.weight", "output_gate.bias", "projection", "projection_bias",
    ]  # fmt: skip


def test_reading_matches_the_textbook_lstm(model):
    """The same equations written out with plain numpy, one token at a time."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    tokens = [5, 17, 3, 3, 40]
    hidden, cell = np.zeros(8), np.zeros(8)
    embedding = np.asarray(model.embedding, float)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    wanted = []
    for token in tokens:
        joint = np.concatenate([embedding[token], hidden])
        i, f, g, o = (
            np.asarray(gate.weight, float) @ joint + np.asarray(gate.bias, float)
            for gate in (model.input_gate, model.forget_gate, model.cell_gate, model.output_gate)
        )
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        wanted.append(np.asarray(model.projection, float) @ hidden + np.asarray(model.projection_bias, float))
    outputs, (last_hidden, last_cell) = read(model, np.asarray(tokens), model.initial_state())
    np.testing.assert_allclose(outputs, wanted, atol=1e-5)
    np.testing.assert_allclose(last_hidden, hidden, atol=1e-5)
    np.testing.assert_allclose(last_cell, cell, atol=1e-5)
    np.testing.assert_allclose(model.logits(outputs), np.array(wanted) @ embedding.T, atol=1e-5)


def test_embeddings_are_held_at_norm_one_in_the_forward_pass(model):
    scaled = jax.tree.map(lambda leaf: leaf, model)
    object.__setattr__(scaled, "embedding", model.embedding * 3.7)
    tokens = np.arange(3, 8)
    one, other = (each.logits(read(each, tokens, each.initial_state())[0]) for each in (model, scaled))
    np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(unit_rows(model.embedding * 9), axis=1), 1, rtol=1e-5)


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

        return jax.tree.leaves(jax.jit(jax.grad(loss))((gates, inputs, state, mask)))

    for ours, plain in zip(slopes(read_layer), slopes(written), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)
