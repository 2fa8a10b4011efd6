"""How much noise keeps planned rounds within an ε: the inverse of the accountants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from sottovoce_evidence.accounting.composition import (
    Composition,
    Spent,
    check,
    check_delta,
    composition_of,
    counted,
)
from sottovoce_evidence.errors import SettingError, SottoError

_LEAST_NOISE, _MOST_NOISE = 0.05, 1e6  # where the smallest noise multiplier is looked for
LEAST_EPSILON = 1e-3  # below it the search would take minutes, for noise that no model survives


def calibrate(spent: Spent, epsilon: float, delta: float, accountant: str = "pld", before: Spent = ()) -> float:
    """The smallest factor, to four digits and rounded up, that keeps `spent` within ε.

    The noise multipliers of the rounds in `spent` are relative: the factor multiplies them all. With rounds of noise
    multiplier 1.0 it is the noise multiplier. What is in `before`, and histograms, count as they are.
    Guarantee: at the answer, `epsilon` of all charges is at most the target.
    """
    check_delta(delta)
    if not LEAST_EPSILON <= epsilon < math.inf:
        raise SettingError(f"{{epsilon:g}} must be {LEAST_EPSILON:g} or more, often 1 to 10", epsilon=epsilon)
    rounds: dict[Any, int] = {event: n for event, n in counted(spent).items() if event.scalable}  # dataclasses
    as_they_are = [*before, *(pair for pair in spent if not pair[0].scalable)]
    check(accountant, rounds)
    least = min((event.noise_multiplier for event in rounds), default=0.0)
    if not least:
        raise SottoError("calibrate needs one round or more (rounds=0?), each with a relative noise multiplier above 0")
    made = composition_of(counted(as_they_are), accountant)
    if (paid := math.inf if made is None else made.epsilon(delta, accountant)) >= epsilon:
        text = "{epsilon:g} cannot be reached: what is charged before the rounds has ε = {:.4g} at {delta:g}"
        raise SettingError(f"{text}; raise epsilon", paid, epsilon=epsilon, delta=delta)

    def trial(factor: float) -> Composition:
        noised = [(replace(event, noise_multiplier=factor * event.noise_multiplier), n) for event, n in rounds.items()]
        made = composition_of(counted([*noised, *as_they_are]), accountant)
        assert made is not None  # `made` has no release without protection
        return made

    def exact(factor: float) -> float:
        return trial(factor).epsilon(delta, accountant)

    def nearly(factor: float) -> float:
        made = trial(factor)
        return made.near(epsilon, delta) if accountant == "pld" else made.epsilon(delta, accountant)

    limits = (_LEAST_NOISE / least, _MOST_NOISE / least)
    found = _smallest(nearly, epsilon, 1 / least, limits)
    if found is None:
        text = (
            "{epsilon:g} cannot be reached with {accountant!r}: at {delta:g} it never answers below {:.4g}; ask for a "
            "larger {epsilon.name} or {delta.name}, or for accountant='pld'"
        )
        raise SettingError(text, exact(limits[1]), epsilon=epsilon, accountant=accountant, delta=delta)
    if found <= limits[0]:
        text = "{epsilon:g} at {delta:g} is too large: hardly any noise meets it, and nobody is protected"
        raise SettingError(f"{text}; ε is often 1 to 10, and δ well below 1/users", epsilon=epsilon, delta=delta)
    found, more = _up_to_four_digits(found), 1e-4
    while exact(found) > epsilon:  # the search was on a grid of its own, and its bracket has a width
        found, more = _up_to_four_digits(found * (1 + more)), 2 * more
    return found


def _smallest(
    at: Callable[[float], float],
    target: float,
    start: float,
    limits: tuple[float, float],
    step: float = 1.1,
    close: float = 1e-4,
) -> float | None:
    """A factor with at(factor) <= target, above the smallest by a share of `close` at most.

    None when the upper limit is not enough, and the lower limit where that is. The search is on logarithms, where ε is
    nearly straight: a bracket around `start`, which Brent's method closes.
    """
    from scipy.optimize import brentq

    lowest, highest = map(math.log, limits)

    @cache  # a figure may take seconds
    def excess(place: float) -> float:
        value = at(math.exp(place))
        return 50.0 if value == math.inf else math.log(max(value, target * 1e-3) / target)

    low = high = math.log(start)
    stride = math.log(step)
    while excess(high) > 0:
        if high >= highest:
            return None
        low, high, stride = high, min(high + stride, highest), 2 * stride
    while excess(low) <= 0:
        if low <= lowest:
            return limits[0]
        low, high, stride = max(low - stride, lowest), low, 2 * stride
    found: Any = brentq(excess, low, high, xtol=close / 2)  # its types say a pair, which it gives when asked to
    return math.exp(found + close / 2)


def _up_to_four_digits(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.4g}")
