"""What a GPU is spared: numbers sent again and again; and which kind of GPU it is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def on_device(numbers: Any, kind: Any) -> Array:
    """The same array for the same numbers: those that differ little from round to round. It must not be donated.

    A GPU waits for each number that a call sends to it (docs/log.md).
    """
    array = np.asarray(numbers, kind)
    return _sent(array.tobytes(), array.dtype.str, array.shape)


@lru_cache(maxsize=256)
def _sent(contents: bytes, kind: str, shape: tuple[int, ...]) -> Array:
    # Else float64 would be cut to float32; and a program that is being compiled would keep a name for the array alone.
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jnp.asarray(np.frombuffer(contents, kind).reshape(shape))


def is_hopper() -> bool:
    """Is it one of the GPUs for which there are kernels?"""
    return jax.default_backend() == "gpu" and getattr(jax.devices()[0], "compute_capability", "") == "9.0"
