"""From what was released to ε: events, three accountants, the curve ε(rounds), and noise for a target ε.

- **pld**: privacy loss distributions, composed numerically (dp-accounting). Tight. Poisson sampling only.
- **rdp**: Rényi differential privacy (dp-accounting). Fast, somewhat loose, and the only one for cohorts of fixed size.
- **moments**: the accountant of the papers, to reproduce their tables. Loose: ε never falls below ln(1/δ)/32.

An ε is a property of an accountant too: show `accountant_name` beside it.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version

import numpy as np

from sottovoce.errors import SottoError, did_you_mean
from sottovoce.privacy import loss_distribution
from sottovoce.privacy.events import Event, NonPrivate, SampledGaussian, event_from_json

__all__ = [
    "ACCOUNTANTS",
    "Curve",
    "Event",
    "NonPrivate",
    "SampledGaussian",
    "Spent",
    "accountant_name",
    "calibrate",
    "check",
    "default_accountant",
    "epsilon",
    "epsilon_curve",
    "event_from_json",
]

ACCOUNTANTS = ("pld", "rdp", "moments")

_MOMENTS = range(1, 33)  # λ of the papers
_LEAST_DELTA = 1e-40  # below it the numbers a computer can tell apart run out
_HOPELESS = 1e4  # above this ε nothing is protected, and a tight figure is worth no work
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e6  # where `calibrate` looks
_EXACT_ROUNDS = {"pld": 12, "rdp": 1_000, "moments": 5_000}  # a curve has every round up to here
_DIVERGENCE_ROUNDING = 4e-15
_ROUND_UP = 1 + 1e-9  # covers floating point, so that a figure is never below its accountant's bound


Spent = Sequence[tuple[Event, int]]


def default_accountant(sampling: str) -> str:
    return "rdp" if sampling == "fixed" else "pld"


def accountant_name(accountant: str) -> str:
    """As it is shown beside an ε, with the version that gave it: `PLD (dp-accounting 0.6.0)`."""
    _check_accountant(accountant)
    if accountant == "moments":
        return "moments accountant (Abadi et al. 2016, orders 1 to 32)"
    return f"{accountant.upper()} (dp-accounting {version('dp-accounting')})"


def rounded_up(epsilon: float, digits: int = 3) -> str:
    """ε for people to read, never below itself: 4.6209 is `4.63`.

    >>> rounded_up(4.6209), rounded_up(0.00012971), rounded_up(6.0)
    ('4.63', '0.00013', '6')
    """
    if not math.isfinite(epsilon):
        return "∞"
    if epsilon <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - digits + 1)
    shown = math.ceil(epsilon / unit - 1e-6) * unit
    return f"{shown:,.0f}" if shown >= 10 ** (digits - 1) else f"{shown:.{digits}g}"


def check(accountant: str, sampling: str) -> None:
    """Refuses an accountant that has no valid answer for this sampling."""
    _check_accountant(accountant)
    if sampling == "fixed" and accountant != "rdp":
        raise SottoError(
            f"accountant={accountant!r} has no valid accounting for cohorts of fixed size (sampling='fixed'); "
            f"use accountant='rdp', or sampling='poisson'"
        )


def epsilon(spent: Spent, delta: float, accountant: str = "pld") -> float:
    """ε at `delta` of everything in `spent`, pairs of an event and how often it happened.

    Guarantee: an upper bound. Rounds that differ compose exactly, and the order does not matter.
    """
    _check_accountant(accountant)
    _check_delta(delta)
    counts: dict[Event, int] = {}
    for event, count in spent:
        if count < 0:
            raise SottoError(f"an event happened {count} times; counts must be 0 or more")
        if count:
            counts[event] = counts.get(event, 0) + count
    return _epsilon(counts, delta, accountant) if counts else 0.0


@dataclass(frozen=True)
class Curve:
    """ε after t rounds of one event, worked out once. Between the rounds it knows, it answers with the next above."""

    known_rounds: tuple[int, ...]
    epsilons: tuple[float, ...]

    def __call__(self, rounds: int) -> float:
        if not 0 <= rounds <= self.known_rounds[-1]:
            raise SottoError(
                f"round {rounds} is outside this curve of {self.known_rounds[-1]} rounds; make one for more rounds"
            )
        return self.epsilons[bisect_left(self.known_rounds, rounds)] if rounds else 0.0

    @property
    def points(self) -> list[tuple[int, float]]:
        """(round, ε) pairs, for drawing."""
        return list(zip(self.known_rounds, self.epsilons, strict=True))

    def rounds_within(self, epsilon: float) -> int:
        """The most rounds t with curve(t) <= `epsilon`; 0 when even one is too many."""
        known = bisect_right(self.epsilons, epsilon)
        return self.known_rounds[known - 1] if known else 0


def epsilon_curve(event: Event, rounds: int, delta: float, accountant: str = "pld") -> Curve:
    """ε after 1 to `rounds` rounds. At `rounds` it is what `epsilon` answers."""
    _check_accountant(accountant)
    _check_rounds(rounds)
    _check_delta(delta)
    known = _known_rounds(rounds, _EXACT_ROUNDS[accountant])
    if isinstance(event, NonPrivate) or event.noise_multiplier == 0:
        return Curve((rounds,), (math.inf,))
    check(accountant, event.sampling)
    values = _CURVES[accountant](event, known, delta)
    # More rounds never cost less, so where rounding says otherwise the bound for more rounds holds for fewer.
    epsilons = np.minimum.accumulate(values[::-1])[::-1]
    return Curve(tuple(known), tuple(float(value) * _ROUND_UP for value in epsilons))


def calibrate(event: SampledGaussian, rounds: int, epsilon: float, delta: float, accountant: str = "pld") -> float:
    """The smallest noise multiplier, to four digits and rounded up, with which `rounds` of `event` stay within ε.

    Only the sampling of `event` is read. Guarantee: at the answer, ε is at most the target.
    """
    _check_rounds(rounds)
    _check_delta(delta)
    check(accountant, event.sampling)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise SottoError(f"epsilon={epsilon} must be a positive number; it is the privacy budget, often 1 to 10")

    def spent(z: float, by: str = accountant) -> float:
        trial = replace(event, noise_multiplier=z)
        if by == "pld":  # far below the target a rough bound is enough, and a fine one slow
            return _pld_grid({trial: rounds}, delta, enough=epsilon)[1] * _ROUND_UP
        return _epsilon({trial: rounds}, delta, by)

    # RDP is quick and never tighter: it says from where PLD is to look downwards.
    start = _smallest_noise(lambda z: spent(z, "rdp"), epsilon, start=1.0) if accountant == "pld" else None
    found = _smallest_noise(spent, epsilon, start=start or 1.0)
    if found is None:
        raise SottoError(_unreachable(epsilon, spent(_MOST_NOISE), delta, accountant, event.sampling))
    if found <= _LEAST_NOISE:
        raise SottoError(
            f"delta={delta:g} is so large that hardly any noise meets epsilon={epsilon:g} (user_rate "
            f"{event.user_rate:g}, {rounds} rounds): δ then allows to give users away; choose δ well below 1/users"
        )
    return found


def _unreachable(epsilon: float, floor: float, delta: float, accountant: str, sampling: str) -> str:
    why = " (its floor is ln(1/δ)/32)" if accountant == "moments" else ""
    other = "accountant='pld' can" if sampling == "poisson" else "ask for a larger epsilon or delta"
    return (
        f"epsilon={epsilon:g} cannot be reached with accountant={accountant!r}: at delta={delta:g} it never answers "
        f"below {floor:.4g}{why}, however much noise; {other}"
    )


def _smallest_noise(spent: Callable[[float], float], target: float, start: float) -> float | None:
    """The smallest z to four digits with spent(z) <= target; None when no noise is enough.

    A bracket around `start` is closed by false position on logarithms, where ε(z) is nearly straight, with every
    third step a bisection so that a bend cannot stall it.
    """

    def excess(z: float) -> float:
        value = spent(z)
        return 50.0 if value == math.inf else math.log(max(value, target * 1e-3) / target)

    low = high = start
    at_low = at_high = excess(start)
    step = 1.1
    while at_high > 0:
        low, at_low = high, at_high
        if high >= _MOST_NOISE:
            return None
        high = min(high * step, _MOST_NOISE)
        at_high, step = excess(high), step**2
    while at_low <= 0:
        high, at_high = low, at_low
        if low <= _LEAST_NOISE:
            return _LEAST_NOISE
        low = max(low / step, _LEAST_NOISE)
        at_low, step = excess(low), step**2
    for turn in range(60):
        if high / low < 1 + 1e-4:
            break
        share = 0.5 if turn % 3 == 2 else at_low / (at_low - at_high)
        # A little towards the middle, so that the bracket closes from both sides.
        share = 0.96 * share + 0.02
        middle = low * (high / low) ** share
        at_middle = excess(middle)
        if at_middle > 0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    rounded = _up_to_four_digits(high)
    while spent(rounded) > target:  # ε is only monotone up to the grid's accuracy
        rounded = _up_to_four_digits(rounded * (1 + 1e-4))
    return rounded


def _up_to_four_digits(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.4g}")


def _known_rounds(rounds: int, exact: int) -> list[int]:
    """Every round up to `exact`; beyond, some evenly on a logarithmic axis and some at about equal steps of ε."""
    known = {rounds, *range(1, min(rounds, exact) + 1)}
    if rounds > exact:
        known |= {round(t) for t in np.geomspace(exact, rounds, 20)}
        known |= {round(t) for t in rounds * np.linspace(0, 1, 33)[1:] ** 2 if t > exact}
    return sorted(known)


def _epsilon(counts: Mapping[Event, int], delta: float, accountant: str) -> float:
    gaussian = {event: count for event, count in counts.items() if isinstance(event, SampledGaussian)}
    if len({event.relation for event in gaussian}) > 1:
        raise SottoError(
            "rounds with sampling='poisson' (add or remove one user) and with sampling='fixed' (replace one user) have "
            "no common ε; account for each group apart"
        )
    for event in gaussian:
        check(accountant, event.sampling)
    if len(gaussian) < len(counts) or any(event.noise_multiplier == 0 for event in gaussian):
        return math.inf
    answer = {"pld": _pld, "rdp": _rdp, "moments": _moments}[accountant](gaussian, delta)
    return max(0.0, float(answer)) * _ROUND_UP


def _pld(counts: Mapping[SampledGaussian, int], delta: float) -> float:
    return _pld_grid(counts, delta)[1]


def _pld_grid(
    counts: Mapping[SampledGaussian, int], delta: float, enough: float = 0.0
) -> tuple[loss_distribution.Grid | None, float]:
    """The grid of losses that suits these rounds, and ε on it. No grid where RDP's bound has to stand in for it."""
    bound = _rdp(counts, delta)
    if not 0 < bound < _HOPELESS:
        return None, bound
    rounds = [(_rate(event), event.noise_multiplier, count) for event, count in counts.items()]
    try:
        grid, answer = loss_distribution.find_grid(rounds, delta, bound, enough)
    except loss_distribution.DriftError:
        return None, bound
    return grid, min(answer, bound)


def _pld_curve(event: SampledGaussian, known: list[int], delta: float) -> list[float]:
    # ε grows about like √rounds, so the grid that suits the last round suits every one.
    grid, last = _pld_grid({event: known[-1]}, delta)
    if grid is None:
        return _rdp_curve(event, known, delta)
    q, z = _rate(event), event.noise_multiplier
    return [loss_distribution.read_epsilon([(q, z, t)], delta, grid) for t in known[:-1]] + [last]


def _rdp_curve(event: SampledGaussian, known: list[int], delta: float) -> list[float]:
    return [_rdp({event: t}, delta) for t in known]


def _moments_curve(event: SampledGaussian, known: list[int], delta: float) -> list[float]:
    return [_moments({event: t}, delta) for t in known]


_CURVES = {"pld": _pld_curve, "rdp": _rdp_curve, "moments": _moments_curve}


def _rdp(counts: Mapping[SampledGaussian, int], delta: float) -> float:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    divergences = np.sum([count * _divergences(event) for event, count in counts.items()], axis=0)
    return rdp.compute_epsilon(rdp.DEFAULT_RDP_ORDERS, divergences.tolist(), delta)[0]


@lru_cache(maxsize=256)
def _divergences(event: SampledGaussian) -> np.ndarray:
    """One round's Rényi divergence at each of dp-accounting's orders."""
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    z, relation = event.noise_multiplier, dp_accounting.NeighboringRelation
    if event.sampling == "poisson":
        charge = dp_accounting.PoissonSampledDpEvent(event.user_rate, dp_accounting.GaussianDpEvent(z))
        accountant = rdp.RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE)
    else:
        # Replacing a user moves a clipped sum twice as far as adding one. dp-accounting 0.6 does not double the
        # sensitivity here, although its PLD accountant does (google/differential-privacy#378): without z/2 the figure
        # would be 4.02 where 23.3 is true. `test_upstream_convention` turns red when that changes.
        assert event.users is not None
        assert event.cohort is not None
        charge = dp_accounting.SampledWithoutReplacementDpEvent(
            event.users, event.cohort, dp_accounting.GaussianDpEvent(z / 2)
        )
        accountant = rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
    # It warns of every order that did not converge, and leaves that order out: sound, and nothing to act on.
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        divergences = accountant.compose(charge).rdp
    finally:
        log.setLevel(level)
    # Divergences near 0 are lost in rounding (about 1e-15), and for one that comes out negative dp-accounting answers
    # ε = 0. So they are rounded up.
    return np.maximum(divergences, 0.0) + _DIVERGENCE_ROUNDING


def _moments(counts: Mapping[SampledGaussian, int], delta: float) -> float:
    """ε = min over λ of (Σ α(λ) + ln(1/δ)) / λ, as published."""
    return min(
        (sum(count * _moment(event, order) for event, count in counts.items()) - math.log(delta)) / order
        for order in _MOMENTS
    )


@lru_cache(maxsize=4096)
def _moment(event: SampledGaussian, order: int) -> float:
    """α(λ) = ln Σ_i C(λ+1, i) q^i (1-q)^(λ+1-i) e^(i(i-1)/2z²), summed on a logarithmic scale."""
    n, q, z = order + 1, event.user_rate, event.noise_multiplier
    if q == 1:
        return n * (n - 1) / (2 * z**2)
    terms = [
        math.log(math.comb(n, i)) + i * math.log(q) + (n - i) * math.log1p(-q) + i * (i - 1) / (2 * z**2)
        for i in range(n + 1)
    ]
    return max(0.0, float(np.logaddexp.reduce(terms)))


def _check_accountant(accountant: str) -> None:
    if accountant not in ACCOUNTANTS:
        raise SottoError(
            f"accountant={accountant!r} must be one of {', '.join(ACCOUNTANTS)}"
            + did_you_mean(str(accountant), ACCOUNTANTS)
        )


def _check_delta(delta: float) -> None:
    if not _LEAST_DELTA <= delta < 1:
        raise SottoError(
            f"delta={delta} must be in (0, 1), and at least {_LEAST_DELTA:g}; it is the chance that the guarantee "
            f"fails: take well below 1/users"
        )


def _rate(event: SampledGaussian) -> float:
    """A rate next to 1 counts as 1, which is worse: the masses of a user who is hardly ever left out underflow."""
    return 1.0 if event.user_rate > 1 - 1e-9 else event.user_rate


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise SottoError(f"rounds={rounds} must be 1 or more")
