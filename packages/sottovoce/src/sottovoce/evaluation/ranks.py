"""The rank and the loss of each target: all that most measures of a prediction ask of the logits.

`Softmax` finds them without the logits of all tokens at once, a tile of the table of words at a time, so that the
logits of a tile stay in a core's cache. `ranks_of` is its slow twin. They agree but for rounding: a loss within 1e-5 of
its size, a rank wherever no other logit is as close to the target's as that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sottovoce.models.head import LN2, cross_entropy, exp2, offset_of, tables_of, unit_rows

TILE = 500  # rows of the table
GROUP = 256  # targets: with a tile's logits of them, half a megabyte
SLABS = 20  # of a tile: their numbers are added up in one pass, and kept apart until the end
_LOW = -1e30  # below every logit, and finite


class Ranks(NamedTuple):
    """Of some targets."""

    rank: Any  # how many tokens come before it
    loss: Any  # -ln of its probability


def ranks_of(logits: Float[Array, "time vocabulary"], targets: Int[Array, " time"]) -> Ranks:
    """From all logits."""
    return Ranks(rank_of(logits, targets), cross_entropy(logits, targets))


def rank_of(logits: Float[Array, "time vocabulary"], targets: Int[Array, " time"]) -> Int[Array, " time"]:
    """The number of tokens that come before the target; of equal logits the lower id comes first, as in argmax.

    Counts all that do not come after it, so that a target with a logit of NaN ranks last, not first.
    """
    own = jnp.take_along_axis(logits, targets[:, None], axis=-1)
    later = jnp.arange(logits.shape[-1]) >= targets[:, None]
    return jnp.sum(~((logits < own) | ((logits == own) & later)), axis=-1)


class _Sums(NamedTuple):
    """Over the tokens so far. Each row adds up some of them."""

    most: Array  # what is subtracted from the logits, in base 2: [targets], or [rows, targets] where it is looked for
    total: Array  # [rows, targets]: Σ exp2(logit - most)
    before: Array  # [rows, targets]: tokens before the target


class Softmax(NamedTuple):
    """The table that the logits of a model are computed with."""

    rows: Float[Array, "vocabulary size"]
    bias: Float[Array, " vocabulary"]
    unit: bool  # rows at norm 1, and no bias: then the most that a logit can be is known

    @staticmethod
    def fits(model: Any) -> bool:
        """Are the logits of a model products with plain tables of float32?"""
        tables = tables_of(model)
        names = () if tables is None else (tables.output, *([tables.bias] if tables.bias else []))
        leaves = [getattr(model, name, None) for name in names]
        return bool(leaves) and all(getattr(leaf, "dtype", None) == jnp.float32 for leaf in leaves)

    @classmethod
    def of(cls, model: Any) -> Softmax:
        tables = tables_of(model)
        assert tables is not None
        rows = getattr(model, tables.output)
        bias = jnp.zeros(len(rows)) if tables.bias is None else getattr(model, tables.bias)
        return cls(unit_rows(rows) if tables.unit else rows, bias, tables.unit and tables.bias is None)

    def ranks(self, outputs: Float[Array, "time size"], targets: Int[Array, " time"], counted: Array) -> Ranks:
        """As `ranks_of`, but for targets that do not count: theirs may be anything."""
        count = len(targets)
        group = min(GROUP, count)
        padded = -count % group

        def cut(part: Array) -> Array:
            part = jnp.pad(part, [(0, padded), *[(0, 0)] * (part.ndim - 1)])
            return part.reshape(-1, group, *part.shape[1:])

        def some(_: None, part: tuple[Array, Array, Array]) -> tuple[None, Ranks]:
            outputs, targets, counted = part
            nothing = Ranks(jnp.zeros(group), jnp.zeros(group))
            return None, jax.lax.cond(jnp.any(counted > 0), lambda: self._group(outputs, targets), lambda: nothing)

        _, found = jax.lax.scan(some, None, (cut(outputs), cut(targets), cut(counted)))
        # What is not finite would pass through exp2 as some number.
        sound = jnp.sum(0 * self.rows) + jnp.sum(0 * self.bias)
        rank, loss = (part.reshape(-1)[:count] for part in found)
        return Ranks(rank, loss + sound)

    def _group(self, outputs: Array, targets: Array) -> Ranks:
        columns = jax.lax.optimization_barrier(outputs.T)
        # By a product such as those of the tiles: another order of additions could round it to another number.
        own = jnp.diagonal(self.rows[targets] @ columns) + self.bias[targets]
        tiles, rest = divmod(len(self.rows), TILE)
        sums = []
        if tiles:

            def tile(number: Array, sums: _Sums) -> _Sums:
                return self._add(sums, self._logits(columns, number * TILE, TILE), number * TILE, (own, targets))

            start = self._start(outputs, TILE // SLABS)
            sums += [jax.lax.fori_loop(0, tiles, tile, start)]
        if rest:
            first = tiles * TILE
            logits = self._logits(columns, first, rest)
            sums += [self._add(self._start(outputs, rest), logits, first, (own, targets))]
        return _put_together(sums, own)

    def _start(self, outputs: Array, rows: int) -> _Sums:
        none = jnp.zeros((rows, len(outputs)))
        return _Sums(offset_of(outputs / LN2) if self.unit else none + _LOW, none, none)

    def _logits(self, columns: Array, first: Any, size: int) -> Array:
        """Of a tile, [words, targets]."""
        logits = jax.lax.dynamic_slice_in_dim(self.rows, first, size) @ columns
        if not self.unit:
            logits += jax.lax.dynamic_slice_in_dim(self.bias, first, size)[:, None]
        return jax.lax.optimization_barrier(logits)  # or they would be computed once for each use

    def _add(self, sums: _Sums, logits: Array, first: Any, target: tuple[Array, Array]) -> _Sums:
        """The sums with those of a tile, whose words begin at `first`. A row of the sums adds up one word a slab."""
        own, targets = target
        height = len(sums.total)
        slabs = [slice(start, start + height) for start in range(0, len(logits), height)]
        most, total, before = sums
        if not self.unit:
            for slab in slabs:
                most = jnp.maximum(most, logits[slab] / LN2)
            total = total * exp2(sums.most - most)
        for slab in slabs:
            here, ids = logits[slab], first + jnp.arange(slab.start, slab.stop)[:, None]
            total = total + exp2(here / LN2 - most)
            after = (here < own) | ((here == own) & (ids > targets)) | (ids == targets)
            before = before + (~after).astype(jnp.float32)
        return _Sums(most, total, before)


def _put_together(sums: list[_Sums], own: Array) -> Ranks:
    most = jnp.max(jnp.stack([jnp.max(jnp.atleast_2d(part.most), axis=0) for part in sums]), axis=0)
    total = sum(jnp.sum(part.total * exp2(part.most - most), axis=0) for part in sums)
    before = sum(jnp.sum(part.before, axis=0) for part in sums)
    sound = 0 * most  # NaN where a logit is infinite
    return Ranks(before + jnp.isnan(own), LN2 * (most + jnp.log2(total)) - own + sound)
