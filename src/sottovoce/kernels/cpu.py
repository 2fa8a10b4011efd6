"""The products of `lstm_users` for a CPU, one user at a time, in the shapes that XLA computes fastest:

- No product has an axis of users: XLA would not use its fast matrix product.
- The long side of a product comes first: logits are [words, tokens], and the recurrence keeps its states as columns.
- Time steps are a loop: unrolled, each would compute all earlier ones again inside its fusion.
- Probabilities are computed once and kept for the second pass; their scale there is put into the smaller factor.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sottovoce.kernels.lstm_users import LN2, Products, Step, activate, by_row, gate_gradients, squares_of

# 2^x on [-1/2, 1/2], a fit at Chebyshev's points: within 3e-7 of it, where a float32 is within 6e-8.
_POWERS = (1.0, 0.6931472, 0.24022211, 0.05550341, 0.00967079, 0.00133953)
_WHOLE = 1.5 * 2**23  # added to a number, it leaves the nearest whole one in the low bits
_WHOLE_BITS = 0x4B400000


def exp2(power: Array) -> Array:
    """2 to a power of at most 126, twice as fast as by way of exp."""
    power = jnp.maximum(power, -126.0)
    bits = jax.lax.bitcast_convert_type(power + jnp.float32(_WHOLE), jnp.int32)
    rest = power - (bits - jnp.int32(_WHOLE_BITS)).astype(jnp.float32)
    result = jnp.full_like(rest, _POWERS[-1])
    for factor in reversed(_POWERS[:-1]):
        result = result * rest + factor
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(result, jnp.int32) + (bits << 23), jnp.float32)


def _scores(outputs: Array, table: Array, delta: Array, scale: Array, offset: Array) -> tuple[Array, Array, Any]:
    full = table + scale[0] * delta[0]
    inverse = jax.lax.rsqrt(jnp.maximum(jnp.sum(full * full, -1, keepdims=True), 1e-24))
    rows = full * inverse
    chances = exp2(rows @ outputs[0].T - offset[0])
    return jnp.sum(chances, axis=0)[None], (chances.T @ rows)[None], (chances, rows, inverse, offset)


def _step_table(
    outputs: Array, of_words: Array, table: Array, delta: Array, level: Array, share: Array, targets: Array,
    inputs: Array, step: Step, kept: Any,
) -> tuple[Array, Array]:  # fmt: skip
    chances, rows, inverse, offset = kept
    wanted = (share[0] * LN2)[:, None] * outputs[0]
    gradient = chances @ (wanted * exp2(offset - level)[0][:, None])
    gradient = gradient.at[targets[0]].add(-wanted).at[inputs[0]].add(of_words[0])
    gradient = inverse * (gradient - rows * jnp.sum(rows * gradient, -1, keepdims=True))
    new = step.scale * delta[0] - step.learning_rate * gradient
    return jnp.where(step.scale < 0, delta[0], new)[None], jnp.sum(jnp.square(new))[None]


def _step(left: Array, right: Array, delta: Array, step: Step) -> tuple[Array, Array]:
    new = by_row(step.scale, delta) - step.learning_rate * (left[0].T @ right[0])[None]
    return jnp.where(step.scale[0, 0] < 0, delta, new), squares_of(new, step)


def _turned(parts: Array) -> Array:
    """Lanes first instead of last, or the reverse."""
    return parts.transpose(0, 2, 1)


def _read(
    words: Array, bias: Array, recurrent: Array, delta: Array, scale: Array, hidden: Array, cell: Array
) -> tuple[Array, Array, Array]:
    weight = recurrent + by_row(scale, delta)[0]

    def time_step(carry: tuple, word: Array) -> tuple:
        hidden, cell = carry
        i, f, g, o = activate(word + weight @ hidden)
        cell = f * cell + i * g
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), (jnp.concatenate([i, f, g, o]), cell, hidden)

    start = (hidden[0].T, cell[0].T)
    _, (gates, cells, hiddens) = jax.lax.scan(time_step, start, _turned(words[0]) + bias[0][:, None])
    cells = jnp.concatenate([cell, _turned(cells)])
    hiddens = jnp.concatenate([hidden, _turned(hiddens)])
    return _turned(gates)[None], cells[None], hiddens[None]


def _read_back(above: Array, gates: Array, cells: Array, recurrent: Array, delta: Array, scale: Array) -> Array:
    weight = (recurrent + by_row(scale, delta)[0]).T
    above, gates, cells = _turned(above[0]), _turned(gates[0]), _turned(cells[0])

    def time_step(carry: tuple, now: tuple) -> tuple:
        of_hidden, of_cell = carry
        above, gates, before, after = now
        gradient, of_cell = gate_gradients(gates, before, after, above + of_hidden, of_cell)
        return (weight @ gradient, of_cell), gradient

    start = (jnp.zeros_like(cells[0]), jnp.zeros_like(cells[0]))
    _, gradients = jax.lax.scan(time_step, start, (above, gates, cells[:-1], cells[1:]), reverse=True)
    return _turned(gradients)[None]


ONE_USER = Products(jnp.float32, jnp.float32, _scores, _step_table, _step, _read, _read_back)
