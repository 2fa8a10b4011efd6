"""Estimators of the weighted average update, each with its sensitivity (Lemma 1).

All assume ‖Δ_k‖ <= S and 0 <= w_k <= 1. The proofs are in docs/explanation/guarantees.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sottovoce.errors import SottoError

Update = Any


@dataclass(frozen=True)
class FixedDenominator:
    """f̃_f = Σ w_k Δ_k / qW with a declared W.

    Guarantee: adding or removing one user moves it by at most S / qW.
    """

    expected_weight: float  # qW

    def __post_init__(self) -> None:
        _positive("expected_weight (qW)", self.expected_weight)

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        del weight  # the realised weight is private; dividing by it would change the sensitivity
        return jax.tree.map(lambda leaf: leaf / self.expected_weight, total)

    def sensitivity(self, norm_bound: float) -> float:
        return norm_bound / self.expected_weight

    def step(self, grid: float | None) -> float | None:
        """The estimate is a whole multiple of this, where contributions are of `grid`: its denominator is public."""
        return None if grid is None else grid / self.expected_weight


@dataclass(frozen=True)
class ClippedDenominator:
    """f̃_c = Σ w_k Δ_k / max(qW_min, Σ w_k).

    Guarantee: adding or removing one user moves it by at most 2S / (1 + qW_min), and that is attained. (The paper's
    2S / qW_min is larger.)
    """

    least_weight: float  # qW_min

    def __post_init__(self) -> None:
        _positive("least_weight (qW_min)", self.least_weight)

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        denominator = jnp.maximum(weight, self.least_weight)
        return jax.tree.map(lambda leaf: leaf / denominator, total)

    def sensitivity(self, norm_bound: float) -> float:
        return 2 * norm_bound / (1 + self.least_weight)

    def step(self, grid: float | None) -> None:
        """None: the denominator is private, and so are the multiples of it."""


@dataclass(frozen=True)
class TrueAverage:
    """f = Σ w_k Δ_k / Σ w_k, and zero for an empty cohort. One user can be all of it, so it is never private."""

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        return jax.tree.map(lambda leaf: jnp.where(weight > 0, leaf / jnp.where(weight > 0, weight, 1), 0), total)

    def sensitivity(self, norm_bound: float) -> float:
        del norm_bound
        return math.inf

    def step(self, grid: float | None) -> None:
        """None: the denominator is private."""


Estimator = FixedDenominator | ClippedDenominator | TrueAverage


WEIGHT_STEP = 2.0**-24


def user_weight(tokens: Any, weight_cap: float) -> Any:
    """w_k = min(n_k / ŵ, 1), cut to a whole multiple of `WEIGHT_STEP` so that weights add up exactly."""
    return jnp.floor(jnp.minimum(tokens / weight_cap, 1.0) / WEIGHT_STEP) * WEIGHT_STEP


def _positive(name: str, value: float) -> None:
    if not 1e-6 <= value <= 1e12:
        raise SottoError(
            f"{name}={value} must be from 1e-6 to 1e12; it comes from the declared cohort, users and weights"
        )
