"""The paper's LSTM on a core of a CPU, one user at a time: `FedAvg` with its gradient written out.

Its time is that of products, which XLA computes well, and of passes over the table of words, which it does not: the
table is larger than a core's cache. So:

- Both passes over the table take a tile of its rows at a time, which stays in the cache from one operation to the next.
- Rows are not normalised in memory: the inverse of a row's norm is a factor of its logits and of its probabilities.
- Probabilities are computed once, and kept for the second pass.
- The gradient is dense in the second pass. What the step's own tokens add to it is put into their rows afterwards.
- No product has an axis of users, which XLA's fast matrix product does not know.
- Time steps are a loop: unrolled, each would compute all earlier ones again inside its fusion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from sottovoce.kernels.lstm_users import (
    LAYERS,
    LN2,
    Parts,
    Scales,
    activate,
    by_row,
    gate_gradients,
    has_norm_for_each_layer,
    model_of,
    offset_of,
    parts_of,
    send,
)
from sottovoce.local.update import FedAvg, Trained, User, UserResult, cut_into_lanes
from sottovoce.models.head import exp2, unit_rows
from sottovoce.models.lstm import LSTM
from sottovoce.privacy.clipping import SAFE_SHARE

TILE = 250  # rows of the table: with their logits and their gradient they fill a quarter of a megabyte


class Table(NamedTuple):
    """The table of words as a user has it: received + scale · Δ."""

    received: Array  # [words, size]
    delta: Array
    scale: Array

    def rows(self, ids: Array) -> Array:
        return self.received[ids] + self.scale * self.delta[ids]

    def tile(self, start: Any, size: int) -> Array:
        return _cut(self.received, start, size) + self.scale * _cut(self.delta, start, size)


class Kept(NamedTuple):
    """What the first pass over the table leaves for the second."""

    chances: Array  # [words, tokens]: exp2(logit - offset) / the norm of the row
    squares: Array  # [words]: of the norms

    @staticmethod
    def room(words: int, tokens: int) -> Kept:
        return Kept(jnp.zeros((words, tokens)), jnp.zeros(words))


def read_table(outputs: Array, table: Table, offset: Array, kept: Kept, tile: int = TILE) -> tuple[Array, Array, Kept]:
    """Σ exp2(logit - offset) and Σ exp2(logit - offset) · row over all words, for the outputs of all tokens."""
    columns = outputs.T

    def read(start: Any, size: int, carry: tuple) -> tuple:
        total, mean, kept = carry
        full = table.tile(start, size)
        squares = jnp.maximum(jnp.sum(full * full, axis=1), 1e-24)
        inverse = jax.lax.rsqrt(squares)[:, None]
        chances = _put(kept.chances, inverse * exp2(inverse * (full @ columns) - offset), start)
        here = _cut(chances, start, size)  # read again: fused into two uses, exp2 would be computed twice
        total += (squares * inverse[:, 0]) @ here
        return total, mean + here.T @ full, Kept(chances, _put(kept.squares, squares, start))

    return _over_tiles(read, len(table.received), tile, (jnp.zeros(len(outputs)), jnp.zeros(outputs.shape), kept))


def step_table(
    weighted: Array, table: Table, learning_rate: float, kept: Kept, tile: int = TILE
) -> tuple[Array, Array]:
    """Δ after a step by the gradient of Σ exp2, where each token's exp2 has a factor, and the squares of Δ.

    Args:
        weighted: the outputs, each times its factor.
        table: before the step.
        learning_rate: η.
        kept: of `read_table`.
        tile: rows at a time.
    """

    def step(start: Any, size: int, carry: tuple) -> tuple:
        delta, total = carry
        now = table._replace(delta=delta)
        full, gradient = now.tile(start, size), _cut(kept.chances, start, size) @ weighted
        along = jnp.sum(full * gradient, axis=1) / _cut(kept.squares, start, size)
        new = table.scale * _cut(delta, start, size) - learning_rate * (gradient - along[:, None] * full)
        delta = _put(delta, new, start)
        return delta, total + jnp.sum(jnp.square(_cut(delta, start, size)))

    return _over_tiles(step, len(table.received), tile, (table.delta, jnp.zeros(())))


def _cut(array: Array, start: Any, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size)


def _put(array: Array, part: Array, start: Any) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(array, part, start, 0)


def _over_tiles(body: Callable, rows: int, tile: int, carry: Any) -> Any:
    """`body(start, size, carry)` for tiles of `tile` rows, and for what is left of them."""
    if rows >= tile:
        carry = jax.lax.fori_loop(0, rows // tile, lambda index, carry: body(index * tile, tile, carry), carry)
    return body(rows - rows % tile, rows % tile, carry) if rows % tile else carry


def through_unit_rows(rows: Array, gradient: Array) -> Array:
    """The gradient of some rows, from that of the same rows at norm 1."""
    squares = jnp.maximum(jnp.sum(rows * rows, axis=1, keepdims=True), 1e-24)
    along = jnp.sum(rows * gradient, axis=1, keepdims=True) / squares
    return jax.lax.rsqrt(squares) * (gradient - along * rows)


def add_rows(delta: Array, squares: Array, ids: Array, change: Array) -> tuple[Array, Array]:
    """Δ with a change of the rows `ids`, some of which may be the same, and its squares.

    What is written depends on what was read, so that Δ is changed where it lies and never copied.
    """
    before, same = delta[ids], (ids[:, None] == ids).astype(jnp.float32)
    after = before + same @ change
    each = jnp.sum(jnp.square(after) - jnp.square(before), axis=1)
    return delta.at[ids].set(after), squares + jnp.sum(each / jnp.sum(same, axis=1))


def read(words: Array, weight: Array, hidden: Array, cell: Array) -> tuple[Array, Array, Array]:
    """The recurrence: gates, cells and hidden states at all time steps; the latter two begin with those given.

    `words` [time, lanes, 4 hidden] is what the gates get from the words and the bias.
    """

    def time_step(carry: tuple, word: Array) -> tuple:
        hidden, cell = carry
        i, f, g, o = activate(word + weight @ hidden)
        cell = f * cell + i * g
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), (jnp.concatenate([i, f, g, o]).T, cell.T, hidden.T)

    _, (gates, cells, hiddens) = jax.lax.scan(time_step, (hidden.T, cell.T), words.transpose(0, 2, 1))
    return gates, jnp.concatenate([cell[None], cells]), jnp.concatenate([hidden[None], hiddens])


def read_back(above: Array, gates: Array, cells: Array, weight: Array) -> Array:
    """The gradients of the inputs of the gates, from those of the hidden states."""

    def time_step(carry: tuple, now: tuple) -> tuple:
        of_hidden, of_cell = carry
        above, gates, before, after = now
        gradient, of_cell = gate_gradients(gates, before, after, above + of_hidden, of_cell, axis=1)
        return (gradient @ weight, of_cell), gradient

    start = (jnp.zeros_like(cells[0]), jnp.zeros_like(cells[0]))
    return jax.lax.scan(time_step, start, (above, gates, cells[:-1], cells[1:]), reverse=True)[1]


class Weights(NamedTuple):
    """A model, or an update: `Parts` with the two weights of the gates side by side."""

    embedding: Array  # [words, size]
    gates: Array  # [4 hidden, size + hidden]
    bias: Array  # [4 hidden]
    projection: Array  # [hidden, size]
    projection_bias: Array  # [size]

    @staticmethod
    def of(parts: Parts) -> Weights:
        gates = jnp.concatenate([parts.word, parts.hidden], axis=1)
        return Weights(parts.embedding, gates, parts.bias, parts.projection, parts.projection_bias)

    def parts(self) -> Parts:
        size = self.embedding.shape[1]
        return Parts(
            self.embedding, self.gates[:, :size], self.gates[:, size:], self.bias, self.projection, self.projection_bias
        )


class OneUser(NamedTuple):
    """The program for a block of one user."""

    name: str = "kernels"
    tile: int = TILE

    def train(
        self, update: Any, model: LSTM, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
    ) -> UserResult:
        """What the user sends, in `Parts`. Nothing in it is random, so the keys are not used."""
        user = jax.tree.map(lambda leaf: leaf[0], users)
        result = train_user(update, model, user, clip_norms[0], last, self.tile)
        return jax.tree.map(lambda leaf: leaf[None], result)

    def put_together(self, update: Parts) -> Any:
        return model_of(update)


ONE_USER = OneUser()


def train_user(update: FedAvg, model: LSTM, user: User, clip_norms: Array, last: Any, tile: int = TILE) -> UserResult:
    """What a user sends: as `update`, but in `Parts`. `clip_norms` is [parts]."""
    received, lanes, eta = Weights.of(parts_of(model)), update.batch, update.learning_rate
    (vocabulary, size), (width, _) = received.embedding.shape, received.projection.shape
    tokens = lanes * update.unroll
    steps = jax.tree.map(  # [steps, tokens], the lanes of one time step together
        lambda part: part.transpose(0, 2, 1).reshape(-1, tokens),
        cut_into_lanes(update.text(user), lanes, update.unroll, update.bos),
    )
    bound, per_layer = clip_norms * SAFE_SHARE, has_norm_for_each_layer(update.clipping)

    def step(index: Array, carry: tuple) -> tuple:
        stored, clip, hidden, cell, kept, cut, length, losses = carry
        inputs, targets, mask = (part[index] for part in steps)
        scale, table = scales_of(clip), Table(received.embedding, stored.embedding, clip[0])
        gate_weights = received.gates + by_row(scale.gates, stored.gates[None])[0]
        word, recurrent = gate_weights[:, :size], gate_weights[:, size:]
        bias = received.bias + by_row(scale.gate_biases, stored.bias[None])[0]
        projection = received.projection + scale.projection * stored.projection
        projection_bias = received.projection_bias + scale.projection_bias[0] * stored.projection_bias

        # Forwards.
        ids = jnp.concatenate([inputs, targets])
        rows = table.rows(ids)
        words, wanted = jnp.split(unit_rows(rows), 2)
        of_time = (words @ word.T + bias).reshape(update.unroll, lanes, 4 * width)
        gates, cells, hiddens = read(of_time, recurrent, hidden, cell)
        after, before = hiddens[1:].reshape(tokens, width), hiddens[:-1].reshape(tokens, width)
        outputs = (after @ projection + projection_bias) / LN2
        offset = offset_of(outputs)
        total, mean, kept = read_table(outputs, table, offset, kept, tile)
        loss = LN2 * (offset + jnp.log2(total) - jnp.sum(outputs * wanted, axis=1))

        # Backwards.
        share = (mask / jnp.maximum(jnp.sum(mask), 1))[:, None]
        gradient = (mean / total[:, None] - wanted) * share
        above = (gradient @ projection.T).reshape(update.unroll, lanes, width)
        of_gates = read_back(above, gates, cells, recurrent).reshape(tokens, 4 * width)
        weighted = share * LN2 * outputs
        new_table, of_table = step_table(weighted / total[:, None], table, eta, kept, tile)
        of_rows = through_unit_rows(rows, jnp.concatenate([of_gates @ word, -weighted]))
        new_table, of_table = add_rows(new_table, of_table, ids, -eta * of_rows)
        columns = jax.lax.optimization_barrier(of_gates.T)  # a product with a transposed first factor is slow
        new_gates = by_row(scale.gates, stored.gates[None])[0] - eta * (
            columns @ jnp.concatenate([words, before], axis=1)
        )
        new_bias = by_row(scale.gate_biases, stored.bias[None])[0] - eta * jnp.sum(of_gates, axis=0)
        new_projection = scale.projection * stored.projection - eta * (after.T @ gradient)
        new_projection_bias = scale.projection_bias[0] * stored.projection_bias - eta * jnp.sum(gradient, axis=0)
        stored = Weights(new_table, new_gates, new_bias, new_projection, new_projection_bias)

        squares = Scales(
            of_table[None],
            *(_squares(part, groups) for part, groups in zip(stored[1:], (4, 4, 1, 1), strict=True)),
        ).by_layer()[0]
        length_now = jnp.sqrt(jnp.sum(squares))
        norms = jnp.sqrt(squares) if per_layer else length_now[None]
        within = norms <= bound if update.clip_every_step else jnp.full(bound.shape, True)
        return (
            stored,
            jnp.broadcast_to(jnp.where(within, 1.0, bound / norms), clip.shape),
            hiddens[-1],
            cells[-1],
            kept,
            cut | ~within,
            jnp.where(jnp.sum(mask) > 0, length_now, length),
            losses + jnp.sum(jnp.where(mask > 0, loss, 0)),
        )

    start = (
        jax.tree.map(jnp.zeros_like, received),
        jnp.ones(LAYERS),
        jnp.zeros((lanes, width)),
        jnp.zeros((lanes, width)),
        Kept.room(vocabulary, tokens),
        jnp.zeros(bound.shape, bool),
        jnp.zeros(()),
        jnp.zeros(()),
    )
    last = jnp.minimum(last, update.steps(user.length))  # a user with less text than others has finished
    stored, clip, _, _, _, cut, length, losses = jax.lax.fori_loop(0, last, step, start)
    scale = scales_of(clip)
    changes = Weights(
        clip[0] * stored.embedding,
        by_row(scale.gates, stored.gates[None])[0],
        by_row(scale.gate_biases, stored.bias[None])[0],
        scale.projection * stored.projection,
        scale.projection_bias[0] * stored.projection_bias,
    )
    loss = losses / jnp.maximum(jnp.sum(steps.mask), 1)
    return send(update, Trained(changes.parts(), length, cut, loss), clip_norms)


def scales_of(clip: Array) -> Scales:
    return Scales.of(clip[None])


def _squares(part: Array, groups: int) -> Array:
    """Of each group of rows."""
    return jnp.sum(jnp.square(part).reshape(1, groups, -1), axis=-1)
