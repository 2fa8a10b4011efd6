"""The products of `any_users` with the table of logits as CUDA kernels for Hopper GPUs: logits never reach memory.

The source is `table.cu`, compiled for the sizes at hand. Rows are padded to a multiple of 16 numbers, and two times 128
of them must fit the shared memory of a multiprocessor.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sottovoce.kernels import hopper
from sottovoce.kernels.any_users import Scores, Softmax, Table, Target
from sottovoce.kernels.hopper import KINDS, Product, float32
from sottovoce.kernels.lstm_users import Step

ROWS = 64  # of the table for a warpgroup at a time; a block has two warpgroups
PART, GROUP = 27 * 2 * ROWS, 40 * ROWS  # rows of a block of the first and of the second pass: from the vocabulary alone
ALIGNED = 16  # a row has a multiple of so many numbers
MEMORY = 232_448  # the most bytes of shared memory that a block can have
WIDEST = 320  # of a row: the mean rows of a step's tokens must fit the registers


class Shape(NamedTuple):
    """What a kernel is compiled for."""

    tokens: int
    size: int
    unit: bool
    biased: bool
    compared: bool
    stored: str

    def columns(self) -> tuple[int, int]:
        """Of one product with the outputs, and how many such products there are for a row."""
        groups, chunks = -(-self.size // 8), -(-self.size // 256)
        return 8 * -(-groups // chunks), chunks

    def by_thirties(self) -> tuple[int, int]:
        """The columns of a row in groups of 32, and those of one product with the errors of the second pass."""
        columns = 32 * -(-self.size // 32)
        return columns, 96 if columns == 96 else 32 if columns % 64 else 64

    def teams(self) -> int:
        """The warpgroups of the second pass: a thread that compares needs more registers."""
        return 3 if self.compared else 4

    def memory(self, passes: int) -> int:
        """The bytes of shared memory that the first or the second pass asks for."""
        row, others = self.size * jnp.dtype(self.stored).itemsize, 1 + self.compared
        if passes == 1:
            compared = 8 * ROWS * self.size if self.compared else 0
            return others * (2 * self.tokens * self.size + 4 * ROWS * self.tokens) + 4 * ROWS * row + compared
        return others * 2 * self.tokens * self.by_thirties()[0] + self.teams() * ROWS * row

    def declared(self) -> int:
        """The most bytes that a pass has beside these."""
        return 4 * (4 * self.tokens + 16) + 8 * 16


def fits(shape: Shape) -> bool:
    """Are there kernels for these sizes? Copies into shared memory are of 16 bytes."""
    return (
        shape.tokens % 16 == 0
        and shape.tokens <= 80
        and shape.size % ALIGNED == 0
        and shape.size <= WIDEST
        and max(shape.memory(1), shape.memory(2)) + shape.declared() <= MEMORY
    )


def softmax(shape: Shape) -> Softmax | None:
    """The kernels, if they run here: products of bfloat16 numbers with float32 sums."""
    if not fits(shape) or not hopper.can_run(source(shape)):
        return None
    return Softmax(jnp.bfloat16, jnp.dtype(shape.stored), _scores, _step_table, "CUDA", aligned=ALIGNED)


@cache
def source(shape: Shape, file: str = "table.cu") -> str:
    """A file of kernels for one shape."""
    defined = {"T": shape.tokens, "E": shape.size, "STORED": KINDS[shape.stored]}
    defined |= {"UNIT": int(shape.unit), "BIASED": int(shape.biased), "COMPARED": int(shape.compared)}
    products = [Product(shape.tokens, *each) for each in ((0, 0), (1, 1), (None, 0))]
    products += [Product(shape.tokens // 2, 1, 1)]
    products += [Product(width, None, 1) for width in (shape.columns()[0], shape.by_thirties()[1])]
    return hopper.source(defined, products, "logits.cu", file)


def launch(
    name: str, text: str, memory: int, grid: tuple[int, int], inputs: list, outputs: list,
    in_place: dict | None = None, teams: int = 2,
) -> Any:  # fmt: skip
    """A kernel with blocks of so many warpgroups."""
    if memory > 40_000:
        # Kernels have a few kB more of their own; the launcher raises the limit only for more than 48 kB asked here.
        memory = max(memory, 49_408)
    return hopper.launch(f"{name}_", text, 4 * teams, memory, grid, inputs, outputs, in_place)


def _shape(outputs: Array, table: Table, target: Target) -> Shape:
    biased, compared = table.bias is not None, target.outputs is not None
    return Shape(outputs.shape[1], outputs.shape[2], table.unit, biased, compared, table.delta.dtype.name)


def _others(table: Table, target: Target) -> list:
    biases, others = [], []
    if table.bias is not None:
        biases = [table.bias]
    if target.outputs is not None:
        others = [target.outputs, target.level] + ([] if table.bias is None else [target.bias])
    return biases + others


def _scores(outputs: Array, table: Table, target: Target) -> Scores:
    (users, tokens, size), vocabulary = outputs.shape, len(table.received)
    shape, parts = _shape(outputs, table, target), -(-vocabulary // PART)
    meta = jnp.array([vocabulary, PART], jnp.int32)
    inputs = [outputs, table.received, table.delta, table.scale, meta, *_others(table, target)]
    of_tokens, rows = float32(users, parts, tokens), float32(users, parts, tokens, size)
    results = [of_tokens, of_tokens, rows] + ([rows] if shape.compared else [])
    most, total, mean, *other = launch(
        "table_scores", source(shape), shape.memory(1), (parts, users), inputs, results, teams=3
    )
    return put_together(most, total, mean, other[0] if other else None)


def put_together(most: Array, total: Array, mean: Array, other: Array | None) -> Scores:
    """The scores of the whole table from those of its parts, which have an offset each: [users, parts, ...]."""
    highest = jnp.max(most, axis=1)
    factor = jnp.exp2(most - highest[:, None])
    sums = jnp.sum(total * factor, axis=1)
    mean = jnp.sum(mean * factor[..., None], axis=1) / sums[..., None]
    return Scores(highest + jnp.log2(sums), mean, None if other is None else jnp.sum(other, axis=1))


def _step_table(
    outputs: Array, table: Table, target: Target, level: Array, step: Step
) -> tuple[Array, Array, Array | None]:
    users, vocabulary = len(outputs), len(table.received)
    shape, groups = _shape(outputs, table, target), -(-vocabulary // GROUP)
    units = jnp.ones_like(step.unit) if table.delta.dtype == jnp.float32 else step.unit
    meta = jnp.array([vocabulary, GROUP], jnp.int32)
    numbers = jnp.array([step.learning_rate, target.user_share], jnp.float32)
    inputs = [outputs, table.received, table.delta, step.scale, meta, units, level, target.share]
    inputs += [target.tokens.astype(jnp.int32), numbers, *_others(table, target)]
    results = [jax.ShapeDtypeStruct(table.delta.shape, table.delta.dtype), float32(users, groups)]
    if shape.biased:
        results.append(float32(users, vocabulary))
    new, squares, *of_bias = launch(
        "table_step", source(shape), shape.memory(2), (groups, users), inputs, results, {2: 0}, shape.teams()
    )
    return new, jnp.sum(squares, axis=1), of_bias[0] if of_bias else None
