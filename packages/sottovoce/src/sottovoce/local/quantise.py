"""Quantisation of updates on their way to the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

ROUNDING = 0x70616B  # the key that rounds an update is not one of those that trained it


class Quantised(NamedTuple):
    """Whole numbers from -127 to 127, and the unit of each row."""

    numbers: Any
    units: Any


@dataclass(frozen=True)
class EightBit:
    """Stochastic quantisation to one byte a number: each is a multiple of the unit of its row.

    Numbers are rounded up or down at random, so that they are unbiased. An update may become longer, so it is clipped
    again after `dequantise`.
    """

    def quantise(self, update: Any, key: PRNGKeyArray) -> Quantised:
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(jax.random.fold_in(key, ROUNDING), len(leaves))
        rounded = [_round(leaf, one) for leaf, one in zip(leaves, keys, strict=True)]
        return Quantised(*(structure.unflatten(column) for column in zip(*rounded, strict=True)))

    def dequantise(self, sent: Quantised) -> Any:
        return jax.tree.map(lambda numbers, unit: numbers * unit, sent.numbers, sent.units)

    def size(self, params: Any) -> int:
        """Bytes of an update."""
        return sum(leaf.size + 4 * (leaf.size // leaf.shape[-1]) for leaf in jax.tree.leaves(params))


def plain_size(params: Any) -> int:
    """Bytes of parameters, or of an update that is not quantised, in float32."""
    return 4 * sum(leaf.size for leaf in jax.tree.leaves(params))


def _round(leaf: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
    unit = jnp.max(jnp.abs(leaf), axis=-1, keepdims=True) / 127
    steps = jnp.where(unit > 0, leaf / jnp.where(unit > 0, unit, 1), 0)
    rounded = jnp.floor(steps + jax.random.uniform(key, leaf.shape))
    return jnp.clip(rounded, -127, 127).astype(jnp.int8), unit
