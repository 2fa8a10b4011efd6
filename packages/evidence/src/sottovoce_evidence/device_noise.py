"""Noise that devices add before their sums are masked: a share each, so that what the server unmasks is noised.

Each device adds Skellam noise of variance (z_s · S)² / (survivors - colluding), in whole steps of the grid. A sum is
unmasked if it is over `survivors` devices or more. At least `survivors - colluding` of them are honest, and their noise
together has z_s · S or more, whatever the others do. The server tops up to the noise of the released model. Where no
sum is unmasked, it draws all of that noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sottovoce_evidence.accounting.events import (
    MOST_COORDINATES,
    Event,
    SampledExamples,
    SampledGaussian,
    SampledSkellam,
)
from sottovoce_evidence.accounting.skellam import chance_above
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.sampling import Sampling

# A plan asks for these, and does without jax: tests compare them with `bounds.grid_of` and `skellam.LEAST_STD`.
STEPS = 2.0**26  # of the grid in S: more than this, and at most twice as many
LEAST_STD = 2.0**12  # of Skellam noise that can be drawn
JOINS_MORE = 2.0**-40  # the chance that a user is drawn more often than they may join
WRAPS = 2.0**-40  # the chance that noise makes a masked sum wrap round, in a round


@dataclass(frozen=True)
class DeviceNoise:
    """What is declared of the noise of devices, and what follows from it."""

    noise_multiplier: float  # z_s: of the honest survivors together, over S
    survivors: int
    colluding: int
    participations: int  # rounds that one user joins at most
    simulated: bool = True  # are there no devices? Then the noise of `survivors` of them is drawn in one place
    steps: float = STEPS  # of the grid in S, at least

    @property
    def honest(self) -> int:
        """The fewest honest devices in a sum that is unmasked."""
        return self.survivors - self.colluding

    def share(self, steps: float) -> float:
        """The standard deviation of one device's noise, where S has so many steps.

        Guarantee: the noise of the honest survivors has a variance of (z_s · S)² or more.
        """
        return max(self.noise_multiplier * steps / math.sqrt(self.honest), LEAST_STD)

    def top_up(self, noise_multiplier: float, steps: float) -> float:
        """The standard deviation of the server's noise, which makes that of honest devices z · S; 0: none is needed."""
        missing = noise_multiplier**2 - self.noise_multiplier**2
        if missing <= 0:
            return 0.0
        return max(math.sqrt(missing) * steps * (1 + 2.0**-40), LEAST_STD)

    def drawn_at_once(self, noise_multiplier: float, steps: float) -> float:
        """The standard deviation of the noise of `survivors` devices and the server together."""
        return math.hypot(math.sqrt(self.survivors) * self.share(steps), self.top_up(noise_multiplier, steps))

    def largest(self, steps: float, devices: int, size: int) -> int:
        """What the noise of so many devices stays within in all coordinates, but for a chance of `WRAPS`.

        By Bernstein's inequality for the difference of two Poisson numbers.
        """
        variance = devices * (self.share(steps) * (1 + 2.0**-30)) ** 2
        small = math.log(2 * size / WRAPS)
        return math.ceil(math.sqrt(2 * small * variance) + small)

    def charged(self, events: Iterable[tuple[Event, int]]) -> list[tuple[Event, int]]:
        """The same rounds with Skellam noise, for those who see only the model."""
        return [(self._charged(event), count) for event, count in events]

    def _charged(self, event: Event) -> Event:
        if isinstance(event, SampledExamples):  # of a person in several silos; noise here is over all of their updates
            silos = event.examples_per_user
            return SampledSkellam(event.noise_multiplier / silos, "poisson", event.example_rate, self.steps, silos)
        if not isinstance(event, SampledGaussian):
            return event
        return SampledSkellam(event.noise_multiplier, event.sampling, event.user_rate, self.steps)

    @property
    def against_server(self) -> list[tuple[Event, int]]:
        """What the server sees of one user, who joins as often as they may: sampling hides nothing from it.

        It holds for a person in m silos too. Each silo lets its user join so often, with 1/m of S. The squares of what
        moves each round add up to no more than if all silos had the same rounds.
        """
        return [(SampledSkellam(self.noise_multiplier, "poisson", 1.0, self.steps), self.participations)]


def check_noised(size: int) -> None:
    """Refuse a vector of more coordinates than are charged for."""
    if size > MOST_COORDINATES:
        raise SottoError(f"noise of devices is for at most {MOST_COORDINATES:,} parameters, not {size:,}; train a part")


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
    chances = chance_above(rounds, sampler.user_rate)
    return max(1, next(most for most, chance in enumerate(chances) if chance <= JOINS_MORE))
