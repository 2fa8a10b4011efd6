"""Sources of CUDA kernels for Hopper GPUs."""

from __future__ import annotations

from pathlib import Path

import jax

from sottovoce.kernels import hopper
from sottovoce.kernels.hopper import Product

FILES = sorted(Path(hopper.__file__).parent.glob("*.cu"))


def test_instructions_are_in_one_file():
    """So a kernel needs nothing of its own where it is emulated."""
    assert [path.name for path in FILES if "asm" in path.read_text(encoding="utf-8")] == ["hopper.cu"]


def test_a_product_is_written_once_for_its_width_and_its_operands():
    product = Product(24, None, 1)
    text = hopper.source({"T": 16}, [product, Product(16, 0, 1), product], "logits.cu")
    assert text.startswith("#define T 16\n")
    assert text.count("wgmma_regs<24, 1>(float (&d)[12]") == 1
    assert "wgmma<16, 0, 1>(float (&d)[8]" in text
    assert (
        "m64n24k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, %16" in text
    )


def test_a_machine_without_a_gpu_runs_no_kernels():
    assert jax.default_backend() == "cpu"
    assert not hopper.can_run(hopper.source({}, []))
