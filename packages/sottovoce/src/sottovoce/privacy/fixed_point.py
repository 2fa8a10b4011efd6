"""Exact sums of bounded contributions.

A sum in floating point is rounded after every addition, and one user more changes all roundings that follow: possibly
by far more than the user's own part. So contributions are cut to whole multiples of a public grid and added as whole
numbers. Such a sum is the same in any order, in any blocks, on any number of devices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce_evidence.bounds import BITS

# Two 32-bit halves hold a sum of 2^20 of them, 2^15 at a time; but not 2^20 times 2^27, which no clip lets through.
_LOW = 16
MOST_AT_ONCE, MOST = 2**15, 2**20
BIT_STEP = 0.5  # of the centred bits of adaptive clipping


class FixedPoint(NamedTuple):
    """Whole numbers of more than 32 bits, high · 2^16 + low, in pytrees of the same shape."""

    high: Any
    low: Any


def zeros(like: Any) -> FixedPoint:
    """A sum of no contributions, in the shape of `like`."""
    high = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.int32), like)
    return FixedPoint(high, jax.tree.map(jnp.copy, high))


def add_all(contributions: Any, grid: Any) -> FixedPoint:
    """The sum over the leading axis of contributions.

    Guarantee: exact, once each is cut to the grid; and cutting goes towards zero, so that none becomes longer. More
    than `MOST_AT_ONCE` would wrap round, and are refused.
    """
    if (count := jax.tree.leaves(contributions)[0].shape[0]) > MOST_AT_ONCE:
        raise ValueError(f"{count} contributions at once are more than {MOST_AT_ONCE}, which a whole number holds")
    leaves, structure = jax.tree.flatten(contributions)
    sums = [_sum_of_halves(_within(jnp, leaf / grid).astype(jnp.int32)) for leaf in leaves]  # cuts towards zero
    return _carried(FixedPoint(*(structure.unflatten(list(halves)) for halves in zip(*sums, strict=True))))


def _sum_of_halves(steps: jax.Array) -> tuple[jax.Array, ...]:
    """Over the leading axis. A GPU adds up both halves of an array at once: else XLA would read all arrays twice."""
    halves, zero = (steps >> _LOW, steps & (2**_LOW - 1)), np.int32(0)
    if jax.default_backend() == "cpu":
        return tuple(jnp.sum(half, axis=0) for half in halves)
    add_both = lambda one, other: (one[0] + other[0], one[1] + other[1])  # noqa: E731
    return jax.lax.reduce(halves, (zero, zero), add_both, (0,))


def add(one: FixedPoint, other: FixedPoint) -> FixedPoint:
    """The sum of two sums."""
    return _carried(FixedPoint(*(jax.tree.map(jnp.add, *halves) for halves in zip(one, other, strict=True))))


def _carried(total: FixedPoint) -> FixedPoint:
    """The same number, whose lower half is within 16 bits: what is above them is carried into the upper one."""
    high = jax.tree.map(lambda high, low: high + (low >> _LOW), *total)
    return FixedPoint(high, jax.tree.map(lambda part: part & (2**_LOW - 1), total.low))


def values(totals: tuple[FixedPoint, ...], grids: tuple[float, ...]) -> tuple[Any, ...]:
    """Sums in float64, which holds them exactly."""
    with jax.enable_x64(True):
        return _values(totals, grids)


@jax.jit
def _values(totals: tuple[FixedPoint, ...], grids: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        jax.tree.map(lambda high, low, grid=grid: (high.astype(jnp.float64) * 2.0**_LOW + low) * grid, *total)
        for total, grid in zip(totals, grids, strict=True)
    )


def quantise(contribution: np.ndarray, grid: float) -> np.ndarray:
    """One contribution in whole steps of the grid."""
    return _within(np, contribution / np.float32(grid)).astype(np.int64)  # cuts towards zero


def _within(numpy: Any, steps: Any) -> Any:
    # The bound of a coordinate holds already, by the clip; here it keeps whole numbers from wrapping round.
    return numpy.clip(steps, -(2.0**BITS), 2.0**BITS)
