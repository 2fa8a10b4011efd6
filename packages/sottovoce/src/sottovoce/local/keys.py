"""Keys of what a user draws on their own device: dropout masks, batches."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


def local_key(secret: bytes) -> PRNGKeyArray:
    """A JAX key from 8 secret bytes. (`jax.random.key(int)` would silently keep 32 bits of them.)"""
    # Not put on the device first: wrapping does that, in half the time.
    return jax.random.wrap_key_data(np.frombuffer(secret[:8], np.uint32), impl="threefry2x32")  # pyrefly: ignore
