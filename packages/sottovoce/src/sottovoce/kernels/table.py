"""The products of `any_users` with the table of logits as GPU kernels in Pallas: logits never reach memory.

The first pass over a user's table gives Σ exp2(logit) and the mean rows, by blocks of the vocabulary, with the largest
logit so far taken out. The second forms the gradient of each block of rows, applies the step and adds up its squares.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from sottovoce.kernels.any_users import Scores, Softmax, Table, Target
from sottovoce.kernels.lstm_users import LN2, Step

LARGEST = 256  # of a row: the mean rows of a step's tokens must fit the registers of one program
ROWS = 32  # of the table at a time
PART = 4096  # rows of one program of the first pass: from the vocabulary alone, for sums in the same order every time
GROUP = 640  # rows of one program of the second
TINY = -1e30


def softmax(stored: Any, interpret: bool = False) -> Softmax:
    """Products of bfloat16 numbers with float32 sums."""
    scores, step_table = partial(_scores, interpret=interpret), partial(_step_table, interpret=interpret)
    return Softmax(jnp.bfloat16, stored, scores, step_table, "Pallas")


def fits(tokens: int, size: int) -> bool:
    """Are there kernels for this many tokens in a step, and rows of this size?

    Rows that are cut into several tiles are slower than XLA: measured with rows of 96 and of 300 numbers (docs/log.md).
    """
    return tokens % 16 == 0 and tokens <= 160 and size <= LARGEST and tiles(size) == [(0, size)]


def tiles(length: int) -> list[tuple[int, int]]:
    """A length cut into powers of two from 16, the largest first: (start, size) of each. The last may reach beyond."""
    found, start = [], 0
    while start < length:
        left = length - start
        size = max(16, 1 << (left.bit_length() - 1))
        found.append((start, size))
        start += size
    return found


def _load(ref: Any, index: tuple, mask: Any = None) -> Array:
    from jax.experimental.pallas import triton

    at = ref.at[index]
    return triton.load(at) if mask is None else triton.load(at, mask=mask, other=0)


def _store(ref: Any, index: tuple, values: Array, mask: Any = None) -> None:
    from jax.experimental.pallas import triton

    triton.store(ref.at[index], values, mask=mask)


class _Reader:
    """Blocks of rows and tiles of tokens of one user, in the columns' own tiles."""

    def __init__(self, user: Any, vocabulary: int, tokens: int, size: int):
        self.user, self.vocabulary, self.size = user, vocabulary, size
        self.columns, self.tokens = tiles(size), tiles(tokens)

    def slice(self, column: tuple[int, int]) -> Any:
        """Of the last tile, which may reach beyond the row, the start is not a constant: JAX would refuse it."""
        start, width = column
        return pl.ds(start if start + width <= self.size else start + 0 * self.user, width)

    def inside(self, height: int, column: tuple[int, int]) -> Array | None:
        """[height, columns]: what is in a row; None where all is."""
        start, width = column
        if start + width <= self.size:
            return None
        return start + jax.lax.broadcasted_iota(jnp.int32, (height, width), 1) < self.size

    def mask(self, last: Any, first: Any, column: tuple[int, int]) -> Array:
        """[ROWS, columns]: what is in a block of rows that ends at `last`."""
        rows = first + jax.lax.broadcasted_iota(jnp.int32, (ROWS, column[1]), 0) < last
        inside = self.inside(ROWS, column)
        return rows if inside is None else rows & inside

    def received(self, ref: Any, first: Any) -> list[Array]:
        """A block of the table as received: a piece for each tile of columns."""
        return [
            _load(ref, (pl.ds(first, ROWS), self.slice(c)), self.mask(self.vocabulary, first, c)).astype(jnp.float32)
            for c in self.columns
        ]

    def change(self, ref: Any, first: Any, scale: Array) -> list[Array]:
        """Δ of a block."""
        found = []
        for column in self.columns:
            mask = self.mask(self.vocabulary, first, column)
            piece = _load(ref, (self.user, pl.ds(first, ROWS), self.slice(column)), mask)
            found.append(scale * piece.astype(jnp.float32))
        return found

    def outputs(self, ref: Any, tile: tuple[int, int]) -> list[Array]:
        """Of a tile of tokens: [tokens, columns] for each tile of columns."""
        return [_load(ref, (self.user, pl.ds(*tile), self.slice(c)), self.inside(tile[1], c)) for c in self.columns]

    def put(self, ref: Any, place: tuple, pieces: list[Array]) -> None:
        """Writes the columns of some tokens."""
        for column, piece in zip(self.columns, pieces, strict=True):
            _store(ref, (self.user, *place, self.slice(column)), piece, self.inside(len(piece), column))


def _normalised(rows: list[Array]) -> tuple[list[Array], Array]:
    """Rows at norm 1, and 1 / their norms [ROWS, 1]."""
    squares = sum(jnp.sum(piece * piece, axis=1, keepdims=True) for piece in rows)
    inverse = jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
    return [piece * inverse for piece in rows], inverse


def _dot(left: Array, right: Array, transposed: bool = False) -> Array:
    """left · right, or left · rightᵀ, with float32 sums."""
    contracted = ((1,), (1,) if transposed else (0,))
    return jax.lax.dot_general(left, right, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _product(left: list[Array], right: list[Array]) -> Array:
    """left · rightᵀ, over all tiles of columns."""
    first, *others = (_dot(a, b, transposed=True) for a, b in zip(left, right, strict=True))
    return sum(others, start=first)


def _narrow(pieces: list[Array]) -> list[Array]:
    return [piece.astype(jnp.bfloat16) for piece in pieces]


def _read_scores(*refs: Any, unit: bool, biased: bool, compared: bool, shape: tuple[int, int, int]) -> None:
    """One program of the first pass: the grid is (users, parts)."""
    outputs, table, delta, scale, *rest = refs
    bias = rest.pop(0) if biased else None
    others = [rest.pop(0) for _ in range(2 + biased)] if compared else []
    most_out, total_out, mean_out = rest[:3]
    vocabulary, tokens, size = shape
    user, part = pl.program_id(0), pl.program_id(1)
    reader = _Reader(user, vocabulary, tokens, size)
    factor = scale[user]

    @pl.when(factor >= 0)
    def _() -> None:
        first, last = part * PART, jnp.minimum((part + 1) * PART, vocabulary)
        own = [reader.outputs(outputs, tile) for tile in reader.tokens]
        other = [reader.outputs(others[0], tile) for tile in reader.tokens] if others else []
        levels = [_load(others[1], (user, pl.ds(*tile))) for tile in reader.tokens] if others else []

        def block(number: Any, carry: Any) -> Any:
            start = first + number * ROWS
            there = start + jax.lax.broadcasted_iota(jnp.int32, (1, ROWS), 1) < last
            before = reader.received(table, start)
            rows = [a + b for a, b in zip(before, reader.change(delta, start, factor), strict=True)]
            if unit:
                rows, before = _normalised(rows)[0], _normalised(before)[0]
            rows, before = _narrow(rows), _narrow(before)
            inside = start + jax.lax.iota(jnp.int32, ROWS) < vocabulary
            shift = _load(bias, (user, pl.ds(start, ROWS)), inside)[None] if bias is not None else 0.0
            result = []
            for number, (most, total, means, theirs) in enumerate(carry):
                scores = jnp.where(there, _product(own[number], rows) + shift, TINY)
                new_most = jnp.maximum(most, jnp.max(scores, axis=1))
                chances = jnp.exp2(scores - new_most[:, None])
                shrink = jnp.exp2(most - new_most)
                total = total * shrink + jnp.sum(chances, axis=1)
                narrow = chances.astype(jnp.bfloat16)
                means = [mean * shrink[:, None] + _dot(narrow, piece) for mean, piece in zip(means, rows, strict=True)]
                if others:
                    their_shift = _load(others[2], (pl.ds(start, ROWS),), inside)[None] if biased else 0.0
                    their_scores = _product(other[number], before) + their_shift - levels[number][:, None]
                    narrow = jnp.where(there, jnp.exp2(their_scores), 0).astype(jnp.bfloat16)
                    theirs = [mean + _dot(narrow, piece) for mean, piece in zip(theirs, rows, strict=True)]
                result.append((new_most, total, means, theirs))
            return result

        begin = []
        for _, height in reader.tokens:
            zeros = [jnp.zeros((height, width), jnp.float32) for _, width in reader.columns]
            begin.append((jnp.full((height,), TINY), jnp.zeros((height,)), zeros, zeros if others else []))
        blocks = (last - first + ROWS - 1) // ROWS
        for tile, (most, total, means, theirs) in zip(
            reader.tokens, jax.lax.fori_loop(0, blocks, block, begin), strict=True
        ):
            _store(most_out, (user, part, pl.ds(*tile)), most)
            _store(total_out, (user, part, pl.ds(*tile)), total)
            reader.put(mean_out, (part, pl.ds(*tile)), means)
            if theirs:
                reader.put(rest[3], (part, pl.ds(*tile)), theirs)


def _scores(outputs: Array, table: Table, target: Target, interpret: bool) -> Scores:
    users, tokens, size = outputs.shape
    vocabulary = len(table.received)
    parts = pl.cdiv(vocabulary, PART)
    compared = target.outputs is not None
    inputs = [outputs, table.received, table.delta, table.scale]
    if table.bias is not None:
        inputs.append(table.bias)
    if compared:
        inputs += [target.outputs, target.level]
        if table.bias is not None:
            inputs.append(target.bias)
    of_tokens = jax.ShapeDtypeStruct((users, parts, tokens), jnp.float32)
    rows = jax.ShapeDtypeStruct((users, parts, tokens, size), jnp.float32)
    biased, shape = table.bias is not None, (vocabulary, tokens, size)
    kernel = partial(_read_scores, unit=table.unit, biased=biased, compared=compared, shape=shape)
    most, total, mean, *other = pl.pallas_call(
        kernel,
        grid=(users, parts),
        out_shape=[of_tokens, of_tokens, rows] + ([rows] if compared else []),
        compiler_params=_params(),
        interpret=interpret,
        name="table_scores",
    )(*inputs)
    highest = jnp.max(most, axis=1)
    factor = jnp.exp2(most - highest[:, None])
    sums = jnp.sum(total * factor, axis=1)
    mean = jnp.sum(mean * factor[..., None], axis=1) / sums[..., None]
    return Scores(highest + jnp.log2(sums), mean, jnp.sum(other[0], axis=1) if compared else None)


def _params() -> Any:
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=8, num_stages=2)


def _step_rows(*refs: Any, unit: bool, biased: bool, user_share: float, shape: tuple[int, int, int]) -> None:
    """One program of the second pass: the grid is (users, groups)."""
    outputs, table, delta, scale, units, level, share, targets, rate, *rest = refs
    bias = rest.pop(0) if biased else None
    compared = user_share < 1
    others = [rest.pop(0) for _ in range(2 + biased)] if compared else []
    new_out, squares_out = rest[:2]
    vocabulary, tokens, size = shape
    user, group = pl.program_id(0), pl.program_id(1)
    reader = _Reader(user, vocabulary, tokens, size)
    factor = scale[user]
    most = float(jnp.finfo(new_out.dtype).max)

    @pl.when(factor >= 0)
    def _() -> None:
        first, last = group * GROUP, jnp.minimum((group + 1) * GROUP, vocabulary)
        learning_rate, unit_of_user = rate[0], units[user]

        def block(number: Any, squares: Array) -> Array:
            start = first + number * ROWS
            before, change = reader.received(table, start), reader.change(delta, start, factor)
            rows, inverse = [a + b for a, b in zip(before, change, strict=True)], 1.0
            if unit:
                rows, inverse = _normalised(rows)
                before = _normalised(before)[0] if compared else before
            narrow, before = _narrow(rows), _narrow(before)
            ids = start + jax.lax.iota(jnp.int32, ROWS)
            inside = ids < vocabulary
            shift = _load(bias, (user, pl.ds(start, ROWS)), inside)[:, None] if bias is not None else 0.0
            gradient = [jnp.zeros((ROWS, width), jnp.float32) for _, width in reader.columns]
            of_bias = jnp.zeros((ROWS,), jnp.float32)
            for tile in reader.tokens:
                own = reader.outputs(outputs, tile)
                of_tile = (user, pl.ds(*tile))
                scores = _product(narrow, own) + shift  # [ROWS, tokens]
                errors = jnp.exp2(scores - _load(level, of_tile)[None])
                wanted = (ids[:, None] == _load(targets, of_tile)[None]).astype(jnp.float32)
                errors -= user_share * wanted
                if others:
                    their_shift = _load(others[2], (pl.ds(start, ROWS),), inside)[:, None] if biased else 0.0
                    theirs = _product(before, reader.outputs(others[0], tile)) + their_shift
                    errors -= (1 - user_share) * jnp.exp2(theirs - _load(others[1], of_tile)[None])
                errors *= _load(share, of_tile)[None]
                of_bias += jnp.sum(errors, axis=1)
                errors = (errors * LN2).astype(jnp.bfloat16)
                gradient = [total + _dot(errors, piece) for total, piece in zip(gradient, own, strict=True)]
            if unit:
                along = sum(
                    jnp.sum(row * piece, axis=1, keepdims=True) for row, piece in zip(rows, gradient, strict=True)
                )
                gradient = [inverse * (piece - row * along) for row, piece in zip(rows, gradient, strict=True)]
            for column, piece, old in zip(reader.columns, gradient, change, strict=True):
                mask = reader.mask(last, start, column)
                new = old - learning_rate * piece
                squares = squares + jnp.sum(jnp.where(mask, new * new, 0))
                kept = jnp.clip(new / unit_of_user, -most, most).astype(new_out.dtype)
                _store(new_out, (user, pl.ds(start, ROWS), reader.slice(column)), kept, mask)
            if biased:
                _store(rest[2], (user, pl.ds(start, ROWS)), of_bias, ids < last)
            return squares

        blocks = (last - first + ROWS - 1) // ROWS
        squares_out[user, group] = jax.lax.fori_loop(0, blocks, block, jnp.zeros((), jnp.float32))


def _step_table(
    outputs: Array, table: Table, target: Target, level: Array, step: Step, interpret: bool
) -> tuple[Array, Array, Array | None]:
    users, tokens, size = outputs.shape
    vocabulary = len(table.received)
    groups = pl.cdiv(vocabulary, GROUP)
    units = jnp.ones_like(step.unit) if table.delta.dtype == jnp.float32 else step.unit
    rate = jnp.full((1,), step.learning_rate, jnp.float32)
    inputs = [
        outputs,
        table.received,
        table.delta,
        step.scale,
        units,
        level,
        target.share,
        target.tokens.astype(jnp.int32),
        rate,
    ]
    if table.bias is not None:
        inputs.append(table.bias)
    if target.outputs is not None:
        inputs += [target.outputs, target.level]
        if table.bias is not None:
            inputs.append(target.bias)
    out = [
        jax.ShapeDtypeStruct(table.delta.shape, table.delta.dtype),
        jax.ShapeDtypeStruct((users, groups), jnp.float32),
    ]
    if table.bias is not None:
        out.append(jax.ShapeDtypeStruct((users, vocabulary), jnp.float32))
    user_share = target.user_share if target.outputs is not None else 1.0
    kernel = partial(
        _step_rows,
        unit=table.unit,
        biased=table.bias is not None,
        user_share=user_share,
        shape=(vocabulary, tokens, size),
    )
    new, squares, *of_bias = pl.pallas_call(
        kernel,
        grid=(users, groups),
        out_shape=out,
        input_output_aliases={2: 0},
        compiler_params=_params(),
        interpret=interpret,
        name="table_step",
    )(*inputs)
    return new, jnp.sum(squares, axis=1), of_bias[0] if of_bias else None
