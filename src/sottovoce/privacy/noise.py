"""Gaussian noise for an update, from one of two generators.

A float32 normal of JAX takes 2^23 values, none beyond 5.42, and a float64 one has gaps too: an update that shifts the
output could show in what is missing. So every number is half the sum of four, which reaches 10.4 standard deviations
at least and takes very many more values (Holohan and Braghin 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.privacy.generator import chacha20

Update = Any
Scale = Any  # a number, or numbers in a pytree whose shape begins like the update's


def noise_key(secret: bytes) -> PRNGKeyArray:
    """A JAX key from 8 secret bytes. (`jax.random.key(int)` would silently keep 32 bits of them.)"""
    # Not put on the device first: wrapping does that, in half the time.
    return jax.random.wrap_key_data(np.frombuffer(secret[:8], np.uint32), impl="threefry2x32")  # pyrefly: ignore


@dataclass(frozen=True)
class StandardNoise:
    """Noise from JAX's threefry generator, drawn in float32, keyed with 64 bits, on the device of the update."""

    description: str = "JAX threefry2x32 with a 64-bit key, float32"

    def add(self, update: Update, noise_std: Scale, secret: bytes) -> Update:
        """Add N(0, noise_std²) to every coordinate, from one stream for all leaves.

        Guarantee: coordinates are independent, across leaves too, and the noise reaches beyond ten standard deviations.
        """
        with jax.enable_x64(True):  # what is noised may be in float64; numbers drawn are float32 all the same
            return _add_on_device(update, noise_std, noise_key(secret))


@dataclass(frozen=True)
class HardenedNoise:
    """Float64 noise from ChaCha20, a cipher with a 256-bit key, drawn and added on the host.

    The sum is rounded to float32 once, after the noise is in it, so that the grid of float64 is not released.
    """

    description: str = "ChaCha20 with a 256-bit key, float64 on the host, rounded to float32 once"

    def add(self, update: Update, noise_std: Scale, secret: bytes) -> Update:
        """As `StandardNoise.add`, with the same guarantee."""
        leaves, structure = jax.tree.flatten(update)
        generator = chacha20(secret)
        noised = []
        for leaf, std in zip(leaves, _scales(update, noise_std), strict=True):
            # One stream for all leaves: each takes up where the last one ended.
            normal = generator.standard_normal((4, *np.shape(leaf))).sum(axis=0) / 2
            noised.append(jnp.asarray((np.asarray(leaf, np.float64) + float(std) * normal).astype(np.float32)))
        return structure.unflatten(noised)


Noise = StandardNoise | HardenedNoise


@jax.jit
def _add_on_device(update: Update, noise_std: Scale, key: PRNGKeyArray) -> Update:
    leaves, structure = jax.tree.flatten(update)
    ends = list(accumulate(leaf.size for leaf in leaves))
    normal = jnp.sum(jax.random.normal(key, (4, ends[-1]), jnp.float32), axis=0) / 2
    parts = zip(leaves, jnp.split(normal, ends[:-1]), _scales(update, noise_std), strict=True)
    # Rounded to float32 after the noise is in: before, rounding could tell users apart.
    noised = [(leaf + std * part.reshape(leaf.shape)).astype(jnp.float32) for leaf, part, std in parts]
    return structure.unflatten(noised)


def _scales(update: Update, noise_std: Scale) -> list[Any]:
    """The scale of every leaf."""
    spread = jax.tree.map(lambda std, below: jax.tree.map(lambda _: std, below), noise_std, update)
    return jax.tree.leaves(spread)
