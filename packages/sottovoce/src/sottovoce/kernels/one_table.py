"""The softmax of `one_gradient` as CUDA kernels for Hopper GPUs: logits never reach memory.

All users have one table. The source is `one_table.cu`. Its first pass gives the level and the mean row of every token,
its second the gradient of the table, summed over all tokens of a user.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from sottovoce.kernels import hopper, table_cuda
from sottovoce.kernels.hopper import float32
from sottovoce.kernels.table_cuda import MEMORY, ROWS, Shape

PART = 80  # blocks of 128 rows of one program of the first pass


class Found(NamedTuple):
    """Of each token, log2 of Σ exp2(logit) and the mean row by this softmax; the gradients of table and bias."""

    level: Array  # [steps, tokens]
    mean: Array  # [steps, tokens, size]
    of_table: Array  # [vocabulary, size]
    of_bias: Array | None  # [vocabulary]


class OneTable(NamedTuple):
    """The kernels for one shape, which `compared` and `stored` say nothing of."""

    shape: Shape

    def __call__(
        self, table: Array, bias: Array | None, outputs: Array, targets: Array, share: Array, last: Array
    ) -> Found:
        """Of one user; its `vmap` over users is one call.

        Args:
            table: [vocabulary, size], as it is multiplied.
            bias: [vocabulary], in base 2.
            outputs: [steps, tokens, size], in base 2.
            targets: [steps, tokens].
            share: of each token in the loss.
            last: how many steps there are; others are left out.
        """
        return _of_users(self.shape)(table, bias, outputs, targets, share, last)


@cache
def _of_users(shape: Shape) -> Any:
    @custom_vmap
    def of_user(table: Array, bias: Array | None, outputs: Array, targets: Array, share: Array, last: Array) -> Found:
        found = run(shape, table, bias, outputs[None], targets[None], share[None], last)
        return jax.tree.map(lambda leaf: leaf[0], found)

    @of_user.def_vmap
    def _(users: int, in_batched: list, *inputs: Any) -> tuple[Found, Any]:
        table, bias, outputs, targets, share, last = inputs
        assert in_batched[2:5] == [True] * 3
        assert not any(in_batched[i] for i in (0, 5))
        found = run(shape, table, bias, outputs, targets, share, last)
        return found, jax.tree.map(lambda _: True, found)

    return of_user


def find_one_table(tokens: int, size: int, biased: bool) -> OneTable | None:
    """The kernels for this many tokens in a step and rows of this size, if they run here."""
    shape = Shape(tokens, size, False, biased, False, "float16")
    if not fits(shape) or not hopper.can_run(source(shape)):
        return None
    return OneTable(shape)


def fits(shape: Shape) -> bool:
    """Are there kernels for these sizes?"""
    fit = shape.tokens % 16 == 0 and shape.tokens <= 80 and shape.size % 4 == 0 and shape.size <= table_cuda.WIDEST
    return fit and max(memory(shape)) + shape.declared() <= MEMORY


def memory(shape: Shape) -> tuple[int, int]:
    """The bytes of shared memory that each pass asks for."""
    rows, outputs = 4 * ROWS * _wide(shape), 2 * shape.tokens * _out(shape)
    return outputs + 4 * ROWS * shape.tokens + 2 * rows, 2 * (outputs + 12 * shape.tokens) + rows


def _wide(shape: Shape) -> int:
    return 64 * -(-shape.size // 64)


def _out(shape: Shape) -> int:
    width, chunks = shape.columns()
    return max(16 * -(-shape.size // 16), width * chunks)


def source(shape: Shape) -> str:
    """The kernels for one shape."""
    return table_cuda.source(shape, "one_table.cu")


def in_pieces(matrix: Array, columns: int) -> Array:
    """[..., rows, size] as it lies in shared memory: pieces of 8 rows and 8 columns, those of one row together."""
    *more, rows, size = matrix.shape
    padding = [(0, 0)] * len(more) + [(0, -rows % 8), (0, columns - size)]
    matrix = jnp.pad(matrix, padding).reshape(*more, -1, 8, columns // 8, 8)
    return matrix.swapaxes(-3, -2).reshape(*more, -1)


def arguments(
    shape: Shape, table: Array, bias: Array | None, outputs: Array, last: Any
) -> tuple[list[Array], list[Array]]:
    """What both passes read, and the biases if there are any."""
    vocabulary, steps = len(table), outputs.shape[1]
    padded = jnp.pad(table, ((0, -vocabulary % (2 * ROWS)), (0, 0)))
    meta = jnp.stack([jnp.asarray(each, jnp.int32) for each in (vocabulary, PART, steps, last)])
    return [in_pieces(outputs, _out(shape)), in_pieces(padded, _wide(shape)), meta], [] if bias is None else [bias]


def about(level: Array, targets: Array, share: Array) -> Array:
    """What the second pass reads of each token: [users, steps, 3, tokens]."""
    targets = jax.lax.bitcast_convert_type(targets.astype(jnp.int32), jnp.float32)
    return jnp.stack([level, share, targets], axis=2)


def run(
    shape: Shape, table: Array, bias: Array | None, outputs: Array, targets: Array, share: Array, last: Any
) -> Found:
    """Both passes for a block of users: outputs are [users, steps, tokens, size]."""
    (users, _, _, size), vocabulary = outputs.shape, len(table)
    given, biases = arguments(shape, table, bias, outputs, last)
    level, mean = _first_pass(shape, given, biases, outputs)
    results = [float32(users, vocabulary, size)]
    results += [float32(users, vocabulary)] * shape.biased
    inputs, grid = [*given, about(level, targets, share), *biases], (_blocks(table), users)
    of_table, *of_bias = table_cuda.launch("one_gradient", source(shape), memory(shape)[1], grid, inputs, results)
    return Found(level, mean, of_table, of_bias[0] if of_bias else None)


def level_of(table: Array, outputs: Array, bias: Array | None) -> Array:
    """log2 of Σ exp2(logit) of each token: outputs are [users, tokens, size]."""
    _, tokens, size = outputs.shape
    shape = Shape(tokens, size, False, bias is not None, False, "float16")
    given, biases = arguments(shape, table, bias, outputs[:, None], 1)
    return _first_pass(shape, given, biases, outputs[:, None])[0][:, 0]


def _first_pass(shape: Shape, given: list, biases: list, outputs: Array) -> tuple[Array, Array]:
    """The level of each token, and its mean row."""
    users, steps, tokens, size = outputs.shape
    parts = -(-given[1].size // (2 * ROWS * _wide(shape) * PART))
    of_tokens, rows = (users * steps, parts, tokens), (users * steps, parts, tokens, size)
    results = [float32(*each) for each in (of_tokens, of_tokens, rows)]
    inputs, grid = [*given, *biases], (users * steps, parts)
    most, total, mean = table_cuda.launch("one_scores", source(shape), memory(shape)[0], grid, inputs, results)
    scores = table_cuda.put_together(most, total, mean, None)
    return scores.level.reshape(users, steps, tokens), scores.mean.reshape(outputs.shape)


def _blocks(table: Array) -> int:
    return -(-len(table) // (2 * ROWS))
