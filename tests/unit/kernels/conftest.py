"""Kernels on a CPU in place of a Hopper GPU: their own source, compiled with `emulated_cuda.h`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
import pytest

from sottovoce.kernels import hopper

FLAGS = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", "-fno-strict-aliasing", "-fno-gnu-unique"]
RUN = """
import ctypes, sys
import numpy as np

arrays = [np.array(each) for each in np.load("arrays.npz").values()]
name, which, *sizes = sys.argv[1:]
places = [arrays[int(each)].ctypes.data for each in which.split(",")]
getattr(ctypes.CDLL("./kernels.so"), name)((ctypes.c_void_p * len(places))(*places), *map(int, sizes))
np.savez("arrays.npz", *arrays)
"""


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Where a source lies compiled for this CPU, with a function `run_...` for each of its kernels."""

    @cache
    def compiled(text: str) -> Path:
        lines = ["#define EMULATED", text]
        for attributes, name in re.findall(r'extern "C" __global__ void (.*?)\b((?!__)\w+_)\(', text):
            cluster = re.search(r"__cluster_dims__\((\d+)", attributes)
            lines.append(
                f'extern "C" void run_{name}(void** given, int width, int height, int threads, int bytes) {{'
                f" launch(width, height, threads, bytes, {cluster[1] if cluster else 1}, with({name}, given)); }}"
            )
        folder = tmp_path_factory.mktemp("emulated")
        (folder / "kernels.cpp").write_text("\n".join(lines), encoding="utf-8")
        command = ["g++", *FLAGS, f"-I{Path(__file__).parent}", "kernels.cpp", "-o", "kernels.so"]
        subprocess.run(command, cwd=folder, check=True, timeout=100)
        return folder

    return compiled


@pytest.fixture(params=["at once", "late"])
def emulated(request, folder_of, monkeypatch) -> None:
    """Launches run on this CPU. What a kernel does not write is not a number.

    What is asynchronous is done at once, or as late as can be.
    """
    if request.param == "late":
        monkeypatch.setenv("LATE", "1")
    if shutil.which("g++") is None:
        pytest.skip("needs g++")

    def run(name, text, numbers, outputs, in_place, *inputs):
        folder, arrays = folder_of(text), [np.array(each) for each in inputs]
        which = list(range(len(arrays) + len(outputs)))
        for place, result in in_place.items():
            which[len(arrays) + result] = place
        arrays += [np.full(each.shape, np.nan, each.dtype) for each in outputs]
        np.savez(folder / "arrays.npz", *[each.reshape(-1).view(np.uint8) for each in arrays])
        # In a process of its own, which a kernel that goes wrong may end.
        command = [sys.executable, "-c", RUN, f"run_{name}", ",".join(map(str, which)), *map(str, numbers)]
        subprocess.run(command, cwd=folder, check=True, timeout=200)
        after = list(np.load(folder / "arrays.npz").values())
        found = [after[place] for place in which[len(inputs) :]]
        return [array.view(each.dtype).reshape(each.shape) for array, each in zip(found, outputs, strict=True)]

    def launch(name, text, warps, memory, grid, inputs, outputs, in_place=None):
        numbers = (*grid, 32 * warps, memory)
        return jax.pure_callback(partial(run, name, text, numbers, outputs, in_place or {}), outputs, *inputs)

    monkeypatch.setattr(hopper, "launch", launch)
