"""The LSTM of McMahan et al. 2018, appendix B: one embedding for input and output."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import tied_scores, unit_rows


class Gate(eqx.Module):
    """The weight and bias of one gate, applied to [word, hidden]."""

    weight: Float[Array, "hidden joint"]
    bias: Float[Array, " hidden"]

    def __init__(self, embedding: int, hidden: int, *, bias: float, key: PRNGKeyArray):
        bound = hidden**-0.5
        self.weight = jax.random.uniform(key, (hidden, embedding + hidden), minval=-bound, maxval=bound)
        self.bias = jnp.full((hidden,), bias)


class LSTM(eqx.Module):
    """Embedding, one LSTM layer, a projection back to the embedding, softmax against the same embedding.

    Eleven parameter vectors: the embedding, weight and bias of each of four gates, weight and bias of the projection.
    """

    embedding: Float[Array, "vocabulary size"]
    input_gate: Gate
    forget_gate: Gate
    cell_gate: Gate
    output_gate: Gate
    projection: Float[Array, "size hidden"]
    projection_bias: Float[Array, " size"]

    def __init__(self, vocabulary: int, *, embedding: int = 96, hidden: int = 256, key: PRNGKeyArray):
        keys = jax.random.split(key, 6)
        # Rows start at norm 1: a gradient through the normalisation scales like 1 / norm.
        self.embedding = unit_rows(jax.random.normal(keys[0], (vocabulary, embedding)))
        self.input_gate = Gate(embedding, hidden, bias=0.0, key=keys[1])
        self.forget_gate = Gate(embedding, hidden, bias=1.0, key=keys[2])  # remember until taught to forget
        self.cell_gate = Gate(embedding, hidden, bias=0.0, key=keys[3])
        self.output_gate = Gate(embedding, hidden, bias=0.0, key=keys[4])
        bound = hidden**-0.5
        self.projection = jax.random.uniform(keys[5], (embedding, hidden), minval=-bound, maxval=bound)
        self.projection_bias = jnp.zeros((embedding,))

    def start(self) -> tuple[Array, Array]:
        hidden = self.projection.shape[1]
        return jnp.zeros((hidden,)), jnp.zeros((hidden,))

    def read(
        self, tokens: Int[Array, " time"], state: tuple[Array, Array], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], tuple[Array, Array]]:
        del key
        gates = (self.input_gate, self.forget_gate, self.cell_gate, self.output_gate)
        weight = jnp.concatenate([gate.weight for gate in gates])  # [4 hidden, embedding + hidden]
        bias = jnp.concatenate([gate.bias for gate in gates])
        from_word, from_hidden = jnp.split(weight, [self.embedding.shape[1]], axis=1)
        # Only the rows that are read are normalised here; the words' share of all gates is one product.
        words = unit_rows(self.embedding[tokens]) @ from_word.T + bias  # [time, 4 hidden]

        def step(state: tuple[Array, Array], word: Array) -> tuple[tuple[Array, Array], Array]:
            hidden, cell = state
            i, f, g, o = jnp.split(word + from_hidden @ hidden, 4)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        state, hidden = jax.lax.scan(step, state, words)
        return hidden @ self.projection.T + self.projection_bias, state

    def score(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return tied_scores(outputs, self.embedding)
