"""Gaussian noise for an update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

Update = Any


def noise_key(secret: bytes) -> PRNGKeyArray:
    """A JAX key from 8 secret bytes. (`jax.random.key(int)` would silently keep 32 bits of them.)"""
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secret[:8], np.uint32)), impl="threefry2x32")


def add_noise(update: Update, noise_std: float | jax.Array, key: PRNGKeyArray) -> Update:
    """Add N(0, noise_std²) to every coordinate, from a key of its own for each leaf.

    Guarantee: coordinates are independent, across leaves too.
    """
    leaves, structure = jax.tree.flatten(update)
    keys = jax.random.split(key, len(leaves))
    noised = [
        leaf + noise_std * jax.random.normal(leaf_key, leaf.shape, leaf.dtype)
        for leaf, leaf_key in zip(leaves, keys, strict=True)
    ]
    return structure.unflatten(noised)
