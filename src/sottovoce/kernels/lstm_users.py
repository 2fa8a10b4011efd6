"""Federated averaging of the paper's LSTM for a block of users: `FedAvg` with its gradient written out.

What differs from `jax.vmap(FedAvg)`:

- Logits need not reach memory. One pass over a user's table gives the log-sum-exp and the gradient of the outputs; a
  second forms the table's gradient, applies the step and adds up its squares.
- The clip is one number a user, kept beside the update and used when it is next read: Δ = scale · stored.
- Between steps Δ may be kept in float16, in units of a power of two: see `unit_of`.
- Users who have finished, and empty seats, are passed over; whatever is computed for them is not used.
- The words' share of the gates, and every gradient of a weight, is one product for all tokens of a step.

Each of these is a function in `Products`: `PLAIN` has them in JAX, and is what the CUDA kernels are tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sottovoce.local.objective import plain
from sottovoce.local.update import FedAvg, User, UserResult, UserUpdate, cut_into_lanes, send
from sottovoce.models.head import unit_rows
from sottovoce.models.lstm import LSTM, Gate
from sottovoce.privacy.clipping import SAFE_SHARE, FlatClip

LN2 = 0.6931471805599453  # scores and levels are in base 2, which is what the hardware has


class Parts(NamedTuple):
    """A model, or with a leading axis of users their updates: one leaf for each kind of product."""

    embedding: Any  # [vocabulary, size]
    word: Any  # [4 hidden, size]: input, forget, cell and output gate, one above the other
    hidden: Any  # [4 hidden, hidden]
    bias: Any  # [4 hidden]
    projection: Any  # [hidden, size]
    projection_bias: Any  # [size]


class Step(NamedTuple):
    """How one weight is stepped: stored ← (scale · stored - η · gradient) / unit."""

    scale: Array  # of what is stored: the clip and the unit; below 0 for a user who has finished and is left alone
    unit: Array
    learning_rate: float


class Products(NamedTuple):
    """The parts of a local step that take the time."""

    kind: Any  # of the numbers that are multiplied; sums are float32
    stored: Any  # of Δ between steps: float32, or float16 where it is clipped after every step
    scores: Callable  # outputs, table, Δ, scale, offset -> Σ exp2, Σ exp2 · row, what it keeps for the next
    step_table: Callable  # ..., what was kept -> new Δ of the table, its squares
    step: Callable  # left, right, Δ, step -> Δ stepped by leftᵀ right, its squares
    read: Callable  # the recurrence
    read_back: Callable  # its gradient


def fits(update: UserUpdate, model: Any) -> bool:
    """Is this what `train_users` computes?"""
    return (
        isinstance(update, FedAvg)
        and update.objective is plain
        and update.epochs == 1
        and isinstance(update.clipping, FlatClip)
        and type(model) is LSTM  # a subclass may read otherwise
    )


def train_users(
    products: Products, update: FedAvg, model: LSTM, users: User, clip_norms: Array, last: Any
) -> UserResult:
    """What each user of a block sends, as `jax.vmap(update)` gives it but in `Parts`; `clip_norms` is [users, 1].

    Updates stay in parts because putting each together would write all of them once more: `model_of` is for their sum.
    """
    received, kind = parts_of(model), products.kind
    count, width, lanes = users.length.shape[0], received.hidden.shape[1], update.batch
    tokens_a_step = lanes * update.unroll
    steps = jax.tree.map(
        # [steps, users, tokens], the lanes of one moment side by side.
        lambda part: part.transpose(1, 0, 3, 2).reshape(part.shape[1], count, tokens_a_step),
        jax.vmap(partial(cut_into_lanes, lanes=lanes, unroll=update.unroll))(users),
    )
    table, recurrent = received.embedding.astype(kind), received.hidden.astype(kind)
    who, bound = jnp.arange(count)[:, None], clip_norms[:, 0] * SAFE_SHARE
    unit, needed = unit_of(clip_norms[:, 0], products.stored), update.steps(users.length)
    multiply = partial(jnp.einsum, preferred_element_type=jnp.float32)

    def step(index: Array, carry: tuple) -> tuple:
        stored, clip, hidden, cell, cut, length, losses = carry
        inputs, targets, mask = (part[index] for part in steps)
        active = index < needed
        scale = jnp.where(active, clip * unit, -1.0)
        wide = scale[:, None, None]
        word = (received.word + wide * stored.word).astype(kind)
        projection = (received.projection + wide * stored.projection).astype(kind)
        bias = received.bias + clip[:, None] * stored.bias
        projection_bias = received.projection_bias + clip[:, None] * stored.projection_bias

        def rows(ids: Array) -> Array:
            return unit_rows(table[ids].astype(jnp.float32) + wide * stored.embedding[who, ids])

        # Forwards.
        words = rows(inputs).astype(kind)
        gates, cells, hiddens = products.read(
            jnp.einsum("ute,uge->utg", words, word).reshape(count, update.unroll, lanes, 4 * width), bias, recurrent,
            stored.hidden, scale, hidden, cell,
        )  # fmt: skip
        after = hiddens[:, 1:].reshape(count, tokens_a_step, width)
        before = hiddens[:, :-1].reshape(count, tokens_a_step, width)
        outputs = multiply("uth,uhe->ute", after, projection) + projection_bias[:, None]
        outputs = (outputs / LN2).astype(kind)
        offset = offset_of(outputs)
        total, mean, kept = products.scores(outputs, table, stored.embedding, scale, offset)
        level, wanted = offset + jnp.log2(total), rows(targets)
        loss = LN2 * (level - jnp.sum(outputs.astype(jnp.float32) * wanted, axis=-1))

        # Backwards, each weight stepped as soon as its gradient is known.
        share = mask / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
        slope = (mean / total[..., None] - wanted) * share[..., None]
        narrow = slope.astype(kind)
        above = jnp.einsum("ute,uhe->uth", narrow, projection).reshape(count, update.unroll, lanes, width)
        slopes = products.read_back(above, gates, cells, recurrent, stored.hidden, scale)
        slopes = slopes.reshape(count, tokens_a_step, 4 * width)
        of_words = jnp.einsum("utg,uge->ute", slopes, word)
        stepping = Step(scale, unit, update.learning_rate)
        new_table, n0 = products.step_table(
            outputs, of_words, table, stored.embedding, level, share, targets, inputs, stepping, kept
        )
        new_word, n1 = products.step(slopes, words, stored.word, stepping)
        new_hidden, n2 = products.step(slopes, before, stored.hidden, stepping)
        new_projection, n3 = products.step(after, narrow, stored.projection, stepping)

        def step_bias(bias: Array, slope: Array) -> Array:
            new = clip[:, None] * bias - update.learning_rate * jnp.sum(slope.astype(jnp.float32), axis=1)
            return jnp.where(active[:, None], new, bias)

        new_bias = step_bias(stored.bias, slopes)
        new_projection_bias = step_bias(stored.projection_bias, slope)
        squares = n0 + n1 + n2 + n3 + jnp.sum(new_bias**2, 1) + jnp.sum(new_projection_bias**2, 1)

        norm = jnp.sqrt(squares)
        within = norm <= bound if update.clip_every_step else jnp.full(count, True)
        return (
            Parts(new_table, new_word, new_hidden, new_bias, new_projection, new_projection_bias),
            jnp.where(active, jnp.where(within, 1.0, bound / norm), clip),
            hiddens[:, -1],
            cells[:, -1],
            cut | (active & ~within),
            jnp.where(jnp.sum(mask, axis=1) > 0, norm, length),
            losses + jnp.sum(jnp.where(mask > 0, loss, 0), axis=1),
        )

    start = (
        # Biases are small and stay in float32.
        jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape), products.stored if leaf.ndim > 1 else None), received
        ),
        jnp.ones(count),
        jnp.zeros((count, lanes, width), kind),
        jnp.zeros((count, lanes, width)),
        jnp.zeros(count, bool),
        jnp.zeros(count),
        jnp.zeros(count),
    )
    stored, clip, _, _, cut, length, losses = jax.lax.fori_loop(0, last, step, start)

    def change(clip: Array, unit: Array, parts: Parts) -> Parts:
        return jax.tree.map(lambda leaf: (clip * unit if leaf.ndim > 1 else clip) * leaf, parts)

    losses = losses / jnp.maximum(jnp.sum(steps.mask, axis=(0, 2)), 1)
    # The last clip is the same for every way of training, in float32.
    changes = jax.vmap(change)(clip, unit, stored)
    return jax.vmap(partial(send, update.clipping))(clip_norms, changes, length, cut[:, None], losses)


HEADROOM = 128  # how far a coordinate may be beyond the clip norm, after a step and before its clip


def unit_of(clip_norms: Array, stored: Any) -> Array:
    """What 1 stands for where Δ is stored.

    Clipped after every step, no coordinate of Δ is beyond the clip norm S, so a power of two that puts `HEADROOM` · S
    at the end of float16's range leaves nothing to overflow: what a single step throws further is cut to the end, and
    the clip that follows shrinks it in any case. Numbers down to 1e-7 S keep eleven bits.
    """
    if stored == jnp.float32:
        return jnp.ones_like(clip_norms)
    return HEADROOM * jnp.ldexp(jnp.ones_like(clip_norms), jnp.ceil(jnp.log2(clip_norms)).astype(jnp.int32) - 16)


def parts_of(model: LSTM) -> Parts:
    gates = (model.input_gate, model.forget_gate, model.cell_gate, model.output_gate)
    weight, size = jnp.concatenate([gate.weight for gate in gates]), model.embedding.shape[1]
    bias = jnp.concatenate([gate.bias for gate in gates])
    return Parts(
        model.embedding, weight[:, :size], weight[:, size:], bias, model.projection.T, model.projection_bias
    )  # fmt: skip


def model_of(parts: Parts) -> Any:
    """The parts of one model, or of one update, as an `LSTM`."""
    weights = jnp.split(jnp.concatenate([parts.word, parts.hidden], axis=1), 4)
    gates = [_like(Gate, weight=w, bias=b) for w, b in zip(weights, jnp.split(parts.bias, 4), strict=True)]
    return _like(
        LSTM, embedding=parts.embedding, input_gate=gates[0], forget_gate=gates[1], cell_gate=gates[2],
        output_gate=gates[3], projection=parts.projection.T, projection_bias=parts.projection_bias,
    )  # fmt: skip


def _like(kind: type, **fields: Any) -> Any:
    """A module with these fields, without drawing weights for it."""
    made = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def offset_of(outputs: Array) -> Array:
    """What is taken off each score before exp2. Scores are at most ‖output‖, as rows of the table have norm 1."""
    length = jnp.sqrt(jnp.sum(jnp.square(outputs.astype(jnp.float32)), axis=-1))
    return jnp.maximum(length - 57.0, 0.0)


def _table_rows(table: Array, delta: Array, scale: Array) -> tuple[Array, Array, Array]:
    """Δ as it is, the normalised rows of (received + Δ), and 1 / their norms."""
    change = scale[:, None, None] * delta
    full = table.astype(jnp.float32) + change
    inverse = jax.lax.rsqrt(jnp.maximum(jnp.sum(full * full, -1, keepdims=True), 1e-24))
    return change, full * inverse, inverse


def _scores(outputs: Array, table: Array, delta: Array, scale: Array, offset: Array) -> tuple[Array, Array, None]:
    rows = _table_rows(table, delta, scale)[1].astype(outputs.dtype)
    chances = jnp.exp2(
        jnp.einsum("ute,uve->utv", outputs, rows, preferred_element_type=jnp.float32) - offset[..., None]
    )
    mean = jnp.einsum("utv,uve->ute", chances.astype(outputs.dtype), rows, preferred_element_type=jnp.float32)
    return jnp.sum(chances, axis=-1), mean, None


def _step_table(
    outputs: Array, of_words: Array, table: Array, delta: Array, level: Array, share: Array, targets: Array,
    inputs: Array, step: Step, kept: None,
) -> tuple[Array, Array]:  # fmt: skip
    change, rows, inverse = _table_rows(table, delta, step.scale)
    scores = jnp.einsum("ute,uve->utv", outputs, rows.astype(outputs.dtype), preferred_element_type=jnp.float32)
    errors = jnp.exp2(scores - level[..., None]) - (targets[..., None] == jnp.arange(table.shape[0]))
    errors = (errors * (share * LN2)[..., None]).astype(outputs.dtype)
    slope = jnp.einsum("utv,ute->uve", errors, outputs, preferred_element_type=jnp.float32)
    slope = slope.at[jnp.arange(delta.shape[0])[:, None], inputs].add(of_words.astype(jnp.float32))
    slope = inverse * (slope - rows * jnp.sum(rows * slope, -1, keepdims=True))
    return _stored(change - step.learning_rate * slope, delta, step)


def _step(left: Array, right: Array, delta: Array, step: Step) -> tuple[Array, Array]:
    slope = jnp.einsum("utr,utk->urk", left, right, preferred_element_type=jnp.float32)
    return _stored(step.scale[:, None, None] * delta - step.learning_rate * slope, delta, step)


def _stored(new: Array, old: Array, step: Step) -> tuple[Array, Array]:
    squares = jnp.sum(jnp.square(new), axis=(1, 2))
    if old.dtype != jnp.float32:
        most = float(jnp.finfo(old.dtype).max)
        new = jnp.clip(new / step.unit[:, None, None], -most, most).astype(old.dtype)
    return jnp.where(step.scale[:, None, None] < 0, old, new), squares


def _read(
    words: Array, bias: Array, recurrent: Array, delta: Array, scale: Array, hidden: Array, cell: Array
) -> tuple[Array, Array, Array]:
    weight = (recurrent.astype(jnp.float32) + scale[:, None, None] * delta).astype(words.dtype)
    gates, cells, hiddens = [], [cell], [hidden]
    for moment in range(words.shape[1]):
        from_hidden = jnp.einsum("ulh,ugh->ulg", hiddens[-1], weight, preferred_element_type=jnp.float32)
        i, f, g, o = jnp.split(words[:, moment].astype(jnp.float32) + bias[:, None] + from_hidden, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        cells.append(f * cells[-1] + i * g)
        hiddens.append((o * jnp.tanh(cells[-1])).astype(words.dtype))
        gates.append(jnp.concatenate([i, f, g, o], axis=-1).astype(words.dtype))
    return jnp.stack(gates, 1), jnp.stack(cells, 1), jnp.stack(hiddens, 1)


def _read_back(above: Array, gates: Array, cells: Array, recurrent: Array, delta: Array, scale: Array) -> Array:
    weight = (recurrent.astype(jnp.float32) + scale[:, None, None] * delta).astype(gates.dtype)
    slopes, of_hidden, of_cell = [], jnp.zeros_like(cells[:, 0]), jnp.zeros_like(cells[:, 0])
    for moment in reversed(range(gates.shape[1])):
        i, f, g, o = jnp.split(gates[:, moment].astype(jnp.float32), 4, axis=-1)
        tanh_cell = jnp.tanh(cells[:, moment + 1])
        of_hidden = above[:, moment].astype(jnp.float32) + of_hidden
        of_cell = of_cell + of_hidden * o * (1 - tanh_cell * tanh_cell)
        slope = jnp.concatenate(
            [
                of_cell * g * i * (1 - i),
                of_cell * cells[:, moment] * f * (1 - f),
                of_cell * i * (1 - g * g),
                of_hidden * tanh_cell * o * (1 - o),
            ],
            axis=-1,
        ).astype(gates.dtype)
        of_cell = of_cell * f
        of_hidden = jnp.einsum("ulg,ugh->ulh", slope, weight, preferred_element_type=jnp.float32)
        slopes.append(slope)
    return jnp.stack(slopes[::-1], 1)


def plain_products(kind: Any = jnp.float32, stored: Any = jnp.float32) -> Products:
    return Products(kind, stored, _scores, _step_table, _step, _read, _read_back)


PLAIN = plain_products()
