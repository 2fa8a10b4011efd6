"""Bounding what one user can do to the model: flat and per-layer clipping (equation 1).

A clip cuts an update into parts and bounds the norm of each. The bounds are arguments, since they may change with the
round. docs/extending.md shows how to add a clip.

Their numbers are in `sottovoce_evidence.bounds`: each clip here is one of those, and shortens updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sottovoce_evidence import bounds
from sottovoce_evidence.registry import Registry

ClipNorms = Float[Array, " parts"]
Update = Any  # a pytree of float arrays, shaped like the model

# A norm summed in float32 can fall short of the true one; clipping to this share of S keeps the true norm below S.
# `test_a_clipped_update_is_never_longer_than_the_clip_norm` measures it at the size of the paper's model.
SAFE_SHARE = 1 - 2e-5


def norm(update: Update) -> Float[Array, ""]:
    """The L2 norm of all leaves together, in float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(update)))


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


class Clip(bounds.ClipNorms):
    """Cuts an update into parts and bounds each.

    A subclass gets what its constructor asks for by name: `clip_norm` (S), `clip_norms` (one for each layer), `arrays`
    (how many each layer has).
    Guarantee: part j of the result has L2 norm at most the clip norm j that is given, so the sensitivity follows from
    `joint_norm` of the clip norms.
    """

    def normalised(self) -> Self:
        """The same clip with norms of 1. The norms are arguments, so one compiled program serves them all."""
        ones = {"clip_norm": 1.0, "clip_norms": (1.0,) * len(self.clip_norms)}
        clip: Any = self  # a dataclass
        return replace(clip, **{name: one for name, one in ones.items() if self.takes(name)})

    def parts(self, leaves: Sequence[Any]) -> list[Sequence[Any]]:
        """The leaves of an update in consecutive groups, one for each clip norm."""
        return [leaves]

    def shorten(self, part: list[Array], bound: Float[Array, ""] | float) -> tuple[list[Array], Bool[Array, ""]]:
        """One part within its bound, and whether anything was cut off."""
        return project(part, bound)

    def clip(self, update: Update, clip_norms: ClipNorms) -> Clipped:
        """The update with every part within its clip norm."""
        leaves, structure = jax.tree.flatten(update)
        pairs = zip(self.parts(leaves), clip_norms, strict=True)
        shortened, cut = zip(*(self.shorten(list(part), bound) for part, bound in pairs), strict=True)
        return Clipped(structure.unflatten(list(chain.from_iterable(shortened))), jnp.stack(cut))


class FlatClip(bounds.FlatClip, Clip):
    """Clip the concatenation of all layers to `clip_norm`.

    Guarantee: the result has L2 norm at most the clip norm it is given.
    """


class PerLayerClip(bounds.PerLayerClip, Clip):
    """Clip each layer's parameters to a norm of their own.

    Guarantee: layer j of the result has L2 norm at most S_j, so all together at most √(Σ S_j²).
    """

    @staticmethod
    def even(clip_norm: float, layers: int) -> PerLayerClip:
        """S_j = S/√m, so that all m layers together stay within S."""
        return PerLayerClip(bounds.even_norms(clip_norm, layers))

    def parts(self, leaves: Sequence[Any]) -> list[Sequence[Any]]:
        counts = self.arrays or (1,) * len(self.clip_norms)
        if len(leaves) != sum(counts):  # a static fact of the model: checked when the program is traced
            raise ValueError(f"an update of {len(leaves)} layers was given to a clip for {sum(counts)}")
        rest = iter(leaves)
        return [[next(rest) for _ in range(count)] for count in counts]


class NoClip(bounds.NoClip, Clip):
    """Leave updates as they are. There is no bound, so there is no guarantee."""

    def clip(self, update: Update, clip_norms: ClipNorms) -> Clipped:
        return Clipped(update, jnp.array([False]))


CLIPS = Registry[Clip]("privacy.clipping", {"flat": FlatClip, "per_layer": PerLayerClip, "none": NoClip})


def finite_or_zero(update: Update, length: Array | None = None) -> tuple[Update, Float[Array, ""]]:
    """The update and 1, or zeros and 0 where its norm is not finite.

    `length` is the norm before a clip, which the clip has computed too: then the update is not read once more for this.
    A number that such a clip made not finite becomes 0.
    """
    finite = jnp.isfinite(norm(update) if length is None else length)
    # Of a constant, XLA would write an array as large as the update to memory, and read it.
    zero = jax.lax.optimization_barrier(jnp.zeros(()))
    kept = jax.tree.map(lambda leaf: jnp.where(finite & jnp.isfinite(leaf), leaf, zero), update)
    return kept, finite.astype(jnp.float32)
