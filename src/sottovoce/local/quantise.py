"""What an update weighs on its way to the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

COMPRESSING = 0x70616B  # what rounds an update is apart from what trained it


class Packed(NamedTuple):
    """What travels: whole numbers from -127 to 127, and what 1 stands for in each row."""

    numbers: Any
    units: Any


@dataclass(frozen=True)
class EightBit:
    """A byte a number: each is a multiple of a unit of its row's, rounded up or down by chance so that it is right on
    average. A device keeps nothing of what rounding lost.

    Rounding may make an update longer: whoever unpacks it clips it again.
    """

    def pack(self, update: Any, key: PRNGKeyArray) -> Packed:
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(jax.random.fold_in(key, COMPRESSING), len(leaves))
        packed = [_round(leaf, one) for leaf, one in zip(leaves, keys, strict=True)]
        return Packed(*(structure.unflatten(column) for column in zip(*packed, strict=True)))

    def unpack(self, packed: Packed) -> Any:
        return jax.tree.map(lambda numbers, unit: numbers * unit, packed.numbers, packed.units)

    def size(self, model: Any) -> int:
        """Bytes of an update."""
        return sum(leaf.size + 4 * (leaf.size // leaf.shape[-1]) for leaf in jax.tree.leaves(model))


def plain_size(model: Any) -> int:
    """Bytes of a model, or of an update as it is, in float32."""
    return 4 * sum(leaf.size for leaf in jax.tree.leaves(model))


def _round(leaf: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
    unit = jnp.max(jnp.abs(leaf), axis=-1, keepdims=True) / 127
    steps = jnp.where(unit > 0, leaf / jnp.where(unit > 0, unit, 1), 0)
    rounded = jnp.floor(steps + jax.random.uniform(key, leaf.shape))
    return jnp.clip(rounded, -127, 127).astype(jnp.int8), unit
