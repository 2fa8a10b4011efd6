"""One LSTM layer over time, with a gradient that is one matrix product for all time steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

LayerState = tuple[Array, Array]  # hidden state and cell


class Gate(eqx.Module):
    """The weight and bias of one gate, applied to [word, hidden]."""

    weight: Float[Array, "hidden joint"]
    bias: Float[Array, " hidden"]

    def __init__(self, embedding: int, hidden: int, *, bias: float, key: PRNGKeyArray):
        bound = hidden**-0.5
        self.weight = jax.random.uniform(key, (hidden, embedding + hidden), minval=-bound, maxval=bound)
        self.bias = jnp.full((hidden,), bias)


def read_layer(
    gates: tuple[Gate, Gate, Gate, Gate],
    inputs: Float[Array, "time inputs"],
    state: LayerState,
    mask: Float[Array, " hidden"] | None = None,
) -> tuple[Float[Array, "time hidden"], LayerState]:
    """One LSTM layer over time.

    Args:
        gates: the input, forget, cell and output gate.
        mask: multiplies the recurrent input (dropout).
    """
    weight = jnp.concatenate([gate.weight for gate in gates])  # [4 hidden, inputs + hidden]
    bias = jnp.concatenate([gate.bias for gate in gates])
    from_word, from_hidden = jnp.split(weight, [inputs.shape[1]], axis=1)
    words = inputs @ from_word.T + bias  # [time, 4 hidden]: the words' share of all gates is one product

    constant = jax.lax.stop_gradient
    scan = partial(_scan, constant(from_hidden), constant(mask))
    result, back = jax.vjp(scan, constant(words), constant(state))
    before = jnp.concatenate([constant(state[0])[None], result[0][:-1]])
    fed_back = (before if mask is None else before * mask) @ from_hidden.T
    return _with_gradient(result, back, words + fed_back, state)


def _scan(
    from_hidden: Float[Array, "gates hidden"],
    mask: Float[Array, " hidden"] | None,
    words: Float[Array, "time gates"],
    state: LayerState,
) -> tuple[Float[Array, "time hidden"], LayerState]:
    def step(state: LayerState, word: Array) -> tuple[LayerState, Array]:
        hidden, cell = state
        recurrent = hidden if mask is None else hidden * mask
        i, f, g, o = jnp.split(word + from_hidden @ recurrent, 4)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, hidden = jax.lax.scan(step, state, words)
    return hidden, state


@jax.custom_vjp
def _with_gradient(result: Any, back: Any, gates: Float[Array, "time gates"], state: LayerState) -> Any:
    """The result of a scan over time steps, as a function of the inputs of the gates at all time steps.

    JAX would differentiate the scan by adding to the gradient of the recurrent weight at every time step, and read and
    write all of it each time. Here the inputs of the gates are one product with the hidden states, so that gradient is
    one product too. The value of that product is not used.
    """
    del back, gates, state
    return result


def _forward(result: Any, back: Any, gates: Array, state: LayerState) -> tuple[Any, Any]:
    del gates, state
    return result, back


def _backward(back: Any, gradient: Any) -> tuple:
    gates, state = back(gradient)  # words enter the gates by addition, so both have the same gradient
    return None, None, gates, state


_with_gradient.defvjp(_forward, _backward)
