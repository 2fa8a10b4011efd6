"""Federated SGD of any model with tables for a block of users: `FedSGD`, its steps computed together.

All users have the model as received, so a product with its weights is one for all users. Gradients stop between the
steps of a user: once the hidden state before each step is known, all steps are lanes of one gradient.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from sottovoce.kernels.lstm_users import LN2, offset_of
from sottovoce.kernels.one_table import OneTable
from sottovoce.kernels.recurrence import in_jax
from sottovoce.local.objective import plain
from sottovoce.local.update import TRAINING, FedSGD, Trained, User, UserResult, UserUpdate, clip_update, cut_into_lanes
from sottovoce.models.contract import LanguageModel, join, layer_names, split
from sottovoce.models.head import add_rows, tables_of, unit_rows
from sottovoce.models.lstm import reading_with
from sottovoce.privacy.clipping import norm

LOGITS = 2**23  # of one user, in memory at once


def fits(update: UserUpdate, model: Any) -> bool:
    """Can `OneGradient.train` compute this update of this model?"""
    tables = tables_of(model)
    if not isinstance(update, FedSGD) or update.objective is not plain or tables is None:
        return False
    return {tables.words, tables.output} <= set(layer_names(split(model)[0]))


class OneGradient(NamedTuple):
    """Weights are multiplied as numbers of this kind, with float32 sums."""

    kind: Any = jnp.float32
    logits: int = LOGITS
    name: str = "one gradient of all steps"
    softmax: OneTable | None = None  # kernels for the products with the table

    def train(
        self, update: UserUpdate, model: LanguageModel, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
    ) -> UserResult:
        """What each user of a block sends: as `jax.vmap(update)`. `clip_norms` is [users, parts]."""
        assert isinstance(update, FedSGD)
        received = _Received(self, update, model)
        return jax.vmap(partial(received.train, last))(users, keys, clip_norms)

    def put_together(self, update: Any) -> Any:
        return update


class _Received:
    """The model that all users have, taken apart."""

    def __init__(self, program: OneGradient, update: FedSGD, model: LanguageModel):
        self.update, self.model, self.kind, self.logits = update, model, program.kind, program.logits
        self.softmax = program.softmax
        params, self.frozen = split(model)
        self.leaves, self.structure = jax.tree.flatten(params)
        tables, names = tables_of(model), layer_names(params)
        assert tables is not None
        self.words, self.output = names.index(tables.words), names.index(tables.output)
        self.bias = None if tables.bias is None else names.index(tables.bias)
        self.places = [i for i in range(len(names)) if i not in (self.words, self.output, self.bias)]
        self.body = [self._narrow(self.leaves[i]) for i in self.places]
        self.unit = tables.unit
        table = self.leaves[self.output]
        self.table = self._narrow(unit_rows(table) if tables.unit else table)

    def _narrow(self, leaf: Array) -> Array:
        return leaf.astype(self.kind) if leaf.ndim > 1 else leaf

    def _read(self, body: list[Array], rows: Array, state: Any, keys: Any) -> tuple[Array, Any]:
        leaves = list(self.leaves)
        for place, leaf in zip(self.places, body, strict=True):
            leaves[place] = leaf
        model: Any = join(self.structure.unflatten(leaves), self.frozen)
        with reading_with(in_jax(self.kind)):
            return jax.vmap(model.read_rows)(rows, state, keys)

    def train(self, last: Any, user: User, key: PRNGKeyArray, clip_norms: Array) -> UserResult:
        """What one user sends."""
        update = self.update
        steps = cut_into_lanes(update.select(user, key), update.batch, update.unroll, update.bos)
        count, lanes, unroll = steps.inputs.shape
        together = max(1, min(count, self.logits // (lanes * unroll * len(self.table))))
        if self.softmax is not None:  # no logits in memory
            together = count
        padded = -(-count // together) * together
        steps = jax.tree.map(lambda part: jnp.pad(part, ((0, padded - count), (0, 0), (0, 0))), steps)
        training = jax.random.fold_in(key, TRAINING)
        keys = jax.vmap(lambda index: jax.random.split(jax.random.fold_in(training, index), lanes))(jnp.arange(padded))
        rows = self.leaves[self.words]

        def enter(state: Any, step: tuple[Array, Array]) -> tuple[Any, Any]:
            return self._read(self.body, rows[step[0]], state, step[1])[1], state

        fresh = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), self.model.initial_state())
        _, states = jax.lax.scan(enter, fresh, (steps.inputs, keys))
        targets = jnp.maximum(jnp.sum(steps.mask), 1)

        def chunk(number: Array, carry: tuple) -> tuple:
            gradients, loss = carry

            def some(part: Array) -> Array:  # the lanes of some steps, one after the other
                part = jax.lax.dynamic_slice_in_dim(part, number * together, together)
                return part.reshape(together * lanes, *part.shape[2:])

            inputs, wanted, mask = jax.tree.map(some, steps)
            begin = jax.tree.map(some, (states, keys))
            more_loss, more = self._gradient(inputs, wanted, mask / targets, begin, last)
            return jax.tree.map(jnp.add, gradients, more), loss + more_loss

        zeros = [jnp.zeros_like(leaf) for leaf in self.leaves]
        chunks = (last + together - 1) // together
        gradients, loss = jax.lax.fori_loop(0, chunks, chunk, (zeros, jnp.zeros(())))
        change = [-update.learning_rate * part for part in gradients]
        trained = Trained(self.structure.unflatten(change), norm(change), jnp.array(False), loss)
        return clip_update(update, trained, clip_norms)

    def _gradient(
        self, inputs: Array, targets: Array, share: Array, begin: tuple, last: Any
    ) -> tuple[Array, list[Array]]:
        """The loss and the gradient of every leaf, each target with its share."""
        states, keys = begin
        rows = self.leaves[self.words][inputs]
        outputs, back = jax.vjp(lambda body, rows: self._read(body, rows, states, keys)[0], self.body, rows)
        narrow = (outputs / LN2).astype(self.kind).reshape(-1, outputs.shape[-1])
        targets, share, counts = targets.reshape(-1), share.reshape(-1), share.reshape(-1) > 0
        wanted = self.table[targets].astype(jnp.float32)
        chosen = jnp.sum(narrow.astype(jnp.float32) * wanted, axis=-1)
        bias = None if self.bias is None else self.leaves[self.bias] / LN2
        if bias is not None:
            chosen = chosen + bias[targets]
        scores = self._with_logits if self.softmax is None else partial(self._with_kernels, last)
        level, of_outputs, of_table, of_bias = scores(narrow, targets, share, bias, wanted)
        loss = LN2 * jnp.sum(jnp.where(counts, (level - chosen) * share, 0))
        of_outputs = jnp.where(counts[:, None], of_outputs, 0)
        if self.unit:
            table = self.leaves[self.output]
            inverse = jax.lax.rsqrt(jnp.maximum(jnp.sum(table * table, axis=-1, keepdims=True), 1e-24))
            along = jnp.sum(table * of_table, axis=-1, keepdims=True) * inverse * inverse
            of_table = inverse * (of_table - table * along)
        of_body, of_rows = back(of_outputs.reshape(outputs.shape))
        found = [jnp.zeros(())] * len(self.leaves)
        for place, of_leaf in zip(self.places, of_body, strict=True):
            found[place] = of_leaf.astype(jnp.float32)
        if self.bias is not None:
            found[self.bias] = of_bias
        found[self.output] = of_table
        base = of_table if self.words == self.output else jnp.zeros_like(self.leaves[self.words])
        found[self.words] = self._add_rows(base, inputs, of_rows)
        return loss, found

    def _add_rows(self, rows: Array, ids: Array, change: Array) -> Array:
        """Adds to the rows of some tokens, step by step: the order of the sums is always the same."""
        size = self.update.batch * self.update.unroll
        ids, change = ids.reshape(-1, size), change.reshape(-1, size, change.shape[-1])
        return jax.lax.fori_loop(0, len(ids), lambda step, rows: add_rows(rows, ids[step], change[step]), rows)

    def _with_logits(self, narrow: Array, targets: Array, share: Array, bias: Array | None, wanted: Array) -> tuple:
        """The level of each token, the gradients of its output, of the table and of the bias. Logits are in memory."""
        counts = share > 0
        logits = jnp.einsum("te,ve->tv", narrow, self.table, preferred_element_type=jnp.float32)
        if bias is not None:
            logits = logits + bias
        # One pass over the logits: what the sum divides by, and the share of a target, are put into the outputs. With
        # rows at norm 1 the most that a logit can be is known, and need not be looked for.
        most = offset_of(narrow) if self.unit else jnp.max(logits, axis=-1)
        chances = jnp.exp2(logits - most[:, None])
        total, chances = jnp.sum(chances, axis=-1), chances.astype(self.kind)
        part = jnp.where(counts, share / total, 0)[:, None]
        scaled = (part * narrow.astype(jnp.float32)).astype(self.kind)
        mean = jnp.einsum("tv,ve->te", chances, self.table, preferred_element_type=jnp.float32)
        of_table = jnp.einsum("tv,te->ve", chances, scaled, preferred_element_type=jnp.float32)
        of_table = LN2 * self._add_rows(of_table, targets, -share[:, None] * narrow.astype(jnp.float32))
        of_bias = None
        if bias is not None:
            of_bias = jnp.einsum("tv,t->v", chances, part[:, 0].astype(self.kind), preferred_element_type=jnp.float32)
            of_bias = self._add_rows(of_bias[:, None], targets, -share[:, None])[:, 0]
        return most + jnp.log2(total), part * mean - share[:, None] * wanted, of_table, of_bias

    def _with_kernels(
        self, last: Any, narrow: Array, targets: Array, share: Array, bias: Array | None, wanted: Array
    ) -> tuple:
        assert self.softmax is not None
        by_step = (-1, self.update.batch * self.update.unroll)
        given = narrow.reshape(*by_step, narrow.shape[-1]), targets.reshape(by_step), share.reshape(by_step)
        found = self.softmax(self.table, bias, *given, jnp.asarray(last, jnp.int32))
        of_outputs = share[:, None] * (found.mean.reshape(narrow.shape) - wanted)
        return found.level.reshape(-1), of_outputs, found.of_table, found.of_bias
