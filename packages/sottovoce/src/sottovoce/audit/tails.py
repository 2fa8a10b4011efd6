"""Empirical privacy by tails (Popov et al. 2018, section 3.1 and appendix A).

θ was trained with a user and θ' without. Over texts s that θ writes, c(s) = P(s|θ) / P(s|θ'); where its tail is
Pareto's, P(c > x) = C / x^α, it passes e^ε with probability δ at ε = (1/α) log(C/δ). This is an estimate for the pairs
that were looked at, from samples, and not a guarantee.

Everything here works on log c: the ratio itself may leave the range of floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sottovoce_evidence.errors import SettingError, SottoError

FEWEST = 100  # texts: below, a tail of 2√n is no longer a small part of them
LEVEL = 0.05  # a tail whose p-value is below is not taken for Pareto's
_DRAWS = 10_000  # of the simulated null distribution: a p-value of 5 % is right to 0.2 points


@dataclass(frozen=True)
class Tail:
    """The Pareto law fitted to the `k` largest of n values of c(s); `start` is log x₀, where it begins."""

    texts: int
    k: int
    start: float
    alpha: float  # infinite where the k largest are equal: two models that are the same
    statistic: float  # √k times the Lilliefors statistic; NaN where α is infinite
    p_value: float

    @property
    def log_constant(self) -> float:
        """log C, of C = (k/n) x₀^α."""
        return math.log(self.k / self.texts) + self.alpha * self.start if math.isfinite(self.alpha) else math.nan

    @property
    def constant(self) -> float:
        """C, which is infinite to a float where the tail is thin and begins late."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.log_constant))

    @property
    def rejected(self) -> bool:
        """Does the test say that this tail is not Pareto's, so that its ε means little?"""
        return self.p_value < LEVEL

    def epsilon(self, delta: float) -> float:
        """ε at δ; two models that are the same have 0."""
        check_delta(delta, self.texts)
        if not math.isfinite(self.alpha):
            return max(self.start, 0.0)
        return max(epsilon_of_delta(self.alpha, self.log_constant, delta), 0.0)


def fit_tail(log_ratios: np.ndarray) -> Tail:
    """The tail of log c(s), with its test."""
    check_texts(len(log_ratios))
    if not np.all(np.isfinite(log_ratios)):
        raise SottoError("the probability of a text is not a number: one of the models has diverged")
    k = tail_size(len(log_ratios))
    alpha = hill(log_ratios, k)
    statistic, p_value = exponentiality(_excesses(log_ratios, k)) if math.isfinite(alpha) else (math.nan, math.nan)
    start = float(np.sort(log_ratios)[-k])
    return Tail(len(log_ratios), k, start, alpha, statistic, p_value)


def tail_size(texts: int) -> int:
    """k = 2⌊√n⌋."""
    return 2 * math.isqrt(texts)


def hill(log_ratios: np.ndarray, k: int) -> float:
    """Hill's estimator of α: one over the mean of log(c⁽ⁱ⁾ / c⁽ᵏ⁾) over the k largest."""
    mean = float(np.mean(_excesses(log_ratios, k)))
    return 1 / mean if mean > 0 else math.inf


def epsilon_of_delta(alpha: float, log_constant: float, delta: float) -> float:
    """ε = (1/α) log(C/δ): c(s) passes e^ε with probability δ."""
    return (log_constant - math.log(delta)) / alpha


def exponentiality(excesses: np.ndarray) -> tuple[float, float]:
    """The Lilliefors test: √k D of the exponential law with the values' own mean, and its p-value.

    The values are k distances to the smallest of them, itself among them (a zero). Their null distribution does not
    depend on the mean, and is simulated with the same zero: published tables are for values without it. At the paper's
    k = 346, √k D passes its critical value of 1.08 by chance 5.2 % of the time.
    """
    statistic = float(_scaled_distance(excesses[None])[0])
    null = _null(len(excesses))
    return statistic, float((1 + np.sum(null >= statistic)) / (1 + len(null)))


def check_texts(texts: int) -> None:
    if texts < FEWEST:
        text = f"{{texts}} must be at least {FEWEST}; a tail is estimated from the 2√n largest of them"
        raise SettingError(text, texts=texts)


def check_delta(delta: float, texts: int) -> None:
    """The fit says nothing of what is not in the tail."""
    share = tail_size(texts) / texts
    if not 0 < delta < share:
        text = f"{{delta:g}} must be above 0 and below {share:.3g}, the share of {texts:,} texts that is the tail"
        raise SettingError(text, delta=delta)


def _excesses(log_ratios: np.ndarray, k: int) -> np.ndarray:
    """How far the k largest lie above the smallest of them, in falling order."""
    largest = np.sort(log_ratios)[::-1][:k]
    return largest - largest[-1]


@lru_cache(maxsize=4)
def _null(k: int) -> np.ndarray:
    """√k D of k values where the law is right: one simulation for all pairs, the same every time."""
    generator = np.random.default_rng([1969, k])
    parts = []
    for _ in range(10):
        values = generator.exponential(size=(_DRAWS // 10, k))
        values[:, 0] = 0
        parts.append(_scaled_distance(values))
    return np.concatenate(parts)


def _scaled_distance(values: np.ndarray) -> np.ndarray:
    """√k times the largest distance between each row's steps and the exponential law of its mean."""
    k = values.shape[1]
    law = -np.expm1(-np.sort(values, axis=1) / np.mean(values, axis=1, keepdims=True))
    steps = np.arange(1, k + 1) / k
    return math.sqrt(k) * np.max(np.maximum(steps - law, law - (steps - 1 / k)), axis=1)
