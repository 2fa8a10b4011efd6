"""Everything that was released, as one composition: what `accounting` asks its accountants.

Guarantee: every ε is an upper bound, rounds that differ compose exactly, and their order does not matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sottovoce_evidence.accounting import pld
from sottovoce_evidence.accounting.events import (
    ACCOUNTANTS,
    REPLACED,
    BestOfRuns,
    Event,
    Sampled,
    SampledExamples,
    SampledGaussian,
)
from sottovoce_evidence.accounting.gaussian import gaussian_epsilon
from sottovoce_evidence.accounting.moments import moments_epsilon
from sottovoce_evidence.accounting.pld import Grid, Round
from sottovoce_evidence.accounting.rdp import renyi_epsilon
from sottovoce_evidence.errors import SettingError, SottoError, did_you_mean

DEFAULT_ACCOUNTANT = "pld"  # never looser than the others, whatever the sampling
Spent = Sequence[tuple[Event, int]]

_LEAST_DELTA = 1e-40  # below it the numbers a computer can tell apart run out
_HOPELESS = 1e4  # above this ε nothing is protected, and a tight figure is worth no work
_MOST_COMPOSED = 10**6  # rounds; of more, one figure takes seconds to minutes, and RDP's is some percent above it
MOST_ROUNDS = 10**18
_ROUND_UP, _ROUND_OFF = 1 + 1e-9, 1e-14  # cover floating point, so that a figure is never below its accountant's bound


@dataclass(frozen=True)
class Composition:
    """Rounds under one relation, and the chances that a histogram gave a name away.

    A histogram over all users is a Gaussian round that everyone joins, plus a name that one user alone brought in,
    shown with a chance of at most δ_h, on its own noise. If it is shown, all is given away; if not, the other
    population, which has nothing to show, is more likely by at most 1/(1-δ_h). So ε(δ) is that of the Gaussians at
    δ - Σ δ_h, and -Σ ln(1-δ_h) more. Replacing a user puts such names on either side and changes neither term.
    """

    rounds: Mapping[Sampled, int]
    replaced: bool = False  # is a user replaced, rather than added or removed?
    shown: float = 0.0  # Σ δ_h
    unlikely: float = 0.0  # -Σ ln(1-δ_h)
    chosen: Mapping[BestOfRuns, int] = field(default_factory=dict)  # by RDP alone

    def epsilon(self, delta: float, accountant: str) -> float:
        if accountant == "pld":
            return self.on_grid(delta)[1]
        if not self.rounds and not self.chosen:
            return self._finish(0.0)
        if accountant == "rdp":
            return self.by_rdp(delta)
        return self._finish(moments_epsilon(self._of_users, self.left(delta)))

    def by_rdp(self, delta: float) -> float:
        """ε by RDP, which has no answer where examples are sampled: then it is infinite."""
        return self._finish(self._renyi(self.left(delta)))

    def _renyi(self, delta: float) -> float:
        if self._of_examples:
            return math.inf
        return renyi_epsilon({**self._of_users, **self.chosen}, delta, self.replaced)

    @property
    def _of_users(self) -> dict[SampledGaussian, int]:
        """Rounds in which users are sampled, not examples."""
        return {event: count for event, count in self.rounds.items() if isinstance(event, SampledGaussian)}

    @property
    def _of_examples(self) -> bool:
        return any(isinstance(event, SampledExamples) for event in self.rounds)

    @property
    def gaussian(self) -> float | None:
        """The noise multiplier of the one Gaussian that all rounds are together, where everyone joins all of them."""
        kinds = _kinds(self)
        return kinds[0][0].noise_multiplier if [kind.user_rate for kind, _ in kinds] == [1.0] else None

    def near(self, target: float, delta: float) -> float:
        """ε by PLD on a grid that suits answers near the target."""
        kinds, left = _kinds(self), self.left(delta)
        if self.gaussian:
            return self.epsilon(delta, "pld")
        if not _too_many(kinds):
            with suppress(pld.DriftError):
                return self._finish(pld.read_epsilon(kinds, left, pld.grid_for(kinds, left, target)))
        return self.by_rdp(delta)

    def on_grid(self, delta: float) -> tuple[Grid | None, float]:
        """ε by PLD, and the grid of losses it was read on; no grid where it is exact, or RDP's bound."""
        if not self.rounds:
            return None, self._finish(0.0)
        if self.gaussian:
            return None, self._finish(gaussian_epsilon(self.gaussian, self.left(delta)))
        left, kinds = self.left(delta), _kinds(self)
        bound, grid = self._renyi(left), None
        answer = bound
        if (0 < bound < _HOPELESS or self._of_examples) and not _too_many(kinds):
            with suppress(pld.DriftError):
                grid, answer = pld.find_grid(kinds, left, min(bound, _HOPELESS))
        return grid, self._finish(min(answer, bound))

    def epsilon_on(self, grid: Grid, delta: float) -> float:
        return self._finish(pld.read_epsilon(_kinds(self), self.left(delta), grid))

    def left(self, delta: float) -> float:
        if delta <= self.shown:
            raise SettingError(
                f"{{delta:g}} must be above {self.shown:.3g}, the chance that histograms show a name of one user alone",
                delta=delta,
            )
        return delta - self.shown

    def _finish(self, answer: float) -> float:
        return (max(0.0, float(answer)) + (_ROUND_OFF if self.rounds else 0.0) + self.unlikely) * _ROUND_UP


def counted(spent: Iterable[tuple[Event, int]]) -> dict[Event, int]:
    """Equal events added up; what happened 0 times left out."""
    counts: dict[Event, int] = {}
    for event, count in spent:
        if not 0 <= count <= MOST_ROUNDS:
            raise SottoError(f"an event happened {count:.4g} times; counts must be in [0, {MOST_ROUNDS:g}]")
        if count:
            counts[event] = counts.get(event, 0) + count
    return counts


def composition_of(counts: Mapping[Event, int], accountant: str, replaced: bool = False) -> Composition | None:
    """The composition of these events, for one user `replaced` if asked. None when one was without protection."""
    for event in counts:
        if not isinstance(event, Event):
            raise SottoError(f"event {event!r} is of no kind that an accountant can charge")
    relation = relation_of(counts)
    replaced = replaced or relation == REPLACED
    check(accountant, counts, replaced)
    if counts and relation is None:
        return None
    mixtures = any(isinstance(event, SampledExamples) for event in counts)
    if mixtures and (total := sum(counts.values())) > _MOST_COMPOSED:
        raise SottoError(
            f"{total:.4g} rounds of sampled examples or silos are too many for an ε; the most is {_MOST_COMPOSED:,}"
        )
    rounds: dict[Sampled, int] = {}
    # Histograms come last: the order of a sum decides its last bit.
    for event, count in sorted(counts.items(), key=lambda pair: pair[0].giveaway > 0):
        for gaussian in event.gaussians():
            rounds[gaussian] = rounds.get(gaussian, 0) + count
    return Composition(
        rounds,
        replaced,
        sum(count * event.giveaway for event, count in counts.items()),
        sum(-count * math.log1p(-event.giveaway) for event, count in counts.items()),
        chosen={event: count for event, count in counts.items() if isinstance(event, BestOfRuns)},
    )


def total_of(charges: Iterable[tuple[Event, int]]) -> Counter[Event]:
    """How often each event was charged."""
    total: Counter[Event] = Counter()
    for event, count in charges:
        total[event] += count
    return total


def relation_of(events: Iterable[Event]) -> str | None:
    """Which two populations an ε of all these events makes indistinguishable; None where no ε is finite.

    Where they differ, it is one user replaced: for that every event has a bound.
    """
    found = set()
    for event in events:
        if event.noise_multiplier == 0:
            return None
        found.add(event.relation)
    return REPLACED if REPLACED in found else next(iter(found), None)


def _too_many(kinds: Sequence[tuple[Round, int]]) -> bool:
    return sum(count for _, count in kinds) > _MOST_COMPOSED


def _kinds(made: Composition) -> list[tuple[Round, int]]:
    """Rounds for the loss distributions. Those that everyone joins are together one Gaussian, of noise (Σ z⁻²)^-½."""
    kinds: Counter[Round] = Counter()
    everyone = 0.0
    for event, count in made.rounds.items():
        z = event.noise_multiplier
        examples = event.examples_per_user if isinstance(event, SampledExamples) else 1
        rate = event.example_rate if isinstance(event, SampledExamples) else event.user_rate
        if rate > 1 - 1e-9:  # counts as 1, which is worse: hardly ever being left out underflows
            everyone += count * examples**2 / (z / 2 if made.replaced else z) ** 2  # replacing moves twice as far
        elif isinstance(event, SampledExamples):
            kinds[Round(rate, z, pld.REPLACED if made.replaced else pld.REMOVED, examples)] += count
        elif event.sampling == "fixed":
            kinds[Round(rate, z / 2, pld.EXCHANGED)] += count
        else:
            kinds[Round(rate, z, pld.REPLACED if made.replaced else pld.REMOVED)] += count
    if everyone:
        kinds[Round(1.0, everyone**-0.5)] += 1
    return sorted(kinds.items())  # so that the order of events does not matter to the last bit


def check(accountant: str, events: Collection[Event], replaced: bool = False) -> None:
    """Refuses an accountant that has no valid answer for these events, or for one user replaced."""
    check_accountant(accountant)
    for event in events:
        if accountant not in event.accountants:
            raise SettingError(
                f"{{accountant!r}} has no accounting for {event.kind.replace('-', ' ')}; use accountant="
                f"{' or '.join(map(repr, event.accountants))}",
                accountant=accountant,
            )
    if accountant == "moments" and (replaced or relation_of(events) == REPLACED):
        raise SettingError(
            "{accountant!r} has no valid accounting for cohorts of fixed size, nor for replacing a user; use "
            "accountant='pld' or 'rdp', or sampling='poisson'",
            accountant=accountant,
        )


def check_accountant(accountant: str) -> None:
    if accountant not in ACCOUNTANTS:
        raise SettingError(
            f"{{accountant!r}} must be one of {', '.join(ACCOUNTANTS)}" + did_you_mean(str(accountant), ACCOUNTANTS),
            accountant=accountant,
        )


def check_delta(delta: float) -> None:
    if not _LEAST_DELTA <= delta < 1:
        raise SettingError(
            f"{{delta}} must be in (0, 1), and at least {_LEAST_DELTA:g}; take well below 1/users",
            delta=delta,
        )
