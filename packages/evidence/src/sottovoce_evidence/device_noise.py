"""Noise that devices add before their sums are masked: a share each, so that what the server unmasks is noised.

Each device adds rounded Gaussians of variance (z_s · S)² / (survivors - colluding), in whole steps of the grid. A sum
is unmasked if it is over `survivors` devices or more. At least `survivors - colluding` of them are honest, and their
noise together has z_s · S or more, whatever the others do. The server tops up to the noise of the released model. Where
no sum is unmasked, it draws all of that noise.

The sum of such shares tells no more than one Gaussian of their variance (docs/explanation/guarantees.md has the proof).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sottovoce_evidence.accounting.events import Event, SampledGaussian
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.files import Facts
from sottovoce_evidence.sampling import Sampling

STEPS = 2.0**26  # of the grid in S, at least; a test compares it with `bounds.grid_of`
LEAST_STD = 2.0**12  # of a share and of the server's part, in steps: from here on the proof leaves out nothing
JOINS_MORE = 2.0**-40  # the chance that a user is drawn more often than they may join
WRAPS = 2.0**-40  # the chance that noise makes a masked sum wrap round, in a round: it would spoil the round


@dataclass(frozen=True)
class DeviceNoise(Facts):
    """What is declared of the noise of devices, as a statement has it, and what follows from it.

    The server sees who takes part. Against it, with up to `colluding` devices, the updates of one user in all rounds
    that they join are as good as zeros.
    """

    noise_multiplier: float  # z_s: of the honest survivors together, over S
    survivors: int  # devices in a sum that is unmasked, at least
    colluding: int  # of them that may collude with the server, at most
    participations: int  # rounds that one user joins at most

    @property
    def honest(self) -> int:
        """The fewest honest devices in a sum that is unmasked."""
        return self.survivors - self.colluding

    def multiplier(self, noise_multiplier: float, devices: int) -> float:
        """The noise over S of so many devices and of a server that tops up to `noise_multiplier`.

        All that is drawn and all that is charged follows from it. The event has the noise of `honest` devices; those
        beyond count for nothing. One device draws that of one, without a top-up; the server that of none.

        Guarantee: variances add up, and with `honest` devices it is `noise_multiplier`.
        """
        own = self.noise_multiplier
        return math.sqrt((noise_multiplier - own) * (noise_multiplier + own) + own**2 * (devices / self.honest))

    @property
    def share(self) -> float:
        """The noise of one device, over S."""
        return self.multiplier(self.noise_multiplier, 1)

    def check(self, noise_multiplier: float) -> None:
        """Refuse what the proof does not hold for, where the noise of the model is `noise_multiplier`."""
        if self.honest < 1 or not 0 < self.noise_multiplier <= noise_multiplier:
            raise SottoError(
                f"federation.noise='devices' needs an honest device, and its server_noise_multiplier="
                f"{self.noise_multiplier:g} is part of privacy.noise_multiplier={noise_multiplier:g}: at most that"
            )
        least = LEAST_STD / STEPS
        if self.share < least:
            honest, needed = count_of(self.honest, "honest device"), least * math.sqrt(self.honest)
            raise SottoError(
                f"server_noise_multiplier={self.noise_multiplier:g} leaves too little noise for each of {honest}; "
                f"raise it to {needed:.3g} or more, or lower survivors"
            )
        if 0 < self.multiplier(noise_multiplier, 0) < least:
            raise SottoError(
                f"server_noise_multiplier={self.noise_multiplier!r} leaves the server too little noise to add up to "
                f"noise_multiplier={noise_multiplier!r}; make them equal, or lower it"
            )

    def largest(self, steps: float, devices: int, size: int) -> int:
        """What the noise of so many devices stays within in all coordinates, but for a chance of `WRAPS`.

        The tail of their Gaussians together, and half a step for the rounding of each. S has so many steps.
        """
        std = math.sqrt(devices) * self.share * steps * (1 + 2.0**-30)  # more than is drawn: scales are rounded up
        return math.ceil(std * math.sqrt(2 * math.log(2 * size / WRAPS)) + devices / 2)

    @property
    def against_server(self) -> list[tuple[Event, int]]:
        """What the server sees of one user, who joins as often as they may: sampling hides nothing from it.

        It holds for a person in m silos too. Each silo lets its user join so often, with 1/m of S. The squares of what
        moves each round add up to no more than if all silos had the same rounds.
        """
        charged = self.multiplier(self.noise_multiplier, self.honest)
        return [(SampledGaussian(charged, "poisson", 1.0), self.participations)]


def how_often(sampler: Sampling, rounds: int, declared: int = 0) -> int:
    """How many rounds a user may join, by the rule of the sampler.

    Where each round draws users by coins, it is what is declared, or else what coins exceed with a chance of
    `JOINS_MORE`. A device counts, and stops there, whatever the server asks. For those who see the model that changes
    nothing: given what was released before, the chance that a user is in a round is then at most what is charged.
    """
    if not sampler.amplifies:
        return sampler.participations(rounds)
    if declared:
        return min(declared, rounds)
    from scipy.special import betainc

    joined = np.arange(rounds)
    chances = betainc(joined + 1, rounds - joined, sampler.user_rate)  # that coins draw a user more often than this
    return max(1, int(np.sum(chances * (1 + 1e-6) > JOINS_MORE)))  # rounded up by more than its error
