"""The best of a random, secret number of private runs: what choosing costs, by Rényi divergence.

Papernot and Steinke (2022), Theorems 2 and 6, which refine Liu and Talwar (2019). A run is drawn anew every time, with
its settings; each has a score, which is computed from what the run released; only the best is looked at.
"""

from __future__ import annotations

import math
import secrets as os_entropy
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sottovoce_evidence.errors import SettingError, did_you_mean

# Shapes of the truncated negative binomial distribution; that of Poisson is its limit, and may be 0 runs.
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
MOST_RUNS = 10_000  # expected
_DRAWN_BITS = 53  # as many as a float has


def check(expected_runs: float, distribution: str) -> None:
    if distribution not in SHAPES:
        known = f"{', '.join(SHAPES)}{did_you_mean(str(distribution), SHAPES)}"
        raise SettingError(f"{{distribution!r}} must be one of {known}", distribution=distribution)
    if not 1 < expected_runs <= MOST_RUNS:
        text = f"{{expected_runs:g}} must be above 1 and at most {MOST_RUNS}: how many runs there are on average"
        raise SettingError(text, expected_runs=expected_runs)


def best_of(orders: Sequence[float], one: np.ndarray, expected_runs: float, distribution: str) -> np.ndarray:
    """The divergence of the best of many runs at each order, from that of one run (`one`).

    Theorem 2, for shape η and parameter γ, at order λ: ε(λ) + (1+η)·min over λ̂ of ((1-1/λ̂)·ε(λ̂) + ln(1/γ)/λ̂) +
    ln(E[K])/(λ-1). Theorem 6, for a Poisson number: ε(λ) + E[K]·δ̂ + ln(E[K])/(λ-1), where one run is
    (ln(1+1/(λ-1)), δ̂)-private.
    """
    check(expected_runs, distribution)
    at, shape = np.asarray(orders, float), SHAPES[distribution]
    with np.errstate(divide="ignore"):
        more = math.log(expected_runs) / (at - 1)
    if math.isinf(shape):
        cost = one + expected_runs * _deltas(at, one) + more
    else:
        constant = np.min((1 - 1 / at) * one - math.log(parameter(expected_runs, shape)) / at)
        cost = one + (1 + shape) * constant + more
    # A divergence grows with its order: that of a higher one is a bound too.
    cost = np.where(at > 1, cost, np.inf)
    by_order = np.argsort(-at)
    lowest = np.minimum.accumulate(cost[by_order])
    found = np.empty_like(lowest)
    found[by_order] = lowest
    return found


def _deltas(orders: np.ndarray, one: np.ndarray) -> np.ndarray:
    """For each order λ, the least δ for which one run is (ln(1 + 1/(λ-1)), δ)-private, by all of its divergences.

    Canonne, Kamath and Steinke (2020), Proposition 12: δ <= exp((λ-1)(ε(λ) - ε) + (λ-1)·ln(1-1/λ)) / λ.
    """
    usable = (orders > 1.01) & np.isfinite(one)
    at, cost = orders[usable], one[usable]
    with np.errstate(divide="ignore"):
        epsilons = np.log1p(1 / (orders - 1))
    logs = (at - 1) * (cost - epsilons[:, None] + np.log1p(-1 / at)) - np.log(at)
    return np.exp(np.minimum(logs.min(axis=1, initial=0.0), 0.0))


@lru_cache(maxsize=64)
def parameter(expected_runs: float, shape: float) -> float:
    """γ in (0, 1), for which the truncated negative binomial distribution has this mean. It falls as the mean grows."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = math.sqrt(low * high) if low else high / 2
        low, high = (middle, high) if _mean(middle, shape) > expected_runs else (low, middle)
    return low or high  # a smaller γ costs more


def _mean(gamma: float, shape: float) -> float:
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * (1 - gamma**shape))


def chances(expected_runs: float, distribution: str, most: int) -> np.ndarray:
    """The chance of each number of runs from 0 to `most`."""
    check(expected_runs, distribution)
    shape, number = SHAPES[distribution], np.arange(1, most + 1)
    if math.isinf(shape):
        logs = np.concatenate([[0.0], np.cumsum(math.log(expected_runs) - np.log(number))])
        return np.exp(logs - expected_runs)
    gamma = parameter(expected_runs, shape)
    geometric = gamma * (1 - gamma) ** (number - 1)
    logarithmic = (1 - gamma) ** number / (number * -math.log(gamma))
    return np.concatenate([[0.0], geometric if shape else logarithmic])


def runs_at_most(expected_runs: float, distribution: str, chance: float = 0.95) -> int:
    """The least number that there are no more runs than with this chance."""
    most = 64
    while (total := np.cumsum(chances(expected_runs, distribution, most)))[-1] < chance:
        most *= 2
    return int(np.searchsorted(total, chance))


def draw_runs(expected_runs: float, distribution: str) -> int:
    """A number of runs, from the entropy of the operating system. It is a secret, as the runs are that are not shown.

    Guarantee: it has the distribution of `chances`, to the rounding of a float.
    """
    uniform, most = os_entropy.randbits(_DRAWN_BITS) / 2**_DRAWN_BITS, 64
    while (total := np.cumsum(chances(expected_runs, distribution, most)))[-1] <= uniform and most < 64 * MOST_RUNS:
        most *= 2
    return int(np.searchsorted(total, uniform, side="right"))
