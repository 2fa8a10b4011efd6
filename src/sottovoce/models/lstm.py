"""The LSTM of McMahan et al. 2018, appendix B: one embedding for input and output."""

from __future__ import annotations

from functools import partial
from typing import Any

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


def read_layer(
    gates: tuple[Gate, Gate, Gate, Gate], inputs: Float[Array, "time inputs"], state: tuple[Array, Array],
    mask: Float[Array, " hidden"] | None = None,
) -> tuple[Float[Array, "time hidden"], tuple[Array, Array]]:  # fmt: skip
    """One LSTM layer over time, given its input, forget, cell and output gate; `mask` is on the recurrent input."""
    weight = jnp.concatenate([gate.weight for gate in gates])  # [4 hidden, inputs + hidden]
    bias = jnp.concatenate([gate.bias for gate in gates])
    from_word, from_hidden = jnp.split(weight, [inputs.shape[1]], axis=1)
    words = inputs @ from_word.T + bias  # [time, 4 hidden]: the words' share of all gates is one product

    constant = jax.lax.stop_gradient
    loop = partial(_moments, constant(from_hidden), constant(mask))
    result, back = jax.vjp(loop, constant(words), constant(state))
    before = jnp.concatenate([constant(state[0])[None], result[0][:-1]])
    fed_back = (before if mask is None else before * mask) @ from_hidden.T
    return _differentiate(result, back, words + fed_back, state)


def _moments(
    from_hidden: Float[Array, "gates hidden"], mask: Float[Array, " hidden"] | None,
    words: Float[Array, "time gates"], state: tuple[Array, Array],
) -> tuple[Float[Array, "time hidden"], tuple[Array, Array]]:  # fmt: skip
    def moment(state: tuple[Array, Array], word: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        recurrent = hidden if mask is None else hidden * mask
        i, f, g, o = jnp.split(word + from_hidden @ recurrent, 4)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, hidden = jax.lax.scan(moment, state, words)
    return hidden, state


@jax.custom_vjp
def _differentiate(result: Any, back: Any, gates: Float[Array, "time gates"], state: tuple[Array, Array]) -> Any:
    """The result of a loop over moments, as something that depends on what came into the gates at all of them.

    Differentiated as it is, the loop would add to the recurrent weight's gradient at every moment, and read and write
    all of it each time. Given the gates as one product with what was fed back, whose value nobody needs, that gradient
    is one product too.
    """
    del back, gates, state
    return result


def _forward(result: Any, back: Any, gates: Array, state: tuple[Array, Array]) -> tuple[Any, Any]:
    del gates, state
    return result, back


def _backward(back: Any, slopes: Any) -> tuple:
    gates, state = back(slopes)  # words enter the gates by addition: their gradient is the gates'
    return None, None, gates, state


_differentiate.defvjp(_forward, _backward)


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
        # Only the rows that are read are normalised here.
        gates = (self.input_gate, self.forget_gate, self.cell_gate, self.output_gate)
        hidden, state = read_layer(gates, unit_rows(self.embedding[tokens]), state)
        return hidden @ self.projection.T + self.projection_bias, state

    def score(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return tied_scores(outputs, self.embedding)
