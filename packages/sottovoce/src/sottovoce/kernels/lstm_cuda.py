"""The products of `lstm_users` as CUDA kernels for Hopper GPUs.

The source is `lstm.cu`. Where kernels cannot run, or the sizes are others, `products` answers None.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sottovoce.kernels import hopper
from sottovoce.kernels.any_users import Scores, Softmax, Table, Target
from sottovoce.kernels.hopper import KINDS, Product, float32
from sottovoce.kernels.lstm_users import Products, Step, offset_of
from sottovoce.local.update import FedAvg
from sottovoce.models.lstm import LSTM

SIZE, HIDDEN, LANES, UNROLL = 96, 256, 8, 10  # the kernels are written for these
# How a table is shared out over programs. By its rows alone: the order of a user's sums must not depend on other users.
TILES = 53  # of 64 rows, at most, for each program of pass A: three programs for 10,000 words
GROUP = 640  # rows of pass B whose squares are added up together
TOGETHER, MANY = 2, 512  # groups of a program, where users are so many that programs may be few. No sum depends on it
AT_HAND = 32  # words read of which a program keeps the gradients close; it fetches those of others when it meets them
PRODUCTS = [Product(32, None, 0), Product(80, None, 0), *(Product(width, None, 1) for width in (32, 64, 96))]


def products(update: FedAvg, model: LSTM) -> Products | None:
    """The kernels, if they fit the model and the device.

    Their products are of bfloat16 numbers, with float32 sums. Updates that are clipped after every step are kept in
    float16 between steps, since half of the bytes are half of the time; others, which have no bound, in float32.
    """
    shape = (model.embedding.shape[1], model.projection.shape[1], update.batch, update.unroll)
    if shape != (SIZE, HIDDEN, LANES, UNROLL):
        return None
    bounded = update.clip_every_step and update.clipping.bounded
    stored = jnp.float16 if bounded else jnp.float32
    if not hopper.can_run(source(jnp.dtype(stored).name)):
        return None
    return Products(jnp.bfloat16, stored, _scores, _step_table, _step, _read, _read_back)


def softmax(tokens: int, size: int, stored: Any) -> Softmax | None:
    """The kernels of the LSTM's table for any model that has such a one, if they run here."""
    if (tokens, size) != (LANES * UNROLL, SIZE) or not hopper.can_run(source(jnp.dtype(stored).name)):
        return None
    return Softmax(jnp.bfloat16, stored, _any_scores, _any_step_table, "CUDA")


def _any_scores(outputs: Array, table: Table, target: Target) -> Scores:
    offset = offset_of(outputs)
    total, mean, _ = _scores(outputs, table.received, table.delta, table.scale, offset)
    return Scores(offset + jnp.log2(total), mean / total[..., None])


def _any_step_table(
    outputs: Array, table: Table, target: Target, level: Array, step: Step
) -> tuple[Array, Array, None]:
    none = jnp.full_like(target.tokens, -1)  # words that were read are added afterwards
    new, squares = _step_table(
        outputs,
        jnp.zeros_like(outputs),
        table.received,
        table.delta,
        level,
        target.share,
        target.tokens,
        none,
        step,
        None,
    )
    return new, squares, None


@cache
def source(stored: str, file: str | Path = "lstm.cu") -> str:
    """The kernels for updates that are kept in numbers of this kind between steps."""
    return hopper.source({"STORED": KINDS[stored], "AT_HAND": AT_HAND, "TOGETHER": TOGETHER}, PRODUCTS, file)


def _run(
    name: str, delta: Array, warps: int, memory: int, grid: tuple[int, int], inputs: list, outputs: list,
    in_place: dict | None = None,
) -> Any:  # fmt: skip
    text = source(delta.dtype.name)
    return hopper.launch(f"{name}_", text, warps, memory, grid, inputs, outputs, in_place)


def _scores(outputs: Array, table: Array, delta: Array, scale: Array, offset: Array) -> tuple[Array, Array, None]:
    users, tokens, size = outputs.shape
    vocabulary = table.shape[0]
    tiles = -(-vocabulary // 64)
    parts = -(-tiles // TILES)
    rows = -(-tiles // parts) * 64
    parts = -(-vocabulary // rows)
    memory = 64 * SIZE * (2 + delta.dtype.itemsize) + 8 * 12 * 160 + 2 * 12 * 128  # of lstm.cu: ds and ts, es, os
    sums, means = _run(
        "head_a", delta, 4, memory, (parts, users),
        [outputs, table, delta, scale, offset, jnp.array([vocabulary, rows], jnp.int32)],
        [float32(users, parts, tokens), float32(users, parts, tokens, size)],
    )  # fmt: skip
    return sums.sum(1), means.sum(1), None


def _step_table(
    outputs: Array, of_words: Array, table: Array, delta: Array, level: Array, share: Array, targets: Array,
    inputs: Array, step: Step, kept: None,
) -> tuple[Array, Array]:  # fmt: skip
    users, vocabulary = outputs.shape[0], table.shape[0]
    groups = -(-vocabulary // GROUP)
    together = TOGETHER if users >= MANY else 1
    # Of lstm.cu: hs, two times 16 rows for each warp, ws.
    memory = 10 * 12 * 128 + 4 * 2 * 16 * SIZE * (2 + delta.dtype.itemsize) + AT_HAND * 2 * SIZE
    new, squares = _run(
        "head_b", delta, 4, memory, (-(-groups // together), users),
        [outputs, of_words, table, delta, step.scale, level, share, targets, inputs,
         jnp.array([vocabulary, GROUP, together], jnp.int32), jnp.array([step.learning_rate], jnp.float32), step.unit],
        [jax.ShapeDtypeStruct(delta.shape, delta.dtype), float32(users, groups)], {3: 0},
    )  # fmt: skip
    return new, squares.sum(1)


def _step(left: Array, right: Array, delta: Array, step: Step) -> tuple[Array, Array]:
    users, tokens, height = left.shape
    width, blocks = right.shape[2], height // 256
    scale = jnp.repeat(step.scale, blocks // step.scale.shape[1], axis=1)  # a number for each block of rows
    new, squares = _run(
        f"sgd{width}", delta, 8, tokens * 2 * (256 + width), (blocks, users),
        [left, right, delta, scale, jnp.array([step.learning_rate], jnp.float32), step.unit],
        [jax.ShapeDtypeStruct(delta.shape, delta.dtype), float32(users, blocks)], {2: 0},
    )  # fmt: skip
    return new, squares.reshape(*step.scale.shape, -1).sum(-1)


def _read(
    words: Array, bias: Array, recurrent: Array, delta: Array, scale: Array, hidden: Array, cell: Array
) -> tuple[Array, Array, Array, Array]:
    users, time, lanes, four = words.shape
    state = jax.ShapeDtypeStruct((users, time, lanes, four // 4), words.dtype)
    memory = 8 * 32 * 20 * 16  # for each thread the 20 of 32 groups of eight weights that are not in its registers
    return _run(
        "recur_f", delta, 8, memory, (4, users), [words, bias, recurrent, delta, scale, hidden, cell],
        [jax.ShapeDtypeStruct(words.shape, words.dtype), float32(users, time + 1, lanes, four // 4), state, state],
    )  # fmt: skip


def _read_back(
    above: Array, gates: Array, cells: Array, recurrent: Array, delta: Array, scale: Array
) -> tuple[Array, Array]:
    memory = 8 * 32 * 16 * 16  # 16 of 32 groups
    return _run(
        "recur_b", delta, 8, memory, (4, gates.shape[0]), [above, gates, cells, recurrent, delta, scale],
        [jax.ShapeDtypeStruct(gates.shape, gates.dtype), float32(gates.shape[0], gates.shape[3])],
    )  # fmt: skip
