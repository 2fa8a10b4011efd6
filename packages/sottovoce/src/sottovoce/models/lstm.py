"""The LSTM of McMahan et al. 2018, appendix B: one embedding for input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import Tables, aligned, multiply, tied_logits, uniform, unit_rows

LayerState = tuple[Array, Array]  # hidden state and cell


class Gate(eqx.Module):
    """The weight and bias of one gate, applied to [word, hidden]."""

    weight: Float[Array, "hidden joint"]
    bias: Float[Array, " hidden"]

    def __init__(self, embedding: int, hidden: int, *, bias: float, key: PRNGKeyArray):
        self.weight = uniform(key, (hidden, embedding + hidden), hidden)
        self.bias = jnp.full((hidden,), bias, jnp.float32)  # not of a weak type, which would compile again


Gates = tuple[Gate, Gate, Gate, Gate]  # the input, forget, cell and output gate


def new_gates(inputs: int, hidden: int, keys: PRNGKeyArray) -> Gates:
    """Fresh gates. The forget gate starts with bias 1: it keeps the cell until it learns to forget."""
    pairs = zip((0.0, 1.0, 0.0, 0.0), keys, strict=True)
    first, second, third, fourth = (Gate(inputs, hidden, bias=bias, key=key) for bias, key in pairs)
    return first, second, third, fourth


def read_layer(
    gates: Gates, inputs: Float[Array, "time inputs"], state: LayerState, mask: Float[Array, " hidden"] | None = None
) -> tuple[Float[Array, "time hidden"], LayerState]:
    """One LSTM layer over time. `mask` multiplies the recurrent input (dropout)."""
    # Not one matrix that is then cut in two: it would be written and read once more.
    from_word = jnp.concatenate([aligned(gate.weight[:, : inputs.shape[1]]) for gate in gates])  # [4 hidden, inputs]
    from_hidden = jnp.concatenate([aligned(gate.weight[:, inputs.shape[1] :]) for gate in gates])  # [4 hidden, hidden]
    bias = jnp.concatenate([gate.bias for gate in gates])
    words = multiply(inputs, from_word) + bias  # [time, 4 hidden]: the words' share of all gates is one product

    constant = jax.lax.stop_gradient
    result, back = _recurrence.get()(constant(from_hidden), constant(mask), constant(words), constant(state))
    before = jnp.concatenate([constant(state[0])[None], result[0][:-1]])
    fed_back = multiply(before if mask is None else before * mask, from_hidden)
    return with_gradient(result, back, words + fed_back, state)


def _scan(
    from_hidden: Array, mask: Array | None, words: Float[Array, "time gates"], state: LayerState
) -> tuple[Float[Array, "time hidden"], LayerState]:
    def step(state: LayerState, word: Array) -> tuple[LayerState, Array]:
        hidden, cell = state
        recurrent = hidden if mask is None else hidden * mask
        gates = word + multiply(recurrent, from_hidden)
        # The sigmoid of all of them, though one is not used: in one piece it is a loop that a CPU runs on vectors.
        i, f, _, o = jnp.split(jax.nn.sigmoid(gates), 4)
        cell = f * cell + i * jnp.tanh(jnp.split(gates, 4)[2])
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, hidden = jax.lax.scan(step, state, words)
    return hidden, state


def plain_recurrence(
    from_hidden: Array, mask: Array | None, words: Float[Array, "time gates"], state: LayerState
) -> tuple[tuple[Float[Array, "time hidden"], LayerState], Any]:
    """The hidden states and the last state; and a function from their gradient to that of the words and the state."""
    return jax.vjp(partial(_scan, from_hidden, mask), words, state)


_recurrence: ContextVar[Callable] = ContextVar("recurrence", default=plain_recurrence)


@contextmanager
def reading_with(recurrence: Callable | None) -> Iterator[None]:
    """Layers that are traced within read with this in place of `plain_recurrence`; None leaves it."""
    before = _recurrence.set(recurrence or plain_recurrence)
    try:
        yield
    finally:
        _recurrence.reset(before)


@jax.custom_vjp
def with_gradient(result: Any, back: Any, gates: Float[Array, "time gates"], state: LayerState) -> Any:
    """The result of a scan over time steps, as a function of the inputs of the gates at all time steps.

    JAX would add to the gradient of the recurrent weight at every time step of the scan, and read and write all of it
    each time. Here the inputs of the gates are one product with the hidden states, so that gradient is one product too.
    The value of that product is not used.
    """
    return result


def _forward(result: Any, back: Any, gates: Array, state: LayerState) -> tuple[Any, Any]:
    return result, back


def _backward(back: Any, gradient: Any) -> tuple:
    gates, state = back(gradient)  # words enter the gates by addition, so both have the same gradient
    return None, None, gates, state


with_gradient.defvjp(_forward, _backward)


class LSTM(eqx.Module):
    """Embedding, one LSTM layer, a projection back to the embedding, softmax against the same embedding.

    Eleven parameter vectors: the embedding, weight and bias of each of four gates, weight and bias of the projection.
    """

    adaptable: ClassVar = ("projection",)

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
        gates = new_gates(embedding, hidden, keys[1:5])
        self.input_gate, self.forget_gate, self.cell_gate, self.output_gate = gates
        self.projection = uniform(keys[5], (embedding, hidden), hidden)
        self.projection_bias = jnp.zeros((embedding,))

    def initial_state(self) -> tuple[Array, Array]:
        hidden = self.projection.shape[1]
        return jnp.zeros((hidden,)), jnp.zeros((hidden,))

    def read(
        self, tokens: Int[Array, " time"], state: tuple[Array, Array], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], tuple[Array, Array]]:
        return self.read_rows(self.embedding[tokens], state, key)

    def read_rows(
        self, rows: Float[Array, "time size"], state: tuple[Array, Array], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], tuple[Array, Array]]:
        gates = (self.input_gate, self.forget_gate, self.cell_gate, self.output_gate)
        hidden, state = read_layer(gates, unit_rows(rows), state)
        return multiply(hidden, self.projection) + self.projection_bias, state

    def tables(self) -> Tables:
        return Tables("embedding", "embedding", unit=True)

    def logits(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return tied_logits(outputs, self.embedding)
