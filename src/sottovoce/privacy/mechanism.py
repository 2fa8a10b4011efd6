"""One object from which everything private is derived: sensitivity, noise, and what the accountant charges."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.privacy.accounting import Event, NonPrivate, SampledGaussian
from sottovoce.privacy.clipping import Clipping
from sottovoce.privacy.estimators import Estimator
from sottovoce.privacy.sampling import Poisson, Sampler


@dataclass(frozen=True)
class Mechanism:
    """A sampler, a clip, an estimator and noise that belong together.

    `noise_multiplier` is z: the noise over the add-or-remove sensitivity. `experiment_noise_std` replaces it in
    experiments that break the link between the two; such a mechanism charges an infinite ε.
    """

    sampler: Sampler
    clipping: Clipping
    estimator: Estimator
    noise_multiplier: float
    experiment_noise_std: float | None = None
    unit: str = "user"

    def sensitivity(self) -> float:
        """How far adding or removing one user can move the estimate."""
        return self.estimator.sensitivity(self.clipping.norm_bound)

    def noise_std(self) -> float:
        """σ, the standard deviation of the noise on every coordinate of the estimate."""
        if self.experiment_noise_std is not None:
            return self.experiment_noise_std
        return self.noise_multiplier * self.sensitivity() if self.noise_multiplier else 0.0

    def event(self) -> Event:
        """What one round charges."""
        private = self.noise_multiplier > 0 and math.isfinite(self.sensitivity())
        if self.experiment_noise_std is not None or not private:
            return NonPrivate()
        if isinstance(self.sampler, Poisson):
            return SampledGaussian(self.noise_multiplier, "poisson", self.sampler.user_rate)
        cohort, users = self.sampler.cohort, self.sampler.users
        return SampledGaussian(self.noise_multiplier, "fixed", cohort / users, cohort=cohort, users=users)
