"""Everything that was released, as one composition: what `accounting` asks its accountants.

Guarantee: every ε is an upper bound, rounds that differ compose exactly, and their order does not matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sottovoce.accounting import pld
from sottovoce.accounting.events import ADDED, REPLACED, Event, SampledGaussian
from sottovoce.accounting.moments import QUICK_ORDERS, moments_epsilon
from sottovoce.accounting.pld import Grid, Round
from sottovoce.accounting.rdp import renyi_epsilon
from sottovoce.errors import SettingError, SottoError, did_you_mean

ACCOUNTANTS = ("pld", "rdp", "moments")
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

    rounds: Mapping[SampledGaussian, int]
    replaced: bool = False
    """Is a user replaced, rather than added or removed?"""
    shown: float = 0.0
    """Σ δ_h"""
    unlikely: float = 0.0
    """-Σ ln(1-δ_h)"""

    def epsilon(self, delta: float, accountant: str) -> float:
        return self._finish(_EPSILON[accountant](self, self.left(delta)) if self.rounds else 0.0)

    def near(self, target: float, delta: float) -> float:
        """ε by PLD on a grid that suits answers near the target."""
        kinds, left = _kinds(self), self.left(delta)
        if _too_many(kinds):
            return self.epsilon(delta, "rdp")
        grid = pld.grid_for(kinds, left, target)
        try:
            return self._finish(pld.read_epsilon(kinds, left, grid))
        except pld.DriftError:
            return self.epsilon(delta, "rdp")

    def guess(self, delta: float) -> float:
        """About ε, at once: moments of whole orders, more of them than the papers have. No bound."""
        return self._finish(moments_epsilon(self.rounds, self.left(delta), QUICK_ORDERS))

    def on_grid(self, delta: float) -> tuple[Grid | None, float]:
        """ε by PLD, and the grid of losses it was read on; none where RDP's bound has to stand in for it."""
        grid, answer = _pld_grid(self, self.left(delta))
        return grid, self._finish(answer)

    def epsilon_on(self, grid: Grid, delta: float) -> float:
        return self._finish(pld.read_epsilon(_kinds(self), self.left(delta), grid))

    def left(self, delta: float) -> float:
        if delta <= self.shown:
            raise SettingError(
                f"{{delta:g}} must be above {self.shown:.3g}, the chance that the histograms among the charges "
                f"show a name of one user alone: no ε holds below it. Ask at a larger δ",
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
    """None when something was released without protection: then no ε holds.

    `replaced`: for one user replaced, whatever the relation of these events.
    """
    for event in counts:
        if not isinstance(event, Event):
            raise SottoError(f"event {event!r} is of no kind that an accountant can charge")
    relation = relation_of(counts)
    replaced = replaced or relation == REPLACED
    check(accountant, REPLACED if replaced else ADDED)
    if counts and relation is None:
        return None
    rounds: dict[SampledGaussian, int] = {}
    # Histograms come last: the order of a sum decides its last bit.
    for event, count in sorted(counts.items(), key=lambda pair: pair[0].giveaway > 0):
        for gaussian in event.gaussians():
            rounds[gaussian] = rounds.get(gaussian, 0) + count
    return Composition(
        rounds,
        replaced,
        sum(count * event.giveaway for event, count in counts.items()),
        sum(-count * math.log1p(-event.giveaway) for event, count in counts.items()),
    )


def relation_of(events: Iterable[Event]) -> str | None:
    """Which two populations an ε of all these events makes indistinguishable; None where no ε is finite.

    That of every round, or, where they differ, one user replaced: for that every round has a bound. A histogram is
    charged as the rounds that it is composed with.
    """
    found = set()
    for event in events:
        if event.noise_multiplier == 0:
            return None
        found.add(event.relation)
    return REPLACED if REPLACED in found else next(iter(found), None)


def _pld(made: Composition, delta: float) -> float:
    return _pld_grid(made, delta)[1]


def _rdp(made: Composition, delta: float) -> float:
    return renyi_epsilon(made.rounds, delta, made.replaced)


def _moments(made: Composition, delta: float) -> float:
    return moments_epsilon(made.rounds, delta)


def _pld_grid(made: Composition, delta: float) -> tuple[Grid | None, float]:
    """The grid of losses that suits these rounds, and ε on it. No grid where RDP's bound has to stand in for it."""
    if not made.rounds:
        return None, 0.0
    bound, kinds = _rdp(made, delta), _kinds(made)
    if not 0 < bound < _HOPELESS or _too_many(kinds):
        return None, bound
    try:
        grid, answer = pld.find_grid(kinds, delta, bound)
    except pld.DriftError:
        return None, bound
    return grid, min(answer, bound)


def _too_many(kinds: Sequence[tuple[Round, int]]) -> bool:
    return sum(count for _, count in kinds) > _MOST_COMPOSED


def _kinds(made: Composition) -> list[tuple[Round, int]]:
    """Rounds for the loss distributions. Those that everyone joins are together one Gaussian, of noise (Σ z⁻²)^-½."""
    kinds: Counter[Round] = Counter()
    everyone = 0.0
    for event, count in made.rounds.items():
        z, rate = event.noise_multiplier, event.user_rate
        if rate > 1 - 1e-9:  # counts as 1, which is worse: hardly ever being left out underflows
            everyone += count / (z / 2 if made.replaced else z) ** 2  # replacing moves a sum twice as far
        elif event.sampling == "fixed":
            kinds[Round(rate, z / 2, pld.EXCHANGED)] += count
        else:
            kinds[Round(rate, z, pld.REPLACED if made.replaced else pld.REMOVED)] += count
    if everyone:
        kinds[Round(1.0, everyone**-0.5)] += 1
    return sorted(kinds.items())  # so that the order of events does not matter to the last bit


_EPSILON = {"pld": _pld, "rdp": _rdp, "moments": _moments}


def check(accountant: str, relation: str) -> None:
    """Refuses an accountant that has no valid answer under this relation."""
    check_accountant(accountant)
    if relation == REPLACED and accountant == "moments":
        raise SettingError(
            "{accountant!r} has no valid accounting for cohorts of fixed size (sampling='fixed'), nor for "
            "replacing a user; use accountant='pld' or 'rdp', or sampling='poisson'",
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
            f"{{delta}} must be in (0, 1), and at least {_LEAST_DELTA:g}; it is the chance that the guarantee "
            f"fails: take well below 1/users",
            delta=delta,
        )
