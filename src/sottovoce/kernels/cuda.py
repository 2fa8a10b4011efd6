"""The products of `lstm_users` as CUDA kernels for Hopper GPUs, compiled when they are first used.

The source is `lstm.cu`. NVIDIA's run-time compiler, which comes with `jax[cuda12]`, makes it into PTX, and the launcher
of Pallas' Triton backend runs it. Where any of that is missing, or the sizes are others, `products` answers None.
"""

from __future__ import annotations

import ctypes
import re
import sysconfig
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sottovoce.kernels.any_users import Scores, Softmax, Table, Target
from sottovoce.kernels.lstm_users import Products, Step, offset_of
from sottovoce.local.update import FedAvg
from sottovoce.models.lstm import LSTM

SIZE, HIDDEN, LANES, UNROLL = 96, 256, 8, 10  # the kernels are written for these
# How a table is shared out over programs. By its rows alone: the order of a user's sums must not depend on other users.
TILES = 53  # of 64 rows, at most, for each program of pass A: three programs for 10,000 words
GROUP = 640  # rows for each program of pass B
_TARGET = "triton_kernel_call_ffi"


class Unavailable(Exception):
    """These kernels cannot run here."""


def products(update: FedAvg, model: LSTM) -> Products | None:
    """The kernels, if they fit the model and the device.

    Their products are of bfloat16 numbers, with float32 sums. Updates that are clipped after every step are kept in
    float16 between steps, since half of the bytes are half of the time; others, which have no bound, in float32.
    """
    shape = (model.embedding.shape[1], model.projection.shape[1], update.batch, update.unroll)
    if shape != (SIZE, HIDDEN, LANES, UNROLL) or jax.default_backend() != "gpu":
        return None
    if getattr(jax.devices()[0], "compute_capability", "") != "9.0":
        return None
    bounded = update.clip_every_step and update.clipping.bounded
    stored = jnp.float16 if bounded else jnp.float32
    try:
        compiled(jnp.dtype(stored).name)
    except Unavailable:
        return None
    return Products(jnp.bfloat16, stored, _scores, _step_table, _step, _read, _read_back)


def softmax(tokens: int, size: int, stored: Any) -> Softmax | None:
    """The kernels of the LSTM's table for any model that has such a one, if they run here."""
    if (tokens, size) != (LANES * UNROLL, SIZE) or jax.default_backend() != "gpu":
        return None
    if getattr(jax.devices()[0], "compute_capability", "") != "9.0":
        return None
    try:
        compiled(jnp.dtype(stored).name)
    except Unavailable:
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
def compiled(stored: str) -> dict[str, str]:
    """The PTX of each kernel, by name."""
    _launcher()  # first, since its absence is found sooner
    kind = {"float32": "float", "float16": "half"}[stored]
    text = _to_ptx((Path(__file__).parent / "lstm.cu").read_text(encoding="utf-8"), kind)
    # Each kernel becomes a module of its own, with the declarations that all share.
    shared = re.findall(r"^\.extern \.shared.*\n", text, re.MULTILINE)
    text = re.sub(r"^\.extern \.shared.*\n", "", text, flags=re.MULTILINE)
    head, *entries = text.split("\n\t// .globl\t")
    head += "\n" + "".join(dict.fromkeys(shared))
    return {entry.split()[0]: f"{head}\n\t// .globl\t{entry}" for entry in entries}


def _to_ptx(source: str, stored: str) -> str:
    """PTX by NVRTC: a library with a plain C interface, called as such."""
    compiler, headers = _compiler()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"lstm.cu", 0, None, None)
    options = [b"--gpu-architecture=compute_90a", b"--std=c++17", f"-DSTORED={stored}".encode()]
    options += [f"-I{path}".encode() for path in headers]
    array = (ctypes.c_char_p * len(options))(*options)
    if made or compiler.nvrtcCompileProgram(program, len(options), array):
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, log)
        raise Unavailable(log.value.decode(errors="replace"))
    compiler.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetPTX(program, text)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return text.value.decode()


def _compiler() -> tuple[Any, list[Path]]:
    """The library and the folders of CUDA's headers, from the wheels of jax or from an installed toolkit."""
    roots = [Path(sysconfig.get_path("purelib")) / "nvidia", Path("/usr/local/cuda")]
    libraries = [path for root in roots for path in sorted(root.rglob("libnvrtc.so*")) if "builtins" not in path.name]
    headers = [path.parent for root in roots for path in sorted(root.rglob("cuda_bf16.h"))]
    for path in libraries:
        try:
            return ctypes.CDLL(str(path)), headers
        except OSError:
            continue
    raise Unavailable("no libnvrtc was found")


@cache
def _launcher() -> Any:
    try:
        from jax._src.lib import gpu_triton
    except ImportError as error:
        raise Unavailable(str(error)) from None
    return gpu_triton


@cache
def _call_of(name: str, stored: str, warps: int, memory: int, grid: tuple[int, int], arrays: int) -> bytes:
    triton = _launcher()
    kernel = triton.TritonKernel(name, warps, 1, memory, compiled(stored)[name], "", 90)
    parameters = [triton.create_array_parameter(0, 16)] * arrays
    call = triton.TritonKernelCall(kernel, grid[0], grid[1], 1, parameters)
    return zlib.compress(call.to_proto(name, b""))


def _run(
    name: str, delta: Array, warps: int, memory: int, grid: tuple[int, int], inputs: list, outputs: list,
    in_place: dict | None = None,
) -> Any:  # fmt: skip
    opaque = _call_of(f"{name}_", delta.dtype.name, warps, memory, grid, len(inputs) + len(outputs))
    call = jax.ffi.ffi_call(_TARGET, outputs, input_output_aliases=in_place or {})
    return call(*inputs, name=name, opaque=opaque)


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


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
        [_float32(users, parts, tokens), _float32(users, parts, tokens, size)],
    )  # fmt: skip
    return sums.sum(1), means.sum(1), None


def _step_table(
    outputs: Array, of_words: Array, table: Array, delta: Array, level: Array, share: Array, targets: Array,
    inputs: Array, step: Step, kept: None,
) -> tuple[Array, Array]:  # fmt: skip
    users, vocabulary = outputs.shape[0], table.shape[0]
    groups = -(-vocabulary // GROUP)
    memory = 10 * 12 * 128 + 4 * 2 * 16 * SIZE * (2 + delta.dtype.itemsize)  # outputs; two times 16 rows for each warp
    new, squares = _run(
        "head_b", delta, 4, memory, (groups, users),
        [outputs, of_words, table, delta, step.scale, level, share, targets, inputs,
         jnp.array([vocabulary, GROUP], jnp.int32), jnp.array([step.learning_rate], jnp.float32), step.unit],
        [jax.ShapeDtypeStruct(delta.shape, delta.dtype), _float32(users, groups)], {3: 0},
    )  # fmt: skip
    return new, squares.sum(1)


def _step(left: Array, right: Array, delta: Array, step: Step) -> tuple[Array, Array]:
    users, tokens, height = left.shape
    width, blocks = right.shape[2], height // 256
    scale = jnp.repeat(step.scale, blocks // step.scale.shape[1], axis=1)  # a number for each block of rows
    new, squares = _run(
        f"sgd{width}", delta, 8, tokens * 2 * (256 + width), (blocks, users),
        [left, right, delta, scale, jnp.array([step.learning_rate], jnp.float32), step.unit],
        [jax.ShapeDtypeStruct(delta.shape, delta.dtype), _float32(users, blocks)], {2: 0},
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
        [jax.ShapeDtypeStruct(words.shape, words.dtype), _float32(users, time + 1, lanes, four // 4), state, state],
    )  # fmt: skip


def _read_back(
    above: Array, gates: Array, cells: Array, recurrent: Array, delta: Array, scale: Array
) -> tuple[Array, Array]:
    memory = 8 * 32 * 16 * 16  # 16 of 32 groups
    return _run(
        "recur_b", delta, 8, memory, (4, gates.shape[0]), [above, gates, cells, recurrent, delta, scale],
        [jax.ShapeDtypeStruct(gates.shape, gates.dtype), _float32(gates.shape[0], gates.shape[3])],
    )  # fmt: skip
