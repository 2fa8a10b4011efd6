"""Compiles and launches CUDA kernels for Hopper GPUs, when they are first used.

A source is `hopper.cu` and files of kernels after it. NVIDIA's run-time compiler, which comes with `jax[cuda12]`, makes
it into PTX, and the launcher of Pallas' Triton backend runs it. Where any of that is missing, `can_run` says so.
"""

from __future__ import annotations

import ctypes
import re
import sysconfig
import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.gpu import is_hopper

KINDS = {"float32": "float", "float16": "half"}  # of numbers, as CUDA calls them


class Product(NamedTuple):
    """A product of a warpgroup: [64, 16] by [16, width]. An operand in shared memory is by rows (0) or columns (1)."""

    width: int
    left: int | None  # None: in registers
    right: int

    def source(self) -> str:
        """The function of `hopper.cu` for it: there are as many sums to name as the width asks for."""
        count = self.width // 2
        sums, kept = (", ".join(each.format(i) for i in range(count)) for each in ("%{0}", '"+f"(d[{0}])'))
        if self.left is None:
            name, given = f"wgmma_regs<{self.width}, {self.right}>", "const uint32_t (&a)[4]"
            operands = ", ".join(f'"r"(a[{i}])' for i in range(4))
            left, right = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}", count + 4
            order = f"{self.right}"
        else:
            name, given, operands = f"wgmma<{self.width}, {self.left}, {self.right}>", "uint64_t a", '"l"(a)'
            left, right, order = f"%{count}", count + 1, f"{self.left}, {self.right}"
        instruction = f"wgmma.mma_async.sync.aligned.m64n{self.width}k16.f32.bf16.bf16"
        return (
            "template <> __device__ __forceinline__ void "
            f"{name}(float (&d)[{count}], {given}, uint64_t b, int add) {{\n"
            f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{right + 1}, 0;\\n"\n'
            f'    "{instruction} {{{sums}}}, {left}, %{right}, p, 1, 1, {order};\\n}}"\n'
            f'    : {kept} : {operands}, "l"(b), "r"(add));\n}}\n'
        )


def source(defined: dict[str, Any], products: list[Product], *files: str | Path) -> str:
    """The text of kernels: what is defined, `hopper.cu` with these products, and the files."""
    texts = [(Path(__file__).parent / file).read_text(encoding="utf-8") for file in ("hopper.cu", *files)]
    written = "".join(product.source() for product in dict.fromkeys(products))
    definitions = "".join(f"#define {name} {value}\n" for name, value in defined.items())
    return definitions + "".join(texts).replace("// HERE: wgmma\n", written)


class _Unavailable(Exception):
    """Kernels cannot run here."""


def can_run(text: str) -> bool:
    """Is this a Hopper GPU, and can the kernels be compiled for it?"""
    if not is_hopper():
        return False
    try:
        _compiled(text)
    except _Unavailable:
        return False
    return True


@cache
def _compiled(text: str) -> dict[str, str]:
    """The PTX of each kernel, by name."""
    _launcher()  # first, since its absence is found sooner
    text = _to_ptx(text)
    # Each kernel becomes a module of its own, with the declarations that all share.
    shared = re.findall(r"^\.extern \.shared.*\n", text, re.MULTILINE)
    text = re.sub(r"^\.extern \.shared.*\n", "", text, flags=re.MULTILINE)
    head, *entries = text.split("\n\t// .globl\t")
    head += "\n" + "".join(dict.fromkeys(shared))
    return {entry.split()[0]: f"{head}\n\t// .globl\t{entry}" for entry in entries}


def _to_ptx(text: str) -> str:
    """PTX by NVRTC: a library with a plain C interface, called as such."""
    compiler, headers = _compiler()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = compiler.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    options = [b"--gpu-architecture=compute_90a", b"--std=c++17", *(f"-I{path}".encode() for path in headers)]
    array = (ctypes.c_char_p * len(options))(*options)
    if made or compiler.nvrtcCompileProgram(program, len(options), array):
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, log)
        raise _Unavailable(log.value.decode(errors="replace"))
    compiler.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetPTX(program, ptx)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx.value.decode()


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
    raise _Unavailable("no libnvrtc was found")


@cache
def _launcher() -> Any:
    try:
        from jax._src.lib import gpu_triton
    except ImportError as error:
        raise _Unavailable(str(error)) from None
    return gpu_triton


@cache
def _call(name: str, text: str, warps: int, memory: int, grid: tuple[int, int], arrays: int) -> bytes:
    triton = _launcher()
    kernel = triton.TritonKernel(name, warps, 1, memory, _compiled(text)[name], "", 90)
    parameters = [triton.create_array_parameter(0, 16)] * arrays
    call = triton.TritonKernelCall(kernel, grid[0], grid[1], 1, parameters)
    return zlib.compress(call.to_proto(name, b""))


def launch(
    name: str, text: str, warps: int, memory: int, grid: tuple[int, int], inputs: list, outputs: list,
    in_place: dict | None = None,
) -> Any:  # fmt: skip
    """The results of a kernel of a source.

    Args:
        warps: of a block.
        memory: the bytes of shared memory that a block asks for.
        grid: the blocks.
        outputs: shapes and kinds of the results.
        in_place: which input is also which result.
    """
    opaque = _call(name, text, warps, memory, grid, len(inputs) + len(outputs))
    call = jax.ffi.ffi_call("triton_kernel_call_ffi", outputs, input_output_aliases=in_place or {})
    return call(*inputs, name=name, opaque=opaque)


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    """A result of float32 numbers."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)
