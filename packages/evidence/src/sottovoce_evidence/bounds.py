"""How far one user can move a round, in numbers: the norms of a clip, and the sensitivity of an estimator (Lemma 1).

The library's `privacy/clipping.py` and `privacy/estimators.py` apply them to updates. All estimators assume ‖Δ_k‖ <= S
and 0 <= w_k <= 1. The proofs are in docs/explanation/guarantees.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.registry import Block, Registry

BITS = 27  # a contribution is at most 2^27 steps of the grid


def joint_norm(clip_norms: Any) -> float:
    """How long an update can be whose parts have these norms."""
    return math.sqrt(sum(float(part) ** 2 for part in np.ravel(clip_norms)))


def grid_of(bound: float) -> float:
    """The step for contributions whose coordinates are within `bound`: a power of two, so that scaling is exact."""
    return 2.0 ** (math.ceil(math.log2(bound)) - BITS)


class ClipNorms(Block):
    """The declared clip norm of each part of an update. Without a bound there is no guarantee."""

    bounded: ClassVar[bool] = True
    if TYPE_CHECKING:  # a field or a property of each subclass

        @property
        def clip_norms(self) -> tuple[float, ...]:
            """The declared clip norm of each part."""


@dataclass(frozen=True)
class FlatClip(ClipNorms):
    """One norm for all layers together."""

    clip_norm: float

    def __post_init__(self) -> None:
        _positive(self.clip_norm)

    @property
    def clip_norms(self) -> tuple[float, ...]:
        return (self.clip_norm,)


@dataclass(frozen=True)
class PerLayerClip(ClipNorms):
    """A norm for each layer. A layer is one array, or `arrays[j]` of them that follow one another."""

    clip_norms: tuple[float, ...]
    arrays: tuple[int, ...] = ()  # of each layer; empty: one

    def __post_init__(self) -> None:
        if self.arrays and len(self.arrays) != len(self.clip_norms):
            raise ValueError(f"{len(self.clip_norms)} clip norms were given for {len(self.arrays)} layers")
        for each in self.clip_norms:
            _positive(each)


def even_norms(clip_norm: float, layers: int) -> tuple[float, ...]:
    """S_j = S/√m, so that all m layers together stay within S."""
    return (clip_norm / math.sqrt(layers),) * layers


@dataclass(frozen=True)
class NoClip(ClipNorms):
    """Updates stay as they are."""

    bounded = False
    clip_norms = (math.inf,)


CLIPS = Registry[ClipNorms]("privacy.clipping", {"flat": FlatClip, "per_layer": PerLayerClip, "none": NoClip})


class Sensitivity(Block, ABC):
    """How far one user can move the average update that an estimator makes of a sum over the cohort."""

    bounded: ClassVar[bool] = True  # is the sensitivity finite?
    fixed: ClassVar[bool] = False  # is the denominator declared, so that the exact weight is not needed?

    @abstractmethod
    def sensitivity(self, norm_bound: float) -> float:
        """How far adding or removing one user moves the estimate, where updates have at most this norm."""

    def step(self, grid: float | None) -> float | None:
        """The estimate is a whole multiple of this, if contributions are of `grid`; None if no such step is public."""
        return None


@dataclass(frozen=True)
class FixedDenominator(Sensitivity):
    """Of f̃_f = Σ w_k Δ_k / qW with a declared W.

    Guarantee: adding or removing one user moves it by at most S / qW.
    """

    fixed = True

    expected_weight: float  # qW

    def __post_init__(self) -> None:
        _within_range("expected_weight (qW)", self.expected_weight)

    def sensitivity(self, norm_bound: float) -> float:
        return norm_bound / self.expected_weight

    def step(self, grid: float | None) -> float | None:
        return None if grid is None else grid / self.expected_weight


@dataclass(frozen=True)
class ClippedDenominator(Sensitivity):
    """Of f̃_c = Σ w_k Δ_k / max(qW_min, Σ w_k).

    Guarantee: adding or removing one user moves it by at most 2S / (1 + qW_min), and that is attained. (The paper's
    2S / qW_min is larger.)
    """

    least_weight: float  # qW_min

    def __post_init__(self) -> None:
        _within_range("least_weight (qW_min)", self.least_weight)

    def sensitivity(self, norm_bound: float) -> float:
        return 2 * norm_bound / (1 + self.least_weight)


@dataclass(frozen=True)
class TrueAverage(Sensitivity):
    """Of f = Σ w_k Δ_k / Σ w_k. One user can be all of it, so it is never private."""

    bounded = False

    def sensitivity(self, norm_bound: float) -> float:
        return math.inf


ESTIMATORS = Registry[Sensitivity](
    "privacy.estimator",
    {"fixed_denominator": FixedDenominator, "clipped_denominator": ClippedDenominator, "true_average": TrueAverage},
)


def _positive(clip_norm: float) -> None:
    if not (math.isfinite(clip_norm) and clip_norm > 0):
        raise SettingError("{clip_norm} must be above 0; it is the longest update a user may send", clip_norm=clip_norm)


def _within_range(name: str, value: float) -> None:
    if not 1e-6 <= value <= 1e12:
        raise SottoError(f"{name}={value} must be from 1e-6 to 1e12; it comes from the declared cohort and weights")
