"""Federated averaging of the paper's LSTM for a block of users: `FedAvg` with its gradient written out.

What differs from `jax.vmap(FedAvg)`:

- Logits need not reach memory. One pass over a user's table gives the log-sum-exp and the gradient of the outputs; a
  second forms the table's gradient, applies the step and adds up its squares.
- The clip is one number for each layer of a user, applied when the update is next read: Δ = scale · stored. In a flat
  clip all layers have the same.
- Between steps Δ may be kept in float16, in units of a power of two: see `unit_of`.
- Users who have finished, and padding, are skipped, or their results are not used.
- The words' share of the gates, and every gradient of a weight, is one product for all tokens of a step.

Each of these is a function in `Products`: `PLAIN` has them in JAX, and is what the CUDA kernels are tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from sottovoce.local.objective import plain
from sottovoce.local.update import FedAvg, Trained, User, UserResult, UserUpdate, clip_update, cut_into_lanes
from sottovoce.models.head import LN2, offset_of, unit_rows
from sottovoce.models.lstm import LSTM, Gate
from sottovoce.privacy.clipping import SAFE_SHARE, Clip, FlatClip, NoClip, PerLayerClip

GATES = 4
LAYERS = 3 + 2 * GATES  # the embedding, weight and bias of each gate, the projection and its bias


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

    # The clip times the unit; below 0 for a user who has finished. [users] for the table; [users, groups of rows] for
    # the others.
    scale: Array
    unit: Array
    learning_rate: float


class Products(NamedTuple):
    """The parts of a local step that take the time."""

    kind: Any  # of the numbers that are multiplied; sums are float32
    stored: Any  # of Δ between steps: float32, or float16 where it is clipped after every step
    scores: Callable  # outputs, table, Δ, scale, offset -> Σ exp2, Σ exp2 · row, what it keeps for the next
    step_table: Callable  # ..., what was kept -> new Δ of the table, its squares
    step: Callable  # left, right, Δ, step -> Δ stepped by leftᵀ right, the squares of each group of rows
    read: Callable  # the recurrence; its scale is [users, gates] -> gates, cells, the state before and after each token
    read_back: Callable  # its gradient -> that of the gates, and its sum over tokens
    name: str = "kernels"

    def train(
        self, update: Any, model: LSTM, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
    ) -> UserResult:
        """What each user of a block sends. Nothing in it is random, so the keys are not used."""
        return train_users(self, update, model, users, clip_norms, last)

    def put_together(self, update: Parts) -> Any:
        return model_of(update)


def fits(update: UserUpdate, model: Any) -> bool:
    """Can `train_users` compute this update of this model?"""
    return (
        isinstance(update, FedAvg)
        and update.objective is plain
        and update.epochs == 1
        and update.gradient_clip is None
        and type(model) is LSTM  # a subclass may read otherwise
        and type(update.clipping) in _PER_LAYER  # any other clip is left to the general program
    )


# The clips that `train_users` computes after a step, and whether each layer has a norm of its own.
_PER_LAYER: dict[type[Clip], bool] = {FlatClip: False, NoClip: False, PerLayerClip: True}


def has_norm_for_each_layer(clipping: Clip) -> bool:
    return _PER_LAYER[type(clipping)]


def train_users(
    products: Products, update: FedAvg, model: LSTM, users: User, clip_norms: Array, last: Any
) -> UserResult:
    """What each user of a block sends: as `jax.vmap(update)`, but in `Parts`. `clip_norms` is [users, parts].

    To put each update together would write all of them once more: `model_of` is for their sum.
    """
    received, kind = parts_of(model), products.kind
    count, width, lanes = users.length.shape[0], received.hidden.shape[1], update.batch
    tokens_a_step = lanes * update.unroll
    steps = jax.tree.map(
        # [steps, users, tokens], the lanes of one time step together.
        lambda part: part.transpose(1, 0, 3, 2).reshape(part.shape[1], count, tokens_a_step),
        jax.vmap(lambda user: cut_into_lanes(update.text(user), lanes, update.unroll, update.bos))(users),
    )
    table, recurrent = received.embedding.astype(kind), received.hidden.astype(kind)
    who, bound = jnp.arange(count)[:, None], clip_norms * SAFE_SHARE
    per_layer = has_norm_for_each_layer(update.clipping)
    unit, needed = unit_of(jnp.linalg.norm(clip_norms, axis=1), products.stored), update.steps(users.length)
    multiply = partial(jnp.einsum, preferred_element_type=jnp.float32)

    def step(index: Array, carry: tuple) -> tuple:
        stored, clip, hidden, cell, cut, length, losses = carry
        inputs, targets, mask = (part[index] for part in steps)
        active = index < needed
        scale = Scales.of(jnp.where(active[:, None], clip * unit[:, None], -1.0))
        unscaled = Scales.of(clip)  # biases are not in units
        word = (received.word + by_row(scale.gates, stored.word)).astype(kind)
        projection = (received.projection + by_row(scale.projection, stored.projection)).astype(kind)
        bias = received.bias + by_row(unscaled.gate_biases, stored.bias)
        projection_bias = received.projection_bias + by_row(unscaled.projection_bias, stored.projection_bias)

        def rows(ids: Array) -> Array:
            change = scale.table[:, None, None] * stored.embedding[who, ids]
            return unit_rows(table[ids].astype(jnp.float32) + change)

        # Forwards.
        words = rows(inputs).astype(kind)
        gates, cells, before, after = products.read(
            jnp.einsum("ute,uge->utg", words, word).reshape(count, update.unroll, lanes, 4 * width), bias, recurrent,
            stored.hidden, scale.gates, hidden, cell,
        )  # fmt: skip
        new_hidden_state = after[:, -1]
        before, after = (part.reshape(count, tokens_a_step, width) for part in (before, after))
        outputs = multiply("uth,uhe->ute", after, projection) + projection_bias[:, None]
        outputs = (outputs / LN2).astype(kind)
        offset = offset_of(outputs)
        total, mean, kept = products.scores(outputs, table, stored.embedding, scale.table, offset)
        level, wanted = offset + jnp.log2(total), rows(targets)
        loss = LN2 * (level - jnp.sum(outputs.astype(jnp.float32) * wanted, axis=-1))

        # Backwards, each weight stepped as soon as its gradient is known.
        share = mask / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
        gradient = (mean / total[..., None] - wanted) * share[..., None]
        narrow = gradient.astype(kind)
        above = jnp.einsum("ute,uhe->uth", narrow, projection).reshape(count, update.unroll, lanes, width)
        gradients, of_gates = products.read_back(above, gates, cells, recurrent, stored.hidden, scale.gates)
        gradients = gradients.reshape(count, tokens_a_step, 4 * width)
        of_words = jnp.einsum("utg,uge->ute", gradients, word)
        new_table, of_table = products.step_table(
            outputs, of_words, table, stored.embedding, level, share, targets, inputs,
            Step(scale.table, unit, update.learning_rate), kept,
        )  # fmt: skip
        stepping = Step(scale.gates, unit, update.learning_rate)
        new_word, of_word = products.step(gradients, words, stored.word, stepping)
        new_hidden, of_hidden = products.step(gradients, before, stored.hidden, stepping)
        new_projection, of_projection = products.step(
            after, narrow, stored.projection, stepping._replace(scale=scale.projection)
        )

        def step_bias(scale: Array, bias: Array, gradient: Array) -> Array:
            new = by_row(scale, bias) - update.learning_rate * gradient
            return jnp.where(active[:, None], new, bias)

        new_bias = step_bias(unscaled.gate_biases, stored.bias, of_gates)
        new_projection_bias = step_bias(unscaled.projection_bias, stored.projection_bias, jnp.sum(gradient, axis=1))
        of_bias = jnp.sum(jnp.square(new_bias).reshape(count, GATES, width), axis=-1)
        of_projection_bias = jnp.sum(jnp.square(new_projection_bias), axis=-1, keepdims=True)
        squares = Scales(of_table, of_word + of_hidden, of_bias, of_projection, of_projection_bias).by_layer()

        length_now = jnp.sqrt(jnp.sum(squares, axis=1))
        norms = jnp.sqrt(squares) if per_layer else length_now[:, None]
        within = norms <= bound if update.clip_every_step else jnp.full(bound.shape, True)
        new_clip = jnp.broadcast_to(jnp.where(within, 1.0, bound / norms), clip.shape)
        return (
            Parts(new_table, new_word, new_hidden, new_bias, new_projection, new_projection_bias),
            jnp.where(active[:, None], new_clip, clip),
            new_hidden_state,
            cells[:, -1],
            cut | (active[:, None] & ~within),
            jnp.where(jnp.sum(mask, axis=1) > 0, length_now, length),
            losses + jnp.sum(jnp.where(mask > 0, loss, 0), axis=1),
        )

    start = (
        # Biases are small and stay in float32.
        jax.tree.map(
            lambda leaf: nothing((count, *leaf.shape), products.stored if leaf.ndim > 1 else jnp.float32), received
        ),
        jnp.ones((count, LAYERS)),
        jnp.zeros((count, lanes, width), kind),
        jnp.zeros((count, lanes, width)),
        jnp.zeros(bound.shape, bool),
        jnp.zeros(count),
        jnp.zeros(count),
    )
    stored, clip, _, _, cut, length, losses = jax.lax.fori_loop(0, last, step, start)

    scale, unscaled = Scales.of(clip * unit[:, None]), Scales.of(clip)
    changes = Parts(
        embedding=scale.table[:, None, None] * stored.embedding,
        word=by_row(scale.gates, stored.word),
        hidden=by_row(scale.gates, stored.hidden),
        bias=by_row(unscaled.gate_biases, stored.bias),
        projection=by_row(scale.projection, stored.projection),
        projection_bias=by_row(unscaled.projection_bias, stored.projection_bias),
    )

    losses = losses / jnp.maximum(jnp.sum(steps.mask, axis=(0, 2)), 1)
    return jax.vmap(partial(send, update))(Trained(changes, length, cut, losses), clip_norms)


def send(update: FedAvg, trained: Trained, clip_norms: Array) -> UserResult:
    """What a user sends, in `Parts`. The last clip is the same for every way of training, in float32."""
    if not has_norm_for_each_layer(update.clipping):
        return clip_update(update, trained, clip_norms)
    result = clip_update(update, trained._replace(update=model_of(trained.update)), clip_norms)
    return result._replace(update=parts_of(result.update))


class Scales(NamedTuple):
    """A number for each layer of every user, by the part it belongs to."""

    table: Array  # [users]
    gates: Array  # [users, gates], as the others: a group of rows each
    gate_biases: Array
    projection: Array
    projection_bias: Array

    @staticmethod
    def of(by_layer: Array) -> Scales:
        table, gates, projection, bias = jnp.split(by_layer, [1, 1 + 2 * GATES, 2 + 2 * GATES], axis=1)
        return Scales(table[:, 0], gates[:, ::2], gates[:, 1::2], projection, bias)

    def by_layer(self) -> Array:
        """In the order of the layers of an `LSTM`."""
        gates = jnp.stack([self.gates, self.gate_biases], axis=-1).reshape(-1, 2 * GATES)
        return jnp.concatenate([self.table[:, None], gates, self.projection, self.projection_bias], axis=1)


def by_row(scale: Array, weight: Array) -> Array:
    """A weight [users, rows, ...] with each group of its rows times a number of [users, groups]."""
    groups = weight.reshape(*scale.shape, -1)
    return (scale[..., None] * groups).reshape(weight.shape)


HEADROOM = 128  # how far a coordinate may be beyond the clip norm, after a step and before its clip


def unit_of(clip_norms: Array, stored: Any) -> Array:
    """What 1 stands for where Δ is stored.

    Clipped after every step, no coordinate of Δ is beyond the clip norm S. So a power of two puts `HEADROOM` · S at the
    end of float16's range. A single step that goes further is cut there, and the clip that follows shrinks it anyway.
    Numbers down to 1e-7 S keep eleven bits.
    """
    if stored == jnp.float32:
        return jnp.ones_like(clip_norms)
    return HEADROOM * jnp.ldexp(jnp.ones_like(clip_norms), jnp.ceil(jnp.log2(clip_norms)).astype(jnp.int32) - 16)


def nothing(shape: tuple[int, ...], kind: Any) -> Array:
    """Zeros, where Δ is stored. Two of float16 are written as one word: XLA takes as long for one as for the other."""
    if jnp.dtype(kind).itemsize != 2 or shape[-1] % 2:
        return jnp.zeros(shape, kind)
    words = jax.lax.optimization_barrier(jnp.zeros((*shape[:-1], shape[-1] // 2), jnp.uint32))
    return jax.lax.bitcast_convert_type(words, kind).reshape(shape)


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


def _table_rows(table: Array, delta: Array, scale: Array) -> tuple[Array, Array, Array]:
    """Δ, the normalised rows of (received + Δ), and 1 / their norms."""
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
    gradient = jnp.einsum("utv,ute->uve", errors, outputs, preferred_element_type=jnp.float32)
    gradient = gradient.at[jnp.arange(delta.shape[0])[:, None], inputs].add(of_words.astype(jnp.float32))
    gradient = inverse * (gradient - rows * jnp.sum(rows * gradient, -1, keepdims=True))
    new = change - step.learning_rate * gradient
    return _stored(new, delta, step, step.scale), jnp.sum(jnp.square(new), axis=(1, 2))


def _step(left: Array, right: Array, delta: Array, step: Step) -> tuple[Array, Array]:
    gradient = jnp.einsum("utr,utk->urk", left, right, preferred_element_type=jnp.float32)
    new = by_row(step.scale, delta) - step.learning_rate * gradient
    return _stored(new, delta, step, step.scale[:, 0]), squares_of(new, step)


def squares_of(new: Array, step: Step) -> Array:
    """Of each group of rows."""
    return jnp.sum(jnp.square(new).reshape(*step.scale.shape, -1), axis=-1)


def _stored(new: Array, old: Array, step: Step, scale: Array) -> Array:
    if old.dtype != jnp.float32:
        most = float(jnp.finfo(old.dtype).max)
        new = jnp.clip(new / step.unit[:, None, None], -most, most).astype(old.dtype)
    return jnp.where(scale[:, None, None] < 0, old, new)


def activate(gates: Array, axis: int = 0) -> tuple[Array, Array, Array, Array]:
    """The input, forget, cell and output gate from their inputs, which are one after another along `axis`."""
    i, f, g, o = jnp.split(gates, 4, axis=axis)
    return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)


def gate_gradients(
    gates: Array, before: Array, after: Array, of_hidden: Array, of_cell: Array, axis: int = 0
) -> tuple[Array, Array]:
    """The gradients of the inputs of the gates at one time step, and of the cell before it.

    From the gates, the cell before and after, and the gradients of the hidden state and of the cell after it.
    """
    i, f, g, o = jnp.split(gates, 4, axis=axis)
    tanh_cell = jnp.tanh(after)
    of_cell = of_cell + of_hidden * o * (1 - tanh_cell * tanh_cell)
    of_input, of_forget = of_cell * g * i * (1 - i), of_cell * before * f * (1 - f)
    of_candidate, of_output = of_cell * i * (1 - g * g), of_hidden * tanh_cell * o * (1 - o)
    return jnp.concatenate([of_input, of_forget, of_candidate, of_output], axis=axis), of_cell * f


def _read(
    words: Array, bias: Array, recurrent: Array, delta: Array, scale: Array, hidden: Array, cell: Array
) -> tuple[Array, Array, Array, Array]:
    weight = (recurrent.astype(jnp.float32) + by_row(scale, delta)).astype(words.dtype)
    gates, cells, hiddens = [], [cell], [hidden]
    for time in range(words.shape[1]):
        from_hidden = jnp.einsum("ulh,ugh->ulg", hiddens[-1], weight, preferred_element_type=jnp.float32)
        i, f, g, o = activate(words[:, time].astype(jnp.float32) + bias[:, None] + from_hidden, axis=-1)
        cells.append(f * cells[-1] + i * g)
        hiddens.append((o * jnp.tanh(cells[-1])).astype(words.dtype))
        gates.append(jnp.concatenate([i, f, g, o], axis=-1).astype(words.dtype))
    return jnp.stack(gates, 1), jnp.stack(cells, 1), jnp.stack(hiddens[:-1], 1), jnp.stack(hiddens[1:], 1)


def _read_back(
    above: Array, gates: Array, cells: Array, recurrent: Array, delta: Array, scale: Array
) -> tuple[Array, Array]:
    weight = (recurrent.astype(jnp.float32) + by_row(scale, delta)).astype(gates.dtype)
    gradients, of_hidden, of_cell = [], jnp.zeros_like(cells[:, 0]), jnp.zeros_like(cells[:, 0])
    for time in reversed(range(gates.shape[1])):
        of_hidden = above[:, time].astype(jnp.float32) + of_hidden
        gradient, of_cell = gate_gradients(
            gates[:, time].astype(jnp.float32), cells[:, time], cells[:, time + 1], of_hidden, of_cell, axis=-1
        )
        gradient = gradient.astype(gates.dtype)
        of_hidden = jnp.einsum("ulg,ugh->ulh", gradient, weight, preferred_element_type=jnp.float32)
        gradients.append(gradient)
    gradients = jnp.stack(gradients[::-1], 1)
    return gradients, jnp.sum(gradients.astype(jnp.float32), axis=(1, 2))


def plain_products(kind: Any = jnp.float32, stored: Any = jnp.float32) -> Products:
    return Products(kind, stored, _scores, _step_table, _step, _read, _read_back)


PLAIN = plain_products()
