from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from family import read
from sottovoce.models.contract import layer_names
from sottovoce.models.gru import GRU


def test_it_has_nine_parameter_vectors():
    assert layer_names(GRU(60, embedding=6, hidden=8, key=jax.random.key(0))) == [
        "embedding", "reset_gate.weight", "reset_gate.bias", "update_gate.weight", "update_gate.bias",
        "candidate.weight", "candidate.bias", "projection", "projection_bias",
    ]  # fmt: skip


def test_reading_matches_the_textbook_gru():
    """The same equations written out with plain numpy, one token at a time."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    model = jax.tree.map(lambda leaf: leaf + 0.1, GRU(60, embedding=6, hidden=8, key=jax.random.key(7)))
    tokens, hidden, wanted = [5, 17, 3, 3, 40], np.zeros(8), []
    embedding = np.asarray(model.embedding, float)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)

    def apply(gate, joint):
        return np.asarray(gate.weight, float) @ joint + np.asarray(gate.bias, float)

    for token in tokens:
        joint = np.concatenate([embedding[token], hidden])
        reset, update = sigmoid(apply(model.reset_gate, joint)), sigmoid(apply(model.update_gate, joint))
        candidate = np.tanh(apply(model.candidate, np.concatenate([embedding[token], reset * hidden])))
        hidden = update * hidden + (1 - update) * candidate
        wanted.append(np.asarray(model.projection, float) @ hidden + np.asarray(model.projection_bias, float))
    outputs, state = read(model, jnp.asarray(tokens), model.initial_state())
    np.testing.assert_allclose(outputs, wanted, atol=1e-5)
    np.testing.assert_allclose(state, hidden, atol=1e-5)
    np.testing.assert_allclose(model.logits(outputs), np.array(wanted) @ embedding.T, atol=1e-5)
