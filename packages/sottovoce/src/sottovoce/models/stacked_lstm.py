"""LSTM layers with dropout between them (Zaremba et al. 2014), as Popov et al. 2018 use: 2 x 650, dropout 0.5."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import Tables, check_tied, uniform, unit_rows
from sottovoce.models.lstm import Gate, LayerState, new_gates, read_layer


class Layer(eqx.Module):
    """The four gates of one LSTM layer."""

    input_gate: Gate
    forget_gate: Gate
    cell_gate: Gate
    output_gate: Gate

    def __init__(self, inputs: int, hidden: int, *, key: PRNGKeyArray):
        gates = new_gates(inputs, hidden, jax.random.split(key, 4))
        self.input_gate, self.forget_gate, self.cell_gate, self.output_gate = gates

    def __call__(
        self, inputs: Float[Array, "time inputs"], state: LayerState, mask: Float[Array, " hidden"] | None
    ) -> tuple[Float[Array, "time hidden"], LayerState]:
        return read_layer((self.input_gate, self.forget_gate, self.cell_gate, self.output_gate), inputs, state, mask)


class StackedLSTM(eqx.Module):
    """Embedding, LSTM layers, softmax over a table of its own or the embedding.

    Dropout is on the input of each layer and on the output of the last, never on the recurrent input; every time step
    has its own mask. With `variational` (Gal and Ghahramani 2016) the time steps of an unroll share one mask, and the
    recurrent input has one too. There is no dropout in inference.

    A tied table has rows of any length, and a bias: with rows of length 1 and no bias, this model, which has no
    projection before the logits, learned word frequencies only.
    """

    adaptable: ClassVar = ("output",)

    embedding: Float[Array, "vocabulary size"]
    layers: tuple[Layer, ...]
    output: Float[Array, "vocabulary hidden"] | None  # None: tied to the embedding
    output_bias: Float[Array, " vocabulary"]
    dropout: float = eqx.field(static=True)
    variational: bool = eqx.field(static=True)

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 650,
        hidden: int | None = None,
        layers: int = 2,
        dropout: float = 0.5,
        variational: bool = False,
        tied: bool = False,
        key: PRNGKeyArray,
    ):
        hidden = hidden or embedding
        if tied:
            check_tied(embedding, hidden)
        first, last, *keys = jax.random.split(key, 2 + layers)
        if tied:
            self.embedding = jax.random.uniform(first, (vocabulary, embedding), minval=-0.1, maxval=0.1)
        else:
            self.embedding = unit_rows(jax.random.normal(first, (vocabulary, embedding)))
        sizes = [embedding, *[hidden] * (layers - 1)]
        self.layers = tuple(Layer(size, hidden, key=each) for size, each in zip(sizes, keys, strict=True))
        self.output = None if tied else uniform(last, (vocabulary, hidden), hidden)
        self.output_bias = jnp.zeros((vocabulary,))
        self.dropout, self.variational = dropout, variational

    def initial_state(self) -> tuple[LayerState, ...]:
        hidden = self.layers[0].input_gate.bias
        return tuple((jnp.zeros_like(hidden), jnp.zeros_like(hidden)) for _ in self.layers)

    def read(
        self, tokens: Int[Array, " time"], state: tuple[LayerState, ...], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time hidden"], tuple[LayerState, ...]]:
        return self.read_rows(self.embedding[tokens], state, key)

    def read_rows(
        self, rows: Float[Array, "time size"], state: tuple[LayerState, ...], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time hidden"], tuple[LayerState, ...]]:
        words, states = rows, []
        for number, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            recurrent = self._mask(key, 2 * number + 1, before[0].shape) if self.variational else None
            words, after = layer(self._drop(words, key, 2 * number), before, recurrent)
            states.append(after)
        return self._drop(words, key, 2 * len(self.layers)), tuple(states)

    def logits(self, outputs: Float[Array, "*any hidden"]) -> Float[Array, "*any vocabulary"]:
        table = self.embedding if self.output is None else self.output
        return outputs @ table.T + self.output_bias

    def tables(self) -> Tables:
        return Tables("embedding", "embedding" if self.output is None else "output", bias="output_bias")

    def _drop(self, values: Float[Array, "time size"], key: PRNGKeyArray | None, place: int) -> Array:
        shape = values.shape[1:] if self.variational else values.shape
        mask = self._mask(key, place, shape)
        return values if mask is None else values * mask

    def _mask(self, key: PRNGKeyArray | None, place: int, shape: tuple[int, ...]) -> Array | None:
        """0, or 1 / (1 - dropout) for what is kept; None where nothing is dropped."""
        if key is None or not self.dropout:
            return None
        kept = jax.random.bernoulli(jax.random.fold_in(key, place), 1 - self.dropout, shape)
        return kept / jnp.float32(1 - self.dropout)
