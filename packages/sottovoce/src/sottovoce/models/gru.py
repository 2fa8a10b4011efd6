"""A GRU (Cho et al. 2014) in place of the LSTM of McMahan et al. 2018: three gates instead of four."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import Tables, multiply, tied_logits, uniform, unit_rows
from sottovoce.models.lstm import Gate, with_gradient


def _scan(
    to_gates: Array, to_candidate: Array, words: Float[Array, "time gates"], state: Array
) -> tuple[tuple[Float[Array, "time hidden"], Array], Float[Array, "time hidden"]]:
    """The hidden states and the last of them; and what the reset gate kept of the state at each time step."""

    def step(hidden: Array, word: Array) -> tuple[Array, tuple[Array, Array]]:
        for_reset, for_update, for_candidate = jnp.split(word, 3)
        from_reset, from_update = jnp.split(multiply(hidden, to_gates), 2)
        reset, update = jax.nn.sigmoid(for_reset + from_reset), jax.nn.sigmoid(for_update + from_update)
        kept = reset * hidden
        candidate = jnp.tanh(for_candidate + multiply(kept, to_candidate))
        hidden = update * hidden + (1 - update) * candidate
        return hidden, (hidden, kept)

    # With narrow weights this is on a GPU, where a loop takes longer to begin a time step than to compute it.
    written_out = to_gates.dtype == jnp.bfloat16 and len(words) <= 32
    state, (hidden, kept) = jax.lax.scan(step, state, words, unroll=len(words) if written_out else 1)
    return (hidden, state), kept


class GRU(eqx.Module):
    """Embedding, one GRU layer, a projection back to the embedding, softmax against the same embedding.

    Nine parameter vectors: the embedding, weight and bias of each of three gates, weight and bias of the projection.
    """

    adaptable: ClassVar = ("projection",)

    embedding: Float[Array, "vocabulary size"]
    reset_gate: Gate
    update_gate: Gate
    candidate: Gate
    projection: Float[Array, "size hidden"]
    projection_bias: Float[Array, " size"]

    def __init__(self, vocabulary: int, *, embedding: int = 96, hidden: int = 256, key: PRNGKeyArray):
        keys = jax.random.split(key, 5)
        # Rows start at norm 1: a gradient through the normalisation scales like 1 / norm.
        self.embedding = unit_rows(jax.random.normal(keys[0], (vocabulary, embedding)))
        self.reset_gate = Gate(embedding, hidden, bias=0.0, key=keys[1])
        self.update_gate = Gate(embedding, hidden, bias=0.0, key=keys[2])
        self.candidate = Gate(embedding, hidden, bias=0.0, key=keys[3])
        self.projection = uniform(keys[4], (embedding, hidden), hidden)
        self.projection_bias = jnp.zeros((embedding,))

    def initial_state(self) -> Array:
        return jnp.zeros((self.projection.shape[1],))

    def read(
        self, tokens: Int[Array, " time"], state: Array, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], Array]:
        return self.read_rows(self.embedding[tokens], state, key)

    def read_rows(
        self, rows: Float[Array, "time size"], state: Array, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], Array]:
        gates, size = (self.reset_gate, self.update_gate, self.candidate), self.embedding.shape[1]
        from_word = jnp.concatenate([gate.weight[:, :size] for gate in gates])  # [3 hidden, embedding]
        bias = jnp.concatenate([gate.bias for gate in gates])
        words = multiply(unit_rows(rows), from_word) + bias  # [time, 3 hidden]
        # The candidate sees the state after the reset gate, so its product comes after that of the two gates.
        to_gates = jnp.concatenate([gate.weight[:, size:] for gate in gates[:2]])
        to_candidate = self.candidate.weight[:, size:]

        constant = jax.lax.stop_gradient
        scan = partial(_scan, constant(to_gates), constant(to_candidate))
        result, back, kept = jax.vjp(scan, constant(words), constant(state), has_aux=True)
        before = jnp.concatenate([constant(state)[None], result[0][:-1]])
        fed_back = jnp.concatenate([multiply(before, to_gates), multiply(kept, to_candidate)], axis=1)
        hidden, state = with_gradient(result, back, words + fed_back, state)
        return multiply(hidden, self.projection) + self.projection_bias, state

    def tables(self) -> Tables:
        return Tables("embedding", "embedding", unit=True)

    def logits(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return tied_logits(outputs, self.embedding)
