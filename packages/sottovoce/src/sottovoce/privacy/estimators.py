"""Estimators of the weighted average update. Their sensitivities are in `sottovoce_evidence.bounds`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sottovoce_evidence import bounds
from sottovoce_evidence.registry import Registry

Update = Any


class Estimator(bounds.Sensitivity):
    """Turns the sum over the cohort into an average update, and knows how far one user can move it.

    A subclass gets what its constructor asks for by name: `expected_weight` (qW), `least_weight` (qW_min).
    """

    @abstractmethod
    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        """The average update, from Σ w_k Δ_k and Σ w_k."""


class FixedDenominator(bounds.FixedDenominator, Estimator):
    """f̃_f = Σ w_k Δ_k / qW with a declared W."""

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        # Not by `weight`, which is private: that would change the sensitivity.
        return jax.tree.map(lambda leaf: leaf / self.expected_weight, total)


class ClippedDenominator(bounds.ClippedDenominator, Estimator):
    """f̃_c = Σ w_k Δ_k / max(qW_min, Σ w_k)."""

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        denominator = jnp.maximum(weight, self.least_weight)
        return jax.tree.map(lambda leaf: leaf / denominator, total)


class TrueAverage(bounds.TrueAverage, Estimator):
    """f = Σ w_k Δ_k / Σ w_k, and zero for an empty cohort."""

    def estimate(self, total: Update, weight: Float[Array, ""]) -> Update:
        return jax.tree.map(lambda leaf: jnp.where(weight > 0, leaf / jnp.where(weight > 0, weight, 1), 0), total)


ESTIMATORS = Registry[Estimator](
    "privacy.estimator",
    {"fixed_denominator": FixedDenominator, "clipped_denominator": ClippedDenominator, "true_average": TrueAverage},
)

WEIGHT_STEP = 2.0**-24


def user_weight(tokens: Any, weight_cap: float) -> Any:
    """w_k = min(n_k / ŵ, 1), cut to a whole multiple of `WEIGHT_STEP` so that weights add up exactly."""
    return jnp.floor(jnp.minimum(tokens / weight_cap, 1.0) / WEIGHT_STEP) * WEIGHT_STEP
