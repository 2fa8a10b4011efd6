"""From what was released to ε: events, three accountants, the curve ε(rounds), and noise for a target ε.

- **pld**: privacy loss distributions, composed numerically and read by dp-accounting. Tight for Poisson sampling; for
  cohorts of fixed size the tightest bound that is proved (docs/explanation/guarantees.md).
- **rdp**: Rényi differential privacy (dp-accounting). Fast, somewhat loose.
- **moments**: the accountant of the papers, to reproduce their tables. Loose: ε never falls below ln(1/δ)/32. Poisson
  sampling only.

An ε is a property of an accountant too: show `accountant_name` with it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate

import numpy as np

from sottovoce_evidence.accounting.composition import (
    DEFAULT_ACCOUNTANT,
    Composition,
    Spent,
    check,
    check_accountant,
    check_delta,
    composition_of,
    counted,
    relation_of,
    total_of,
)
from sottovoce_evidence.accounting.events import (
    ACCOUNTANTS,
    REPLACED,
    BestOfRuns,
    CorrelatedGaussian,
    Covered,
    Event,
    GaussianRelease,
    NonPrivate,
    SampledExamples,
    SampledGaussian,
)
from sottovoce_evidence.errors import SettingError, SottoError

__all__ = [
    "ACCOUNTANTS",
    "DEFAULT_ACCOUNTANT",
    "BestOfRuns",
    "CorrelatedGaussian",
    "Covered",
    "Curve",
    "Event",
    "GaussianRelease",
    "NonPrivate",
    "SampledExamples",
    "SampledGaussian",
    "Spent",
    "accountant_name",
    "check",
    "epsilon",
    "epsilon_curve",
    "epsilons",
    "relation_of",
    "rounded_down",
    "rounded_up",
    "total_of",
]

_EXACT_ROUNDS = {"pld": 20, "rdp": 1_000, "moments": 5_000}  # a curve has every round up to here


def accountant_name(accountant: str, software: Mapping[str, str] | None = None) -> str:
    """As it is shown with an ε, with the versions that gave it: `RDP (dp-accounting 0.6.0)`. They are those installed,
    if no others are given.
    """
    check_accountant(accountant)
    if accountant == "moments":
        return "moments accountant (Abadi et al. 2016, orders 1 to 32)"
    of = version if software is None else lambda name: software.get(name, "of an unknown version")
    library = f"dp-accounting {of('dp-accounting')}"
    # PLD is composed here and read off by the library.
    return f"PLD (sottovoce {of('sottovoce-evidence')}, {library})" if accountant == "pld" else f"RDP ({library})"


def rounded_up(epsilon: float, digits: int = 3) -> str:
    """ε for people to read, never below itself: 4.6209 is `4.63`.

    The same three digits in the prose, tables and figures of a run, so that one ε has one figure. Its files have all.
    More digits are for what is compared: a budget, and an ε that is claimed against one that is computed.

    >>> rounded_up(4.6209), rounded_up(0.00012971), rounded_up(6.0)
    ('4.63', '0.00013', '6')
    """
    return _rounded(epsilon, digits, lambda units: math.ceil(units - 1e-6))


def rounded_down(epsilon: float, digits: int = 3) -> str:
    """A lower bound of ε for people to read, never above itself.

    >>> rounded_down(4.6291), rounded_down(6.0)
    ('4.62', '6')
    """
    return _rounded(epsilon, digits, lambda units: math.floor(units + 1e-6))


def _rounded(epsilon: float, digits: int, whole: Callable[[float], int]) -> str:
    if not math.isfinite(epsilon):
        return "∞"
    if epsilon <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - digits + 1)
    shown = whole(epsilon / unit) * unit
    return f"{shown:,.0f}" if shown >= 10 ** (digits - 1) else f"{shown:.{digits}g}"


def epsilon(spent: Spent, delta: float, accountant: str = "pld", *, replaced: bool = False) -> float:
    """ε at `delta` of everything in `spent`, pairs of an event and how often it happened.

    It is for the relation that `relation_of` gives, or, if asked, for one user `replaced`.
    Guarantee: an upper bound. Rounds that differ compose exactly, and the order does not matter.
    """
    (answer,) = epsilons(spent, [delta], accountant, replaced=replaced)
    return answer


def epsilons(spent: Spent, deltas: Sequence[float], accountant: str = "pld", *, replaced: bool = False) -> list[float]:
    """ε at each δ of everything in `spent`: each holds, and so do all at once."""
    check_accountant(accountant)
    for delta in deltas:
        check_delta(delta)
    made = composition_of(counted(spent), accountant, replaced)
    return [math.inf if made is None else made.epsilon(delta, accountant) for delta in deltas]


@dataclass(frozen=True)
class Curve:
    """ε after t planned rounds, worked out once. Between the rounds it knows, it answers with the next above."""

    known_rounds: tuple[int, ...]
    epsilons: tuple[float, ...]
    before: float = 0.0  # ε of what was charged before the first round

    def __call__(self, rounds: int) -> float:
        if not 0 <= rounds <= self.known_rounds[-1]:
            raise SottoError(f"round {rounds} is outside this curve of {self.known_rounds[-1]} rounds")
        return self.epsilons[bisect_left(self.known_rounds, rounds)] if rounds else self.before

    @property
    def points(self) -> list[tuple[int, float]]:
        """(round, ε) pairs, for drawing."""
        return list(zip(self.known_rounds, self.epsilons, strict=True))


def epsilon_curve(spent: Spent, delta: float, accountant: str = "pld", before: Spent = ()) -> Curve:
    """ε after each of the rounds planned in `spent`, in their order, with what is charged `before` them counted in.

    At the last round it is what `epsilon` answers.
    """
    check_accountant(accountant)
    check_delta(delta)
    rounds = sum(counted(spent).values())
    if rounds < 1:
        raise SettingError("{rounds} must be 1 or more", rounds=rounds)
    known = _known_rounds([count for _, count in spent], _EXACT_ROUNDS[accountant])
    # One relation for all rounds, also for those before the first that needs it.
    replaced = relation_of(counted([*before, *spent])) == REPLACED
    stages = [composition_of(counted([*before, *_first(spent, t)]), accountant, replaced) for t in known]
    first = epsilon(before, delta, accountant, replaced=replaced)
    finite = [stage for stage in stages if stage is not None]
    values = _values(finite, delta, accountant) + [math.inf] * (len(stages) - len(finite))
    # More rounds never cost less: a smaller bound for more rounds holds for fewer too.
    epsilons = np.minimum.accumulate(values[::-1])[::-1]
    return Curve(tuple(known), tuple(float(value) for value in epsilons), min(first, float(epsilons[0])))


def _values(stages: Sequence[Composition], delta: float, accountant: str) -> list[float]:
    """ε after each stage. By PLD all are on the grid of the last: ε grows about like √rounds, so it suits them."""
    if accountant != "pld" or not stages or all(stage.gaussian or not stage.rounds for stage in stages):
        return [stage.epsilon(delta, accountant) for stage in stages]
    grid, last = stages[-1].on_grid(delta)
    if grid is None:
        return [stage.by_rdp(delta) for stage in stages[:-1]] + [last]
    return [stage.epsilon_on(grid, delta) for stage in stages[:-1]] + [last]


def _first(spent: Spent, rounds: int) -> Spent:
    """What the first `rounds` of these rounds spend."""
    taken = []
    for event, count in spent:
        taken.append((event, min(count, rounds)))
        rounds -= taken[-1][1]
    return taken


def _known_rounds(counts: Sequence[int], exact: int) -> list[int]:
    """Every round up to `exact`; beyond, some evenly on a logarithmic axis and some at about equal steps of ε.

    So are the last rounds before a change, unless there are many.
    """
    rounds = sum(counts)
    known = {rounds, *range(1, min(rounds, exact) + 1)}
    if len(counts) <= 20:
        known |= set(accumulate(counts)) - {0}
    if rounds > exact:
        known |= {round(t) for t in np.geomspace(exact, rounds, 20)}
        known |= {round(t) for t in rounds * np.linspace(0, 1, 33)[1:] ** 2 if t > exact}
    return sorted(known)
