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

    Guarantee: coordinates are independent, across leaves too, and the noise reaches beyond ten standard deviations.
    """
    leaves, structure = jax.tree.flatten(update)
    keys = jax.random.split(key, len(leaves))
    noised = [leaf + noise_std * _normal(leaf_key, leaf.shape) for leaf, leaf_key in zip(leaves, keys, strict=True)]
    return structure.unflatten(noised)


def _normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal numbers as half the sum of four.

    One float32 normal of JAX takes 2^23 values, none beyond 5.42: an update that shifts the output further would show
    with a chance far above a small δ. The sum of four reaches 10.4, and takes very many more values.
    """
    one, two, three, four = (jax.random.normal(part, shape, jnp.float32) for part in jax.random.split(key, 4))
    return (one + two + three + four) / 2
