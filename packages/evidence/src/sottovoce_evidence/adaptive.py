"""A clip norm that follows a quantile of the updates' norms (Andrew et al. 2021), and what its bits cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sottovoce_evidence.errors import SottoError

LEARNING_RATE = 0.2  # η_C of Andrew et al.: how fast the clip norm follows
LEAST_BIT_NOISE, MOST_BIT_NOISE = 1e-6, 1e12  # beyond these, noise in whole halves leaves its range


@dataclass(frozen=True)
class QuantileTracking:
    """Each user sends one bit for every clipped part of the update: did it stay within the clip norm?

    The bits are centred, so that a user moves each count by 1/2, and noised with `bit_noise`.
    """

    quantile: float  # γ: the share of users to leave unclipped
    learning_rate: float  # η_C: how fast the clip norm follows
    bit_noise: float  # σ_b: on each count of bits
    cohort: float  # expected users in a round, declared: the count's denominator

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise SottoError(f"quantile={self.quantile:g} must be in (0, 1); it is the share of users left unclipped")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise SottoError(f"learning_rate={self.learning_rate:g} of the clip norm must be above 0, often 0.2")
        if self.bit_noise and not LEAST_BIT_NOISE <= self.bit_noise <= MOST_BIT_NOISE:
            allowed = f"0, or from {LEAST_BIT_NOISE:g} to {MOST_BIT_NOISE:g}"
            raise SottoError(f"bit_noise={self.bit_noise:g} must be {allowed}; a twentieth of the cohort is usual")

    def update_multiplier(self, noise_multiplier: float, parts: int) -> float:
        """z_Δ = (z⁻² - m(2σ_b)⁻²)^(-1/2): the noise multiplier of the update itself, with m noised bits.

        Guarantee: update and bits together are one Gaussian mechanism with multiplier `noise_multiplier`. In units of
        its noise a user moves the update by 1/z_Δ and each of m counts by 1/2σ_b, all at once: by 1/z.
        """
        left = noise_multiplier**-2 - parts * (2 * self.bit_noise) ** -2 if self.bit_noise else -math.inf
        if left <= 0:
            least = math.sqrt(parts) * noise_multiplier / 2
            raise SottoError(
                f"bit_noise={self.bit_noise:g} must be above √m·z/2 = {least:.4g} ({parts} clipped parts, noise "
                f"multiplier {noise_multiplier:g}), or the bits cost more than the round; raise "
                f"privacy.adaptive_bit_noise"
            )
        return left**-0.5

    def next_clip_norms(self, clip_norms: np.ndarray, noised_bits: np.ndarray) -> np.ndarray:
        """S ← S·exp(-η_C (b̄ - γ)), from the noised counts of centred bits: post-processing, so it is free."""
        unclipped = np.clip(0.5 + np.asarray(noised_bits, np.float64) / self.cohort, 0.0, 1.0)
        followed = np.asarray(clip_norms, np.float64) * np.exp(-self.learning_rate * (unclipped - self.quantile))
        return np.clip(followed, 1e-9, 1e9).astype(np.float32)  # float32 has room for the squares
