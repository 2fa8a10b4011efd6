"""How often a user joins rounds, in numbers: what the accountant charges for a sampler, from what is declared.

The library's `privacy/sampling.py` draws the cohorts; each of its samplers is one of these with `sample` beside it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sottovoce_evidence.accounting.events import Covered, Event, SampledExamples, SampledGaussian
from sottovoce_evidence.accounting.matrices import Participation
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.registry import Block, Registry


class Sampling(Block, ABC):
    """Knows what a round costs a user who may join it.

    A subclass gets what its constructor asks for by name: `user_rate`, `cohort` (a whole number), `users`, `seed`,
    `min_separation`, `most_participations`, `silos`.
    """

    # Does each user join by a coin of their own, with chance `user_rate`? Then one user more changes no other's chance
    # (canaries need that), and devices can draw for themselves.
    independent: ClassVar[bool] = False
    # Is it secret who joins? Then a user pays less than for a round they surely join. If not, a public rule of users'
    # names decides it, and all rounds need the same noise.
    amplifies: ClassVar[bool] = True
    varies: ClassVar[bool] = True  # does the size of a cohort vary by chance?
    if TYPE_CHECKING:  # a field or a property of each subclass

        @property
        def user_rate(self) -> float:
            """The chance that a user joins a round."""

    @property
    def most_updates(self) -> int:
        """How many updates of one person a round holds at most: one for each silo that they may be a user of."""
        return getattr(self, "silos", 1)

    @abstractmethod
    def event(self, noise_multiplier: float) -> Event:
        """What one round costs a user who may join it."""

    @abstractmethod
    def expected(self, users: int) -> float:
        """How many of `users` join a round, on average."""

    def event_of_round(self, noise_multiplier: float, round_number: int) -> Event:
        """What a round costs that is played once, in its turn."""
        return self.event(noise_multiplier)

    def events(self, noise: Sequence[tuple[float, int]]) -> list[tuple[Event, int]]:
        """What the first rounds of a run cost, in order: `noise` has their noise multipliers, each with its number."""
        return [(self.event(multiplier), count) for multiplier, count in noise]

    def participations(self, rounds: int) -> int:
        """How many of `rounds` consecutive rounds one user joins at most."""
        return rounds

    def participation(self, rounds: int) -> Participation | None:
        """Which rounds one user may join; None where that is not bounded."""
        return None

    def round_of_charge(self, number: int) -> int:
        """The round in which a run is charged for the first, second, ... time."""
        return number

    def of_population(self, cohort: float, users: int) -> Self:
        """The same sampler with another declared cohort and population."""
        declared = {"user_rate": cohort / users, "cohort": cohort, "users": users}
        given: Any = self  # a dataclass
        return replace(given, **{each.name: declared[each.name] for each in fields(given) if each.name in declared})

    @property
    def relation(self) -> str:
        """Which two populations the guarantee makes indistinguishable."""
        return self.event(1.0).relation


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every user joins with probability `user_rate`, independently of all others.

    One person may be a user of up to `silos` silos, with a coin in each: the event is that of all of them.
    Guarantee: users are independent, and a user added after the others changes no other user's coin. The cost grows
    with the cohort, not with the number of users: the gaps between joining users are geometric.
    """

    independent = True

    user_rate: float
    silos: int = 1

    def __post_init__(self) -> None:
        _check_silos(self.silos)
        if not 0 < self.user_rate <= 1:
            raise SottoError(f"user_rate={self.user_rate:g} must be in (0, 1]; it is the chance to join a round")

    def event(self, noise_multiplier: float) -> Event:
        if self.silos > 1:
            return SampledExamples(self.silos * noise_multiplier, self.user_rate, self.silos)
        return SampledGaussian(noise_multiplier, "poisson", self.user_rate)

    def expected(self, users: int) -> float:
        return self.user_rate * users


@dataclass(frozen=True)
class Examples(Sampling):
    """Every example of every user joins with probability `example_rate`, independently of all others.

    The rows that it draws from are examples: `examples_per_user` places for each user, the ones without text included.
    Guarantee: of the places of one user a binomial number joins, which is what the event accounts for.
    """

    independent = True

    example_rate: float
    examples_per_user: int

    def __post_init__(self) -> None:
        self.event(1.0)  # which checks both numbers

    @property
    def user_rate(self) -> float:
        return SampledExamples(1.0, self.example_rate, self.examples_per_user).user_rate

    def event(self, noise_multiplier: float) -> Event:
        return SampledExamples(noise_multiplier, self.example_rate, self.examples_per_user)

    def expected(self, users: int) -> float:
        """Counted in users: as many examples as so many users have places."""
        return self.example_rate * users

    def of_population(self, cohort: float, users: int) -> Self:
        return replace(self, example_rate=cohort / users)


@dataclass(frozen=True)
class FixedSize(Sampling):
    """Exactly `cohort` different places, every such set equally likely.

    There are as many places as users, and no fewer than declared; an empty place adds nothing. So no store is refused
    for the number of its users.
    Guarantee: a user's chance to join is at most cohort / `users`, the declared population, which is what is charged.
    """

    varies = False

    cohort: int
    users: int

    def __post_init__(self) -> None:
        _check_cohort(self.cohort, self.users, "it is the number of users drawn for a round")

    @property
    def user_rate(self) -> float:
        return self.cohort / self.users

    def event(self, noise_multiplier: float) -> Event:
        return SampledGaussian(noise_multiplier, "fixed", self.user_rate, cohort=self.cohort, users=self.users)

    def expected(self, users: int) -> float:
        return self.cohort


@dataclass(frozen=True)
class BoundedParticipation(Sampling):
    """A public rule says when a user joins: rounds of one user are `min_separation` apart or more.

    Who joins when is no secret, so there is no amplification. One person may be a user of up to `silos` silos, each of
    which keeps the separation by itself: together they move the rounds by no more than one user of a single silo can.
    Guarantee: the rounds of a user follow from the user's name and public constants alone, not from other users, and
    from no state: a run that goes on has the same ones. In consecutive rounds a user joins at most `participations`.
    """

    amplifies = False

    cohort: int
    users: int
    seed: int
    silos: int = field(default=1, kw_only=True)
    if TYPE_CHECKING:  # a field or a property of each subclass

        @property
        def min_separation(self) -> int:
            """b: the fewest rounds from one that a user joins to the next."""

    def participation(self, rounds: int) -> Participation:
        return Participation(rounds, self.min_separation, self.participations(rounds))

    def participations(self, rounds: int) -> int:
        return -(-rounds // self.min_separation)

    def round_of_charge(self, number: int) -> int:
        """When a user who joined in round 1 may join once more."""
        return (number - 1) * self.min_separation + 1

    def event(self, noise_multiplier: float) -> Event:
        """A round that a user is known to join."""
        return SampledGaussian(noise_multiplier, "fixed", 1.0, cohort=1, users=1)

    def event_of_round(self, noise_multiplier: float, round_number: int) -> Event:
        """Charged when a user may join once more than any user has before; otherwise an earlier charge covers it."""
        more = self.participations(round_number) > self.participations(round_number - 1)
        return self.event(noise_multiplier) if more else Covered(noise_multiplier)

    def events(self, noise: Sequence[tuple[float, int]]) -> list[tuple[Event, int]]:
        if len({multiplier for multiplier, _ in noise}) > 1:
            raise SottoError("users who join in different rounds must get the same noise; remove the noise schedule")
        rounds = sum(count for _, count in noise)
        return [(self.event(multiplier), self.participations(rounds)) for multiplier, _ in noise[:1]]

    def expected(self, users: int) -> float:
        return self.cohort


@dataclass(frozen=True)
class InTurn(BoundedParticipation):
    """Users are in one of `groups` groups, about `cohort` in each, and every round asks the next group.

    Guarantee: of `groups` consecutive rounds every user joins exactly one.
    """

    def __post_init__(self) -> None:
        _check_silos(self.silos)
        _check_cohort(self.cohort, self.users, "in turn, no user joins a round twice")

    @property
    def groups(self) -> int:
        """From what is declared: in a store of more or fewer users the groups are larger or smaller."""
        return self.users // self.cohort

    @property
    def min_separation(self) -> int:
        return self.groups

    @property
    def user_rate(self) -> float:
        return 1 / self.groups


@dataclass(frozen=True)
class MinSeparation(BoundedParticipation):
    """Users come at irregular times: never within `min_separation` rounds of their last, and k times at most.

    The rounds of a user are k places on a circle of `span` rounds, turned by chance: k gaps of `min_separation` each,
    and what is left of the circle is shared out among them by chance. With many places the gaps are b and about a
    geometric number, as of users who come at any time once they may.
    Guarantee: k places in `span` rounds for every user, and nobody after them, so the separation and the number hold in
    whatever rounds are played. Every round up to `span` has the same expected cohort.
    """

    min_separation: int  # b
    most_participations: int  # k

    def __post_init__(self) -> None:
        _check_silos(self.silos)
        _check_cohort(self.cohort, self.users, "no user joins a round twice")
        if not 1 <= self.min_separation <= self.users // self.cohort:
            limit = f"{self.users // self.cohort}, the declared users over the cohort: too few users would be free"
            raise SottoError(f"min_separation={self.min_separation} must be from 1 to {limit}")
        if self.most_participations < 1:
            raise SottoError(f"participations={self.most_participations} must be 1 or more: rounds that a user joins")

    @property
    def span(self) -> int:
        """The rounds in which all users join k times each, at the declared cohort."""
        return self.most_participations * self.users // self.cohort

    @property
    def user_rate(self) -> float:
        return self.most_participations / self.span

    def participations(self, rounds: int) -> int:
        return min(self.most_participations, super().participations(rounds))

    def of_population(self, cohort: float, users: int) -> Self:
        """As many rounds: with the separation that this population allows, and the participations that it needs."""
        fits = min(self.min_separation, int(users // cohort))
        needed = math.ceil(self.span * cohort / users)
        return replace(self, cohort=int(cohort), users=users, min_separation=fits, most_participations=needed)


SAMPLERS = Registry[Sampling](
    "privacy.sampling",
    {
        "poisson": Poisson,
        "fixed": FixedSize,
        "in_turn": InTurn,
        "min_separation": MinSeparation,
        "examples": Examples,
    },
)


def _check_silos(silos: int) -> None:
    if silos < 1:
        raise SottoError(f"silos={silos} must be 1 or more: it is how many silos one person may be a user of")


def _check_cohort(cohort: float, users: int, meaning: str) -> None:
    if cohort != int(cohort):
        raise SottoError(f"cohort={cohort:g} must be a whole number, unless every user joins by a coin: 'poisson'")
    if not 0 < cohort <= users:
        raise SottoError(f"cohort={cohort} must be from 1 to the declared users={users}; {meaning}")
