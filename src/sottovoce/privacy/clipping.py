"""Bounding what one user can do to the model: flat and per-layer clipping (equation 1).

A clip cuts an update into parts, one or as many as there are layers. The norm each part is clipped to is an argument,
since it may change with the round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from sottovoce.errors import SettingError

Update = Any  # a pytree of float arrays, shaped like the model
ClipNorms = Float[Array, " parts"]

# A norm summed in float32 can fall short of the true one; clipping to this share of S keeps the true norm below S.
# `test_a_clipped_update_is_never_longer_than_the_clip_norm` measures it at the size of the paper's model.
SAFE_SHARE = 1 - 2e-5


def norm(update: Update) -> Float[Array, ""]:
    """The L2 norm of all leaves together, in float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(update)))


def joint_norm(clip_norms: Any) -> float:
    """How long an update can be whose parts have these norms."""
    return math.sqrt(sum(float(part) ** 2 for part in np.ravel(clip_norms)))


class Clipped(NamedTuple):
    update: Update
    clipped: Bool[Array, " parts"]  # was anything cut off? Private: it depends on one user's text


def project(update: Update, bound: Float[Array, ""] | float) -> tuple[Update, Bool[Array, ""]]:
    """π(Δ, S) = Δ · min(1, S/‖Δ‖), and whether it cut anything off. A zero update stays zero.

    A norm that overflows gives zeros, and an update that is not finite stays so, for `finite_or_zero` to catch.
    """
    length = norm(update)
    safe_bound = bound * SAFE_SHARE
    within = length <= safe_bound
    # Within the bound the update is left as it is, to the bit.
    scale = jnp.where(within, 1.0, safe_bound / length)
    return jax.tree.map(lambda leaf: leaf * scale, update), ~within


@dataclass(frozen=True)
class FlatClip:
    """Clip the concatenation of all layers to `clip_norm`.

    Guarantee: the result has L2 norm at most the clip norm it is given. With `weight_aware` it is w·Δ that is kept
    within it, so that a user with little text may send a longer Δ.
    """

    clip_norm: float
    weight_aware: bool = False

    def __post_init__(self) -> None:
        _positive(self.clip_norm)

    @property
    def clip_norms(self) -> tuple[float, ...]:
        return (self.clip_norm,)

    def clip(self, update: Update, clip_norms: ClipNorms) -> Clipped:
        projected, cut = project(update, clip_norms[0])
        return Clipped(projected, cut[None])


@dataclass(frozen=True)
class PerLayerClip:
    """Clip each layer's parameters to a norm of their own.

    Guarantee: layer j of the result has L2 norm at most S_j, so all together at most √(Σ S_j²).
    """

    clip_norms: tuple[float, ...]
    weight_aware: bool = False

    def __post_init__(self) -> None:
        for each in self.clip_norms:
            _positive(each)

    @staticmethod
    def even(clip_norm: float, layers: int, weight_aware: bool = False) -> PerLayerClip:
        """S_j = S/√m, so that all m layers together stay within S."""
        return PerLayerClip((clip_norm / math.sqrt(layers),) * layers, weight_aware)

    def clip(self, update: Update, clip_norms: ClipNorms) -> Clipped:
        leaves, structure = jax.tree.flatten(update)
        if len(leaves) != len(self.clip_norms):  # a static fact of the model: checked when the program is traced
            raise ValueError(f"an update of {len(leaves)} layers was given to a clip for {len(self.clip_norms)}")
        projected = [project(leaf, bound) for leaf, bound in zip(leaves, clip_norms, strict=True)]
        return Clipped(structure.unflatten([leaf for leaf, _ in projected]), jnp.stack([cut for _, cut in projected]))


@dataclass(frozen=True)
class NoClip:
    """Leave updates as they are. There is no bound, so there is no guarantee."""

    clip_norms: tuple[float, ...] = (math.inf,)
    weight_aware: bool = False

    def clip(self, update: Update, clip_norms: ClipNorms) -> Clipped:
        del clip_norms
        return Clipped(update, jnp.array([False]))


Clipping = FlatClip | PerLayerClip | NoClip


def of_any_norm(clipping: Clipping) -> Clipping:
    """The same clip with norms of 1: the norms are arguments, so a program compiled for this one serves them all."""
    if isinstance(clipping, NoClip):
        return clipping
    if isinstance(clipping, FlatClip):
        return FlatClip(1.0, clipping.weight_aware)
    return PerLayerClip((1.0,) * len(clipping.clip_norms), clipping.weight_aware)


def norms_for(clipping: Clipping, clip_norms: ClipNorms, weight: Float[Array, ""]) -> ClipNorms:
    """What the parts of one user's Δ are clipped to: S, or S/w where it is w·Δ that must stay within S."""
    if not clipping.weight_aware:
        return clip_norms
    return clip_norms / jnp.where(weight > 0, weight, 1.0)


def finite_or_zero(update: Update) -> tuple[Update, Float[Array, ""]]:
    """The update and 1, or zeros and 0 when any number in it is not finite."""
    finite = jnp.array(True)
    for leaf in jax.tree.leaves(update):
        finite &= jnp.all(jnp.isfinite(leaf))
    return jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), update), finite.astype(jnp.float32)


def _positive(clip_norm: float) -> None:
    if not (math.isfinite(clip_norm) and clip_norm > 0):
        raise SettingError("{clip_norm} must be above 0; it is the longest update a user may send", clip_norm=clip_norm)
