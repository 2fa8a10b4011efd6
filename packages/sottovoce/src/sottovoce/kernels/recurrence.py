"""The recurrence of an LSTM layer for all users and lanes of a block at once, for models that read with `read_layer`.

A model has no axis of users or lanes: `jax.vmap` adds them. The recurrence here says what to do once it has them both.
Its numbers between time steps are as narrow as its products, and its time steps are written out one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.tree_util import Partial
from jaxtyping import Array

from sottovoce.kernels import hopper, lstm_cuda
from sottovoce.kernels.lstm_users import activate, gate_gradients
from sottovoce.models.head import aligned
from sottovoce.models.lstm import LayerState, plain_recurrence

LONGEST = 32  # time steps that are written out


class Block(NamedTuple):
    """The recurrence of a block of users. Arrays are [users, lanes, ...]; the weight is [users, gates, hidden]."""

    read: Callable  # weight, words' share of the gates, hidden state, cell -> hidden states, last cell, what is kept
    read_back: Callable  # weight, what was kept, gradient of the hidden states -> gradient of the inputs of the gates


class LSTMRecurrence:
    """Reads a layer by a `Block`. The states before and after an unroll are constants: no gradient passes them.

    Args:
        kind: of the weight; layers with others read with `plain_recurrence`.
        block: how to compute it.
        shape: [time, gates] that the block is written for; other layers read with `written_out`. None: all are.
    """

    def __init__(self, kind: Any, block: Block, shape: tuple[int, int] | None = None):
        self.kind, self.shape = kind, shape
        self.written = _Batched(block, block if shape is None else stacked)
        self.others = self.written if shape is None else _Batched(written_out, written_out)

    def __call__(
        self, from_hidden: Array, mask: Array | None, words: Array, state: LayerState
    ) -> tuple[tuple[Array, LayerState], Any]:
        """As `plain_recurrence`."""
        if mask is not None or from_hidden.dtype != self.kind or len(words) > LONGEST:
            return plain_recurrence(from_hidden, mask, words, state)
        batched = self.written if self.shape is None or words.shape == self.shape else self.others
        hidden, cell, kept = batched.read(from_hidden, words, *state)
        return (hidden, (hidden[-1], cell)), Partial(partial(_back, batched), from_hidden, kept)


def _back(batched: _Batched, from_hidden: Array, kept: Any, gradient: Any) -> tuple[Array, LayerState]:
    of_hidden, (_, of_cell) = gradient
    return batched.read_back(from_hidden, kept, of_hidden), (jnp.zeros_like(of_cell), jnp.zeros_like(of_cell))


class _Batched:
    """A block's functions as those of one lane of one user, with a `vmap` of their own.

    `alike` is the same for any number of lanes, and keeps the same arrays.
    """

    def __init__(self, block: Block, alike: Block):
        self.read = _over_lanes_and_users(block.read, alike.read)
        self.read_back = _over_lanes_and_users(block.read_back, alike.read_back)


def _over_lanes_and_users(block: Callable, alike: Callable) -> Any:
    """A function of a weight and other inputs of one lane of one user, whose `vmap` over lanes, then users, is `block`.

    Where all users have the same weight, their lanes are those of one user, who is computed by `alike`.
    """

    @custom_vmap
    def lanes(weight: Array, inputs: Any) -> Any:
        return _first(alike(weight[None], *_as_one(inputs)))

    @lanes.def_vmap
    def _(users: int, in_batched: Any, weight: Array, inputs: Any) -> Any:
        inputs = _repeated(users, in_batched[1], inputs)
        if in_batched[0]:
            found = block(weight, *inputs)
        else:
            wide = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), inputs)
            found = alike(weight[None], *wide)
            found = jax.tree.map(lambda leaf: leaf.reshape(users, -1, *leaf.shape[2:]), found)
        return found, jax.tree.map(lambda _: True, found)

    @custom_vmap
    def one(weight: Array, inputs: Any) -> Any:
        return _first(lanes(weight, _as_one(inputs)))

    @one.def_vmap
    def _(count: int, in_batched: Any, weight: Array, inputs: Any) -> Any:
        if in_batched[0]:
            raise NotImplementedError("the weight of an LSTM layer may differ by user, not by lane")
        found = lanes(weight, _repeated(count, in_batched[1], inputs))
        return found, jax.tree.map(lambda _: True, found)

    return lambda weight, *inputs: one(weight, inputs)


def _as_one(inputs: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], inputs)


def _first(found: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], found)


def _repeated(count: int, batched: Any, inputs: Any) -> Any:
    return jax.tree.map(
        lambda own, leaf: leaf if own else jnp.broadcast_to(leaf, (count, *leaf.shape)), batched, inputs
    )


# In JAX, one time step after the other.


def _read(weight: Array, words: Array, hidden: Array, cell: Array) -> tuple[Array, Array, Any]:
    gates, cells, hiddens, narrow = [], [cell], [], hidden.astype(weight.dtype)
    for time in range(words.shape[2]):
        product = jnp.einsum("ulh,ugh->ulg", _as_wide(narrow, weight), weight, preferred_element_type=jnp.float32)
        i, f, g, o = activate(words[:, :, time] + product, axis=-1)
        cells.append(f * cells[-1] + i * g)
        hiddens.append(o * jnp.tanh(cells[-1]))
        narrow = hiddens[-1].astype(weight.dtype)
        gates.append(jnp.concatenate([i, f, g, o], axis=-1).astype(weight.dtype))
    return jnp.stack(hiddens, axis=2), cells[-1], (tuple(gates), tuple(cells))


def _read_back(weight: Array, kept: Any, above: Array) -> Array:
    gates, cells = kept
    gradients, of_hidden, of_cell = [], jnp.zeros_like(cells[0]), jnp.zeros_like(cells[0])
    for time in reversed(range(len(gates))):
        of_hidden = above[:, :, time] + of_hidden
        gradient, of_cell = gate_gradients(
            gates[time].astype(jnp.float32), cells[time], cells[time + 1], of_hidden, of_cell, axis=-1
        )
        gradients.append(gradient.astype(weight.dtype))
        of_hidden = jnp.einsum("ulg,ugh->ulh", gradients[-1], weight, preferred_element_type=jnp.float32)
        of_hidden = of_hidden[..., : of_cell.shape[-1]]
    return jnp.stack(gradients[::-1], axis=2).astype(jnp.float32)


def _as_wide(x: Array, weight: Array) -> Array:
    return aligned(x) if x.shape[-1] < weight.shape[-1] else x


def _read_stacked(*given: Array) -> tuple[Array, Array, Any]:
    hidden, cell, (gates, cells) = _read(*given)
    return hidden, cell, (jnp.stack(gates, axis=2), jnp.stack(cells, axis=2))


def _read_back_stacked(weight: Array, kept: Any, above: Array) -> Array:
    gates, cells = (tuple(each[:, :, time] for time in range(each.shape[2])) for each in kept)
    return _read_back(weight, (gates, cells), above)


written_out = Block(_read, _read_back)  # keeps an array for each time step
stacked = Block(_read_stacked, _read_back_stacked)  # keeps [users, lanes, time, ...], as the LSTM's kernels do


# By the LSTM's own kernels.


def _read_on_hopper(weight: Array, words: Array, hidden: Array, cell: Array) -> tuple[Array, Array, Any]:
    users, kind = len(words), weight.dtype
    no_bias = jnp.zeros((users, words.shape[-1]))
    gates, cells, _, after = lstm_cuda._read(
        words.swapaxes(1, 2).astype(kind), no_bias, *_as_update(weight), hidden.astype(kind), cell
    )
    kept = gates.swapaxes(1, 2), cells.swapaxes(1, 2)
    return after.swapaxes(1, 2).astype(jnp.float32), cells[:, -1], kept


def _read_back_on_hopper(weight: Array, kept: Any, above: Array) -> Array:
    gates, cells = (each.swapaxes(1, 2) for each in kept)
    gradients, _ = lstm_cuda._read_back(above.swapaxes(1, 2).astype(weight.dtype), gates, cells, *_as_update(weight))
    return gradients.swapaxes(1, 2).astype(jnp.float32)


def _as_update(weight: Array) -> tuple[Array, Array, Array]:
    """The weight as received, Δ and the scales of the gates: those kernels take a weight as received + scale · Δ."""
    return jnp.zeros(weight.shape[1:], weight.dtype), weight.astype(jnp.float16), jnp.ones((len(weight), 4))


@cache
def in_jax(kind: Any = jnp.bfloat16) -> LSTMRecurrence:
    """In JAX, for layers of any size."""
    return LSTMRecurrence(kind, written_out)


@cache
def find_recurrence(lanes: int, unroll: int) -> LSTMRecurrence:
    """By the LSTM's own kernels, for layers of 256 where they run; in JAX for others."""
    if (lanes, unroll) == (lstm_cuda.LANES, lstm_cuda.UNROLL) and hopper.can_run(lstm_cuda.source("float16")):
        block = Block(_read_on_hopper, _read_back_on_hopper)
        return LSTMRecurrence(jnp.bfloat16, block, (unroll, 4 * lstm_cuda.HIDDEN))
    return in_jax()
