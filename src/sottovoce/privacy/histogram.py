"""Which names many users share: counts with discrete Gaussian noise, of which those above a threshold are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sottovoce.errors import SottoError
from sottovoce.privacy.events import ThresholdedHistogram

# Noise on whole numbers below this deviates visibly from a Gaussian; more of it than was asked for harms nobody.
_LEAST_STD = 2.0
_MOST_STD = 2.0**25
MOST_NAMES = 2**16
_MOST_THRESHOLD = 2**30  # 32 of the largest standard deviation


@dataclass(frozen=True)
class NoisyHistogram:
    """Shows names by how many users brought them in, when each user brings at most `names_per_user`, each once.

    Guarantee: one user added or removed changes at most M = `names_per_user` counts, each by one. That costs what a
    Gaussian of `noise_multiplier` costs, for the counts, and `delta` beside it, for names that this user alone brought.

    Noise and threshold are opendp's; the noise is exact, and drawn from the entropy of the operating system.
    """

    names_per_user: int
    noise_multiplier: float
    delta: float

    def __post_init__(self) -> None:
        if not 1 <= self.names_per_user <= MOST_NAMES:
            raise SottoError(
                f"names_per_user={self.names_per_user} must be in [1, {MOST_NAMES}]; it is how many a user may bring"
            )
        self.event()  # it refuses noise and δ that are none
        if self.noise_std > _MOST_STD:
            raise SottoError(
                f"noise of {self.noise_std:.3g} (noise_multiplier={self.noise_multiplier:g}, names_per_user="
                f"{self.names_per_user}) drowns every count; take a larger epsilon or fewer names"
            )

    @property
    def noise_std(self) -> float:
        """z·√M, and a little more.

        Counts are whole, so is the noise. Rounding a Gaussian to whole numbers gives (to 10 digits) a discrete Gaussian
        of 1/12 more variance, and rounding reveals nothing: so a user who moves a sum of M counts by M is as hidden
        as by a Gaussian when the noise of that sum has 1/12 more variance. It gets 1/6.
        """
        names = self.names_per_user
        return max(_LEAST_STD, math.sqrt(self.noise_multiplier**2 * names + 1 / (6 * names)))

    @cached_property
    def threshold(self) -> int:
        """The smallest count to show with which a name of one user alone stays hidden, but for a chance of `delta`."""
        from opendp.mod import binary_search

        return int(binary_search(lambda count: self._cost(int(count))[1] <= self.delta, bounds=(2, _MOST_THRESHOLD)))

    def event(self) -> ThresholdedHistogram:
        return ThresholdedHistogram(self.noise_multiplier, self.delta)

    def cost(self) -> tuple[float, float]:
        """What opendp says this costs: ρ of zero-concentrated differential privacy, and δ."""
        return self._cost(self.threshold)

    def draw(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The noisy counts that reach the threshold: one release."""
        return self._measurement(self.threshold)(dict(counts))

    def release(self, counts: Mapping[str, int]) -> list[str]:
        """The names of one draw, the most frequent by noisy count first."""
        noisy = self.draw(counts)
        # Ties go by the name. Left in the order in which names came, they would tell who came first.
        return sorted(noisy, key=lambda name: (-noisy[name], name))

    def _cost(self, threshold: int) -> tuple[float, float]:
        # How far one user moves the counts: how many of them, in L2, and each.
        return self._measurement(threshold).map((self.names_per_user, math.sqrt(self.names_per_user), 1.0))

    def _measurement(self, threshold: int) -> Any:
        import opendp.prelude as dp

        dp.enable_features("contrib")  # as opendp calls what has a proof that it did not vet itself yet
        return dp.m.make_gaussian_threshold(
            dp.map_domain(dp.atom_domain(T="String"), dp.atom_domain(T="i64")),
            dp.l02inf_distance(dp.absolute_distance(T="f64")),
            scale=self.noise_std,
            threshold=threshold,
        )
