"""Estimators of the weighted average update, each with its sensitivity (Lemma 1).

All assume ‖Δ_k‖ <= S and 0 <= w_k <= 1. The proofs are in docs/explanation/guarantees.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sottovoce.privacy.registry import Block, Registry
from sottovoce_evidence.errors import SottoError

if TYPE_CHECKING:  # a plan asks for a sensitivity, and does without jax
    from jaxtyping import Array, Float

Update = Any


class Estimator(Block, ABC):
    """Turns the sum over the cohort into an average update, and knows how far one user can move it.

    A subclass gets what its constructor asks for by name: `expected_weight` (qW), `least_weight` (qW_min).
    """

    bounded: ClassVar[bool] = True  # is its sensitivity finite?
    fixed: ClassVar[bool] = False  # is the denominator declared, so that the exact weight is not needed?
    takes_weighted_clip: ClassVar[bool] = True  # does its sensitivity hold where w·Δ is clipped instead of Δ?

    @abstractmethod
    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        """The average update, from Σ w_k Δ_k and Σ w_k."""

    @abstractmethod
    def sensitivity(self, norm_bound: float) -> float:
        """How far adding or removing one user moves the estimate, where updates have at most this norm."""

    def step(self, grid: float | None) -> float | None:
        """The estimate is a whole multiple of this, if contributions are of `grid`; None if no such step is public."""
        return None


@dataclass(frozen=True)
class FixedDenominator(Estimator):
    """f̃_f = Σ w_k Δ_k / qW with a declared W.

    Guarantee: adding or removing one user moves it by at most S / qW.
    """

    fixed = True

    expected_weight: float  # qW

    def __post_init__(self) -> None:
        _positive("expected_weight (qW)", self.expected_weight)

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        import jax

        # Not by `weight`, which is private: that would change the sensitivity.
        return jax.tree.map(lambda leaf: leaf / self.expected_weight, total)

    def sensitivity(self, norm_bound: float) -> float:
        return norm_bound / self.expected_weight

    def step(self, grid: float | None) -> float | None:
        return None if grid is None else grid / self.expected_weight


@dataclass(frozen=True)
class ClippedDenominator(Estimator):
    """f̃_c = Σ w_k Δ_k / max(qW_min, Σ w_k).

    Guarantee: adding or removing one user moves it by at most 2S / (1 + qW_min), and that is attained. (The paper's
    2S / qW_min is larger.)
    """

    takes_weighted_clip = False  # many users of tiny weight could send huge updates

    least_weight: float  # qW_min

    def __post_init__(self) -> None:
        _positive("least_weight (qW_min)", self.least_weight)

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        import jax
        import jax.numpy as jnp

        denominator = jnp.maximum(weight, self.least_weight)
        return jax.tree.map(lambda leaf: leaf / denominator, total)

    def sensitivity(self, norm_bound: float) -> float:
        return 2 * norm_bound / (1 + self.least_weight)


@dataclass(frozen=True)
class TrueAverage(Estimator):
    """f = Σ w_k Δ_k / Σ w_k, and zero for an empty cohort. One user can be all of it, so it is never private."""

    bounded = False

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        import jax
        import jax.numpy as jnp

        return jax.tree.map(lambda leaf: jnp.where(weight > 0, leaf / jnp.where(weight > 0, weight, 1), 0), total)

    def sensitivity(self, norm_bound: float) -> float:
        return math.inf


ESTIMATORS = Registry[Estimator](
    "privacy.estimator",
    {"fixed_denominator": FixedDenominator, "clipped_denominator": ClippedDenominator, "true_average": TrueAverage},
)

WEIGHT_STEP = 2.0**-24


def user_weight(tokens: Any, weight_cap: float) -> Any:
    """w_k = min(n_k / ŵ, 1), cut to a whole multiple of `WEIGHT_STEP` so that weights add up exactly."""
    import jax.numpy as jnp

    return jnp.floor(jnp.minimum(tokens / weight_cap, 1.0) / WEIGHT_STEP) * WEIGHT_STEP


def _positive(name: str, value: float) -> None:
    if not 1e-6 <= value <= 1e12:
        raise SottoError(f"{name}={value} must be from 1e-6 to 1e12; it comes from the declared cohort and weights")
