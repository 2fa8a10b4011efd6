"""Federated averaging of any model with tables for a block of users: `FedAvg`, with what takes the time written out.

What differs from `jax.vmap(FedAvg)`:

- Logits need not reach memory, and the table of logits is stepped as its gradient is formed: see `Softmax`.
- A table that is only read changes in the rows that were read, and only they are touched: see `Sparse`.
- The clip is one number for each part of a user, applied when the update is next read: Δ = scale · stored.
- Between steps Δ may be kept in float16, in units of a power of two: see `unit_of`.
- Weights are multiplied in bfloat16 where the products are.

All else, from the rows of the words that were read to the outputs, is the model's own `read_rows` and JAX's gradient of
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from sottovoce.kernels.lstm_users import LN2, Step, nothing, unit_of
from sottovoce.local.objective import Batch, WithoutForgetting, plain
from sottovoce.local.update import FedAvg, Trained, User, UserResult, UserUpdate, clip_update, cut_into_lanes
from sottovoce.models.contract import LanguageModel, join, layer_names, split
from sottovoce.models.head import ALIGNED, added_up, tables_of, unit_rows
from sottovoce.models.lstm import reading_with
from sottovoce.privacy.clipping import SAFE_SHARE, Clip, FlatClip, NoClip, PerLayerClip


class Target(NamedTuple):
    """What the softmax of each token is to be: λ for one token, 1 - λ for what another model predicts."""

    tokens: Array  # [users, tokens]
    share: Array  # of each token in the mean loss
    user_share: float = 1.0
    outputs: Array | None = None  # of the other model, as those of this one
    level: Array | None = None  # of the other model
    bias: Array | None = None  # of the other model: [vocabulary]


class Table(NamedTuple):
    """The table that logits are computed with: received + scale · delta, with rows at norm 1 if `unit`."""

    received: Array  # [vocabulary, size]
    delta: Array  # [users, vocabulary, size]
    scale: Array  # [users]; below 0 for a user who has finished
    bias: Array | None  # [users, vocabulary]
    unit: bool

    def rows(self, ids: Array) -> Array:
        """Some rows of each user, in float32, as they are multiplied."""
        change = jax.vmap(lambda delta, ids: delta[ids])(self.delta, ids)
        rows = self.received[ids].astype(jnp.float32) + self.scale[:, None, None] * change
        return unit_rows(rows) if self.unit else rows


class Scores(NamedTuple):
    """Of each token: log2 of Σ exp2(logit), the mean row by this softmax, and by that of the other model."""

    level: Array
    mean: Array
    other: Array | None = None


class Softmax(NamedTuple):
    """How the products with the table of logits are computed. Logits, levels and biases are in base 2."""

    kind: Any  # of the numbers that are multiplied; sums are float32
    stored: Any  # of Δ between steps: float32, or float16 where it is clipped after every step
    scores: Callable[[Array, Table, Target], Scores]
    # outputs, table, target, level, step -> Δ of the table stepped, its squares, the gradient of the bias
    step_table: Callable[[Array, Table, Target, Array, Step], tuple[Array, Array, Array | None]]
    written: str = "XLA"  # in what
    aligned: int = 1  # rows of the table are padded to a multiple of so many numbers
    recurrence: Any = None  # of LSTM layers: see `recurrence`; None is the model's own
    # Rows, outputs, bias -> log2 of Σ exp2(logit), by one table for all users; None is in XLA.
    level: Callable[[Array, Array, Array | None], Array] | None = None

    @property
    def name(self) -> str:
        return f"the program for any model with tables, in {self.written}"

    def train(
        self, update: UserUpdate, model: LanguageModel, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
    ) -> UserResult:
        """What each user of a block sends: as `jax.vmap(update)`. `clip_norms` is [users, parts]."""
        assert isinstance(update, FedAvg)
        block = _Block(self, update, model, users)
        return block.train(keys, clip_norms, last)

    def put_together(self, update: Any) -> Any:
        """Updates have the form of the model's parameters already."""
        return update

    def other_level(self, received: Array, unit: bool, outputs: Array, bias: Array | None) -> Array:
        """log2 of Σ exp2(logit) of each token, by the model as received."""
        if self.level is None:
            return _level(_other_logits(received, unit, outputs, bias))
        return self.level(_other_rows(received, unit, outputs.dtype), outputs, bias)


def fits(update: UserUpdate, model: Any) -> bool:
    """Can `Softmax.train` compute this update of this model?"""
    tables = tables_of(model)
    return (
        isinstance(update, FedAvg)
        and (update.objective is plain or type(update.objective) is WithoutForgetting)
        and update.gradient_clip is None
        and type(update.clipping) in _CLIPS
        and tables is not None
        and {tables.words, tables.output} <= set(layer_names(split(model)[0]))
    )


_CLIPS: tuple[type[Clip], ...] = (FlatClip, NoClip, PerLayerClip)


class Sparse(NamedTuple):
    """Δ of a table that is only read. A row is as it was when it was last read, and `log` tells what to multiply it by.

    Clips multiply all rows. They add to `clips`, and a row is multiplied by exp(clips - log) when it is read.
    """

    delta: Array  # [users, vocabulary, size]
    log: Array  # [users, vocabulary]
    clips: Array  # [users]
    squares: Array  # [users]: of all rows, as multiplied

    @staticmethod
    def zeros(users: int, table: Array) -> Sparse:
        return Sparse(
            jnp.zeros((users, *table.shape)), jnp.zeros((users, len(table))), jnp.zeros(users), jnp.zeros(users)
        )

    def rows(self, ids: Array) -> Array:
        rows, log = jax.vmap(lambda delta, log, ids: (delta[ids], log[ids]))(self.delta, self.log, ids)
        return rows * jnp.exp(self.clips[:, None] - log)[..., None]

    def add(self, ids: Array, change: Array) -> Sparse:
        ids, change, first = _added_up(ids, change, self.delta.shape[1])
        old = self.rows(jnp.minimum(ids, self.delta.shape[1] - 1))
        new = old + change
        grown = jnp.sum(jnp.where(first[..., None], new * new - old * old, 0), axis=(1, 2))
        return Sparse(
            _put(self.delta, ids, new),
            _put(self.log, ids, jnp.broadcast_to(self.clips[:, None], ids.shape)),
            self.clips,
            jnp.maximum(self.squares + grown, 0),
        )

    def clip(self, factor: Array) -> Sparse:
        return self._replace(clips=self.clips + jnp.log(factor), squares=self.squares * factor * factor)

    def whole(self) -> Array:
        return self.delta * jnp.exp(self.clips[:, None] - self.log)[..., None]


_added_up = jax.vmap(added_up, in_axes=(0, 0, None))


def _put(rows: Array, ids: Array, new: Array) -> Array:
    def one(rows: Array, ids: Array, new: Array) -> Array:
        return rows.at[ids].set(new.astype(rows.dtype), mode="drop", unique_indices=True)

    return jax.vmap(one)(rows, ids, new)


class _Carry(NamedTuple):
    """What one step leaves to the next."""

    stored: list[Any]  # Δ before its clip, in units; None for a table that is only read
    words: Sparse | None
    clip: Array  # [users, parts]
    state: Any
    cut: Array  # [users, parts]: was a part ever clipped?
    length: Array  # of Δ before the last clip
    losses: Array


class _Block:
    """The users of a block, and how their model is taken apart."""

    def __init__(self, softmax: Softmax, update: FedAvg, model: LanguageModel, users: User):
        self.softmax, self.update, self.model = softmax, update, model
        params, self.frozen = split(model)
        self.received, self.structure = jax.tree.flatten(params)
        tables, names = tables_of(model), layer_names(params)
        assert tables is not None
        self.unit_rows = tables.unit
        self.words, self.output = names.index(tables.words), names.index(tables.output)
        self.bias = None if tables.bias is None else names.index(tables.bias)
        self.tied = self.words == self.output
        self.body = [i for i in range(len(names)) if i not in (self.words, self.output, self.bias)]
        groups = update.clipping.parts(range(len(names)))
        self.part = [number for number, group in enumerate(groups) for _ in group]
        self.count, self.needed = users.length.shape[0], update.steps(users.length)
        cut = partial(cut_into_lanes, lanes=update.batch, unroll=update.unroll, bos=update.bos)
        steps = jax.vmap(lambda user: cut(update.text(user)))(users)
        self.steps = jax.tree.map(lambda part: part.swapaxes(0, 1), steps)  # [steps, users, lanes, unroll]
        self.table = self._aligned(self.received[self.output].astype(softmax.kind))
        # λ, and whether the received model reads along.
        objective = update.objective
        self.user_share = objective.user_share if isinstance(objective, WithoutForgetting) else 1.0
        self.compares = isinstance(objective, WithoutForgetting)

    def train(self, keys: PRNGKeyArray, clip_norms: Array, last: Any) -> UserResult:
        update, count, stored = self.update, self.count, self.softmax.stored
        bound = clip_norms * SAFE_SHARE
        unit = unit_of(jnp.linalg.norm(clip_norms, axis=1), stored)

        def kept(index: int, leaf: Array) -> Array | None:  # vectors are small and stay in float32
            if index == self.words and not self.tied:
                return None
            leaf = self.table if index == self.output else leaf
            return nothing((count, *leaf.shape), stored if leaf.ndim > 1 else jnp.float32)

        deltas = [kept(index, leaf) for index, leaf in enumerate(self.received)]
        words = None if self.tied else Sparse.zeros(count, self.received[self.words])
        begin = _Carry(
            deltas, words, jnp.ones(bound.shape), None, jnp.zeros(bound.shape, bool), jnp.zeros(count), jnp.zeros(count)
        )

        def epoch(number: Array, carry: _Carry) -> _Carry:
            epoch_keys = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
            begin = carry._replace(state=self._fresh_states(), losses=jnp.zeros(count))
            step = partial(self._step, epoch_keys, unit, bound)
            return jax.lax.fori_loop(0, last, step, begin)._replace(state=None)

        # One epoch is not put into a loop: it would be compiled twice.
        carry = epoch(jnp.zeros((), jnp.int32), begin)
        if update.epochs > 1:
            carry = jax.lax.fori_loop(1, update.epochs, epoch, carry)
        changes = [self._whole(carry, unit, index) for index in range(len(self.received))]
        losses = carry.losses / jnp.maximum(jnp.sum(self.steps.mask, axis=(0, 2, 3)), 1)
        trained = Trained(self.structure.unflatten(changes), carry.length, carry.cut, losses)
        return jax.vmap(partial(clip_update, update))(trained, clip_norms)

    def _fresh_states(self) -> Any:
        state = self.model.initial_state()
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.count, self.update.batch, *leaf.shape)), state)
        return (state, state) if self.compares else (state, None)

    def _scale(self, clip: Array, unit: Array, index: int) -> Array:
        """[users]: what the stored numbers of a leaf are multiplied by."""
        of_part = clip[:, self.part[index]]
        return of_part * unit if self.received[index].ndim > 1 else of_part

    def _whole(self, carry: _Carry, unit: Array, index: int) -> Array:
        if index == self.words and carry.words is not None:
            return carry.words.whole()
        delta = carry.stored[index]
        if index == self.output:
            delta = delta[..., : self.size]
        return _like(self._scale(carry.clip, unit, index), delta) * delta

    @property
    def size(self) -> int:
        """Of a row of the table of logits."""
        return self.received[self.output].shape[1]

    def _aligned(self, rows: Array) -> Array:
        """Rows of the table of logits, outputs, or changes of its rows, as wide as the table is kept."""
        short = -self.size % self.softmax.aligned
        return jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, short)]) if short else rows

    def _read(self, leaves: list[Array], rows: Array, state: Any, keys: Any) -> tuple[Array, Any]:
        """The outputs [lanes, unroll, size] of one user, by the model with these leaves in the places of its body."""
        all_leaves = list(self.received)
        for index, leaf in zip(self.body, leaves, strict=True):
            all_leaves[index] = leaf
        model: Any = join(self.structure.unflatten(all_leaves), self.frozen)
        with reading_with(self.softmax.recurrence):
            if keys is None:
                return jax.vmap(model.read_rows)(rows, state)
            return jax.vmap(model.read_rows)(rows, state, keys)

    def _step(self, epoch_keys: PRNGKeyArray, unit: Array, bound: Array, number: Array, carry: _Carry) -> _Carry:
        update, kind, count = self.update, self.softmax.kind, self.count
        batch: Batch = jax.tree.map(lambda part: part[number], self.steps)
        state, before = carry.state
        lanes = (count, update.batch, update.unroll)

        def flat(values: Array) -> Array:  # the tokens of all lanes together
            return values.reshape(count, update.batch * update.unroll, *values.shape[3:])

        inputs, targets, mask = flat(batch.inputs), flat(batch.targets), flat(batch.mask)
        # Without targets nothing changes, also where the model has diverged.
        active = (number < self.needed) & (jnp.sum(mask, axis=1) > 0)
        scales = [self._scale(carry.clip, unit, index) for index in range(len(self.received))]

        # Forwards: the rows of the words, the model's own reading, the scores.
        if carry.words is None:
            change = jax.vmap(lambda delta, ids: delta[ids])(carry.stored[self.words], inputs)
            change = scales[self.words][:, None, None] * change[..., : self.size]
        else:
            change = carry.words.rows(inputs)
        rows = (self.received[self.words][inputs] + change).reshape(*lanes, -1)
        body = []
        for index in self.body:
            leaf = self.received[index] + _like(scales[index], carry.stored[index]) * carry.stored[index]
            body.append(leaf.astype(kind) if self.received[index].ndim > 1 else leaf)
        keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, number), update.batch))(epoch_keys)
        read = jax.vmap(lambda leaves, rows, state, keys: self._read(leaves, rows, state, keys))
        outputs, back, state = jax.vjp(lambda body, rows: read(body, rows, state, keys), body, rows, has_aux=True)
        outputs = flat(outputs) / LN2
        narrow = self._aligned(outputs.astype(kind))

        share = mask / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
        scale = jnp.where(active, scales[self.output], -1.0)
        table = Table(self.table, carry.stored[self.output], scale, self._bias(carry), self.unit_rows)
        target, before = self._target(targets, share, batch.inputs, before)
        scores = self.softmax.scores(narrow, table, target)
        wanted, chosen = table.rows(targets), 0.0
        # What reads the table comes before it is stepped, in place.
        level, wanted = jax.lax.optimization_barrier((scores.level, wanted))
        if table.bias is not None:
            chosen = jnp.take_along_axis(table.bias, targets, axis=1)
        wanted_score = jnp.sum(narrow.astype(jnp.float32) * wanted, axis=-1) + chosen
        loss = LN2 * (level - target.user_share * wanted_score)
        of_outputs = scores.mean - target.user_share * wanted
        if scores.other is not None:
            # The other model's mean logit is the product with its mean row.
            other = jnp.sum(narrow.astype(jnp.float32) * scores.other, axis=-1)
            loss = loss - LN2 * (1 - target.user_share) * other
            of_outputs = of_outputs - (1 - target.user_share) * scores.other

        # Backwards.
        of_outputs = jnp.where(mask[..., None] > 0, of_outputs * share[..., None], 0)
        of_body, of_rows = back(of_outputs[..., : self.size].reshape(*lanes, -1))
        of_rows = flat(of_rows).astype(jnp.float32)
        of_rows = jnp.where(active[:, None, None], of_rows, 0)
        step = Step(table.scale, unit, update.learning_rate)
        new, squares = list(carry.stored), [jnp.zeros(count)] * len(self.received)
        new[self.output], squares[self.output], of_bias = self.softmax.step_table(narrow, table, target, level, step)
        words = carry.words
        if words is None:
            change = self._aligned(-update.learning_rate * of_rows)
            new[self.words], grown = _add_rows(new[self.words], inputs, change, unit)
            squares[self.words] = squares[self.words] + grown
        else:
            words = words.add(inputs, -update.learning_rate * of_rows)
            squares[self.words] = words.squares
        gradients = dict(zip(self.body, of_body, strict=True))
        if self.bias is not None:
            gradients[self.bias] = of_bias
        before_it = squares[self.output]
        for index, gradient in gradients.items():
            # One after the other: XLA would step all of them in one piece, and copy Δ since that is not done in place.
            scale, _ = jax.lax.optimization_barrier((jnp.where(active, scales[index], -1.0), before_it))
            new[index], squares[index] = self._step_leaf(carry.stored[index], gradient, scale, unit)
            before_it = squares[index]

        # The clip of each part: a number that the next step multiplies by.
        by_leaf = jnp.stack(squares, axis=1)
        length = jnp.sqrt(jnp.sum(by_leaf, axis=1))
        of_parts = [sum(squares[i] for i, part in enumerate(self.part) if part == each) for each in set(self.part)]
        norms = jnp.sqrt(jnp.stack(of_parts, axis=1))
        within = norms <= bound if update.clip_every_step else jnp.full(bound.shape, True)
        clip = jnp.where(active[:, None], jnp.where(within, 1.0, bound / norms), carry.clip)
        if words is not None:
            words = words.clip(jnp.where(active, clip[:, self.part[self.words]], 1.0))
        return _Carry(
            new,
            words,
            clip,
            (state, before),
            carry.cut | (active[:, None] & ~within),
            jnp.where(active, length, carry.length),
            carry.losses + jnp.sum(jnp.where(mask > 0, loss, 0), axis=1),
        )

    def _bias(self, carry: _Carry) -> Array | None:
        if self.bias is None:
            return None
        scale = carry.clip[:, self.part[self.bias]]
        return (self.received[self.bias] + scale[:, None] * carry.stored[self.bias]) / LN2

    def _target(self, tokens: Array, share: Array, inputs: Array, before: Any) -> tuple[Target, Any]:
        """What the outputs are compared with. The received model reads along, if the objective asks for it."""
        if not self.compares:
            return Target(tokens, share), None
        kind, count = self.softmax.kind, self.count
        body = [self.received[index] for index in self.body]
        body = [leaf.astype(kind) if leaf.ndim > 1 else leaf for leaf in body]
        rows = self.received[self.words][inputs]
        outputs, before = jax.vmap(lambda rows, state: self._read(body, rows, state, None))(rows, before)
        narrow = self._aligned((outputs / LN2).astype(kind).reshape(count, tokens.shape[1], -1))
        bias = None if self.bias is None else self.received[self.bias] / LN2
        level = self.softmax.other_level(self.table, self.unit_rows, narrow, bias)
        return Target(tokens, share, self.user_share, narrow, level, bias), before

    def _step_leaf(self, stored: Array, gradient: Array, scale: Array, unit: Array) -> tuple[Array, Array]:
        """Δ of one array after a step, in units, and its squares. A scale below 0 leaves it as it is."""
        new = _like(scale, stored) * stored - self.update.learning_rate * gradient.astype(jnp.float32)
        return jnp.where(_like(scale, stored) < 0, stored, _in_units(new, stored.dtype, unit)), _squares(new)


def _squares(leaf: Array) -> Array:
    """[users]: the sum of the squares of an array that is being written.

    Row by row: XLA would cut its numbers into other rows, read slices of gradients out of order, and write the array
    twice, once in float32.
    """
    by_row = jax.lax.optimization_barrier(jnp.sum(jnp.square(leaf), axis=-1))
    return jnp.sum(by_row, axis=tuple(range(1, by_row.ndim)))


def _like(number: Array, leaf: Array) -> Array:
    """A number for each user, to multiply their leaf by."""
    return number.reshape(-1, *[1] * (leaf.ndim - 1))


def _in_units(new: Array, kind: Any, unit: Array) -> Array:
    if kind == jnp.float32:
        return new
    most = float(jnp.finfo(kind).max)
    return jnp.clip(new * _like(1 / unit, new), -most, most).astype(kind)  # exact: a unit is a power of two


def _add_rows(stored: Array, ids: Array, change: Array, unit: Array) -> tuple[Array, Array]:
    """Adds to some rows of Δ, and by how much its squares grow."""
    ids, change, first = _added_up(ids, change, stored.shape[1])
    unit = jnp.ones_like(unit) if stored.dtype == jnp.float32 else unit
    old = jax.vmap(lambda rows, ids: rows[ids])(stored, jnp.minimum(ids, stored.shape[1] - 1))
    old = old.astype(jnp.float32) * unit[:, None, None]
    new = old + change
    grown = jnp.sum(jnp.where(first[..., None], new * new - old * old, 0), axis=(1, 2))
    return _put(stored, ids, _in_units(new, stored.dtype, unit)), grown


# The plain twin: logits of all tokens in memory.


def _level(logits: Array) -> Array:
    most = jnp.max(logits, axis=-1, keepdims=True)
    return most[..., 0] + jnp.log2(jnp.sum(jnp.exp2(logits - most), axis=-1))


def _all_rows(table: Table) -> tuple[Array, Array, Array]:
    """Δ, the rows of the table of every user, and 1 / their norms (1 where they are free)."""
    change = table.scale[:, None, None] * table.delta
    full = table.received.astype(jnp.float32) + change
    if not table.unit:
        return change, full, jnp.ones(())
    inverse = jax.lax.rsqrt(jnp.maximum(jnp.sum(full * full, -1, keepdims=True), 1e-24))
    return change, full * inverse, inverse


def _logits(outputs: Array, rows: Array, bias: Array | None) -> Array:
    logits = jnp.einsum("ute,uve->utv", outputs, rows, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias[:, None]


def _other_chances(table: Table, target: Target) -> Array:
    """What the other model predicts for each token: it has the table as received."""
    assert target.outputs is not None
    assert target.level is not None
    logits = _other_logits(table.received, table.unit, target.outputs, target.bias)
    return jnp.exp2(logits - target.level[..., None])


def _other_rows(received: Array, unit: bool, kind: Any) -> Array:
    rows = received.astype(jnp.float32)
    return (unit_rows(rows) if unit else rows).astype(kind)


def _other_logits(received: Array, unit: bool, outputs: Array, bias: Array | None) -> Array:
    rows = _other_rows(received, unit, outputs.dtype)
    logits = jnp.einsum("ute,ve->utv", outputs, rows, preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias


def _scores(outputs: Array, table: Table, target: Target) -> Scores:
    rows = _all_rows(table)[1].astype(outputs.dtype)
    logits = _logits(outputs, rows, table.bias)
    level = _level(logits)

    def mean_row(chances: Array) -> Array:
        return jnp.einsum("utv,uve->ute", chances.astype(rows.dtype), rows, preferred_element_type=jnp.float32)

    other = None if target.outputs is None else mean_row(_other_chances(table, target))
    return Scores(level, mean_row(jnp.exp2(logits - level[..., None])), other)


def _step_table(
    outputs: Array, table: Table, target: Target, level: Array, step: Step
) -> tuple[Array, Array, Array | None]:
    change, rows, inverse = _all_rows(table)
    logits = _logits(outputs, rows.astype(outputs.dtype), table.bias)
    errors = jnp.exp2(logits - level[..., None])
    errors = errors - target.user_share * (target.tokens[..., None] == jnp.arange(rows.shape[1]))
    if target.outputs is not None:
        errors = errors - (1 - target.user_share) * _other_chances(table, target)
    errors = errors * target.share[..., None]
    narrow = (errors * LN2).astype(outputs.dtype)
    gradient = jnp.einsum("utv,ute->uve", narrow, outputs).astype(jnp.float32)
    if table.unit:
        gradient = inverse * (gradient - rows * jnp.sum(rows * gradient, -1, keepdims=True))
    new = change - step.learning_rate * gradient
    stepped = _in_units(new, table.delta.dtype, step.unit)
    stepped = jnp.where(step.scale[:, None, None] < 0, table.delta, stepped)
    of_bias = None if table.bias is None else jnp.sum(errors, axis=1)
    return stepped, _squares(new), of_bias


def plain_softmax(kind: Any = jnp.float32, stored: Any = jnp.float32) -> Softmax:
    return Softmax(kind, stored, _scores, _step_table, aligned=ALIGNED if kind == jnp.bfloat16 else 1)
