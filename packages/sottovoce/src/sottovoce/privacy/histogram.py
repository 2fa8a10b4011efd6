"""Counts with rounded Gaussian noise: of users, and of the names that many users share."""

from __future__ import annotations

import math
import secrets as os_entropy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from sottovoce.privacy.noise import LEAST_SCALE, rounded_gaussian
from sottovoce_evidence.accounting.events import GaussianRelease, SampledGaussian
from sottovoce_evidence.errors import SottoError

_MOST_STD = 2.0**25
MOST_NAMES = 2**16


@dataclass(frozen=True)
class NoisyCount:
    """The number of users, with noise.

    Guarantee: one user added or removed changes the count by one, so it costs what a Gaussian of `noise_multiplier`
    costs. The noise is keyed by the entropy of the operating system, and rounded to whole numbers as the count is.
    """

    noise_multiplier: float

    @property
    def noise_std(self) -> float:
        return max(LEAST_SCALE, self.noise_multiplier)

    def event(self) -> SampledGaussian:
        """One release over all users."""
        return SampledGaussian(self.noise_multiplier, "poisson", user_rate=1.0)

    def draw(self, count: int) -> int:
        """The noisy count: one release. It may be below 0."""
        (noise,) = np.asarray(rounded_gaussian(os_entropy.token_bytes(32), 1, self.noise_std))
        return count + int(noise)


@dataclass(frozen=True)
class NoisyHistogram:
    """Shows names by how many users brought them in, when each user brings at most `names_per_user`, each once.

    Guarantee: one user added or removed changes at most M = `names_per_user` counts, each by one. That costs what a
    Gaussian of `noise_multiplier` costs, for the counts, and `delta` more, for names that this user alone brought.
    The noise is keyed by the entropy of the operating system, and rounded to whole numbers as the counts are.
    """

    names_per_user: int
    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        if not 1 <= self.names_per_user <= MOST_NAMES:
            raise SottoError(f"names_per_user={self.names_per_user} must be from 1 to {MOST_NAMES}")
        self.event()  # it refuses a noise or a δ out of range
        if self.delta == 0:
            raise SottoError("delta=0 shows no name: no threshold is high enough")
        if self.noise_std > _MOST_STD:
            raise SottoError(
                f"noise of {self.noise_std:.3g} (noise_multiplier={self.noise_multiplier:g}, "
                f"names_per_user={self.names_per_user}) hides every count; take a larger epsilon or fewer names"
            )

    @property
    def noise_std(self) -> float:
        """z·√M: a user moves M counts by one, so all of them by √M."""
        return max(LEAST_SCALE, self.noise_multiplier * math.sqrt(self.names_per_user))

    @property
    def threshold(self) -> int:
        """The smallest count to show with which a name of one user alone stays hidden, but for a chance of `delta`."""
        threshold = math.floor(1.5 - self.noise_std * special.ndtri(self.delta / self.names_per_user)) - 2
        while self.chance_to_show(threshold) > self.delta:
            threshold += 1
        return max(2, threshold)

    def chance_to_show(self, threshold: int) -> float:
        """A bound of the chance that any of M names, which one user alone brought, reaches the threshold.

        Rounded noise reaches it from half a count below on. The scale of the noise is rounded up by at most 2^-31, and
        1e-9 covers the rounding of this formula.
        """
        tail = special.ndtr((1.5 - threshold) / (self.noise_std * (1 + 2.0**-30)))
        return min(1.0, self.names_per_user * float(tail) * (1 + 1e-9))

    def event(self) -> GaussianRelease:
        return GaussianRelease(self.noise_multiplier, self.delta)

    def draw(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The noisy counts that reach the threshold: one release."""
        noise = np.asarray(rounded_gaussian(os_entropy.token_bytes(32), len(counts), self.noise_std))
        threshold = self.threshold
        noisy = zip(counts, np.fromiter(counts.values(), np.int64, len(counts)) + noise, strict=True)
        return {name: int(count) for name, count in noisy if count >= threshold}

    def release(self, counts: Mapping[str, int]) -> list[str]:
        """The names of one draw, by noisy count; equal counts by name, since their order in `counts` is private."""
        noisy = self.draw(counts)
        return sorted(noisy, key=lambda name: (-noisy[name], name))
