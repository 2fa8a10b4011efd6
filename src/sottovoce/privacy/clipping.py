"""Bounding what one user can do to the model: flat and per-layer clipping (equation 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Update = Any  # a pytree of float arrays, shaped like the model

# A norm summed in float32 can fall short of the true one; clipping to this share of S keeps the true norm below S.
# `test_a_clipped_update_is_never_longer_than_the_clip_norm` measures it at the size of the paper's model.
SAFE_SHARE = 1 - 2e-5


def norm(update: Update) -> Float[Array, ""]:
    """The L2 norm of all leaves together, in float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(update)))


class Clipped(NamedTuple):
    update: Update
    clipped: Bool[Array, ""]  # was anything cut off? Private: it depends on one user's text


def project(update: Update, bound: float) -> Clipped:
    """π(Δ, S) = Δ · min(1, S/‖Δ‖). A zero update stays zero.

    A norm that overflows gives zeros, and an update that is not finite stays so, for `finite_or_zero` to catch.
    """
    length = norm(update)
    safe_bound = bound * SAFE_SHARE
    within = length <= safe_bound
    # Within the bound the update is left as it is, to the bit.
    scale = jnp.where(within, 1.0, safe_bound / length)
    return Clipped(jax.tree.map(lambda leaf: leaf * scale, update), ~within)


@dataclass(frozen=True)
class FlatClip:
    """Clip the concatenation of all layers to `clip_norm`.

    Guarantee: the result has L2 norm at most `norm_bound`.
    """

    clip_norm: float

    @property
    def norm_bound(self) -> float:
        return self.clip_norm

    def clip(self, update: Update) -> Clipped:
        return project(update, self.clip_norm)


@dataclass(frozen=True)
class PerLayerClip:
    """Clip each of `layers` parameter vectors to S_j = S/√m, so that all together stay within S.

    Guarantee: the result has L2 norm at most `norm_bound`.
    """

    clip_norm: float
    layers: int

    @property
    def norm_bound(self) -> float:
        return self.clip_norm

    def clip(self, update: Update) -> Clipped:
        leaves, structure = jax.tree.flatten(update)
        if len(leaves) != self.layers:  # a static fact of the model: checked when the program is traced
            raise ValueError(f"an update of {len(leaves)} layers was given to a clip for {self.layers}")
        each = self.clip_norm / math.sqrt(self.layers)
        projected = [project(leaf, each) for leaf in leaves]
        cut = jnp.any(jnp.stack([layer.clipped for layer in projected]))
        return Clipped(structure.unflatten([layer.update for layer in projected]), cut)


@dataclass(frozen=True)
class NoClip:
    """Leave updates as they are. There is no bound, so there is no guarantee."""

    norm_bound: float = math.inf

    def clip(self, update: Update) -> Clipped:
        return Clipped(update, jnp.array(False))


Clipping = FlatClip | PerLayerClip | NoClip


def finite_or_zero(update: Update) -> tuple[Update, Float[Array, ""]]:
    """The update and 1, or zeros and 0 when any number in it is not finite."""
    finite = jnp.array(True)
    for leaf in jax.tree.leaves(update):
        finite &= jnp.all(jnp.isfinite(leaf))
    return jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), update), finite.astype(jnp.float32)
