"""The LSTM of McMahan et al. 2018, appendix B: one embedding for input and output."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import tied_logits, unit_rows
from sottovoce.models.lstm_scan import Gate, read_layer


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

    def initial_state(self) -> tuple[Array, Array]:
        hidden = self.projection.shape[1]
        return jnp.zeros((hidden,)), jnp.zeros((hidden,))

    def read(
        self, tokens: Int[Array, " time"], state: tuple[Array, Array], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], tuple[Array, Array]]:
        del key
        # Only the rows that are read are normalised here.
        gates = (self.input_gate, self.forget_gate, self.cell_gate, self.output_gate)
        hidden, state = read_layer(gates, unit_rows(self.embedding[tokens]), state)
        return hidden @ self.projection.T + self.projection_bias, state

    def logits(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return tied_logits(outputs, self.embedding)
