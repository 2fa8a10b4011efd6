"""Numbers that stay on the device: a GPU waits for each number that a call sends to it (docs/log.md)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def on_device(numbers: Any, kind: Any) -> jax.Array:
    """The same array for the same numbers: those that differ little from round to round. It must not be donated."""
    array = np.asarray(numbers, kind)
    return _sent(array.tobytes(), array.dtype.str, array.shape)


@lru_cache(maxsize=256)
def _sent(contents: bytes, kind: str, shape: tuple[int, ...]) -> jax.Array:
    # Else float64 would be cut to float32; and a program that is being compiled would keep a name for the array alone.
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jnp.asarray(np.frombuffer(contents, kind).reshape(shape))
