"""Gaussian noise for an update."""

from __future__ import annotations

from itertools import accumulate
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
    """Add N(0, noise_std²) to every coordinate, from one stream for all leaves.

    Guarantee: coordinates are independent, across leaves too, and the noise reaches beyond ten standard deviations.
    """
    leaves, structure = jax.tree.flatten(update)
    ends = list(accumulate(leaf.size for leaf in leaves))
    noise = jnp.split(_normal(key, ends[-1]), ends[:-1])
    noised = [leaf + noise_std * part.reshape(leaf.shape) for leaf, part in zip(leaves, noise, strict=True)]
    return structure.unflatten(noised)


def _normal(key: PRNGKeyArray, count: int) -> jax.Array:
    """Standard normal numbers as half the sum of four.

    One float32 normal of JAX takes 2^23 values, none beyond 5.42: an update that shifts the output further would show
    with a chance far above a small δ. The sum of four reaches 10.4, and takes very many more values.
    """
    return jnp.sum(jax.random.normal(key, (4, count), jnp.float32), axis=0) / 2
