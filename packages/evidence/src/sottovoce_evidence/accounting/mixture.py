"""The privacy loss of a round on sampled examples: a user joins it with 0, 1, ... or all of their examples.

In units of what one example moves the query, the pair that dominates a round is Σ p_k N(k, z²) against N(0, z²) when a
user is removed, and against Σ p_k N(-k, z²) when one is replaced, with p_k the binomial chance of k examples
(docs/explanation/guarantees.md). `pld` composes it. Chances above some number of examples, together at most `LEAST`,
count as certain loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

LEAST = 1e-60  # far below any δ: it is counted, and shows in no figure
_AT_ONCE = 2**20  # numbers in one array of losses and components
_TURNS = 100
_CLOSE = 1e-11  # of a step in an outcome: δ(ε) is a maximum over outcomes, so an error in one counts by its square


class Components(NamedTuple):
    """ln p_k of k = 0, 1, ... examples in a round, and the chance of more than that."""

    logs: np.ndarray
    left_out: float


@lru_cache(maxsize=64)
def components(example_rate: float, examples: int, least: float = LEAST) -> Components:
    """How many of a user's examples join a round: a binomial number, cut where what is left is at most `least`."""
    k = np.arange(examples)
    odds = math.log(example_rate) - math.log1p(-example_rate)
    # From one chance to the next: logarithms of factorials would lose digits.
    rises = np.log((examples - k) / (k + 1)) + odds
    logs = examples * math.log1p(-example_rate) + np.concatenate([[0.0], np.cumsum(rises)])
    above = np.cumsum(np.exp(logs[::-1]))[::-1]  # the chance of k or more
    kept = max(2, int(np.sum(above > least)))
    return Components(logs[:kept], float(above[kept]) if kept < len(above) else 0.0)


class Mixture(NamedTuple):
    """Gaussians of deviation z at 0, 1, 2, ... with the chances of a binomial number of examples."""

    example_rate: float
    noise_multiplier: float
    examples: int

    @property
    def parts(self) -> Components:
        return components(self.example_rate, self.examples)

    def log_ratio(self, outcomes: np.ndarray, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """ln Σ p_k e^(s_k) from k = `first` on, with s_k the loss of k examples for certain, and its slope."""
        k, values, slopes = np.arange(first, len(self.parts.logs)), np.empty_like(outcomes), np.empty_like(outcomes)
        variance = self.noise_multiplier**2
        for here in _chunks(len(outcomes), len(k)):
            terms = self.parts.logs[first:] + k * (outcomes[here, None] - k / 2) / variance
            top = terms.max(axis=1, keepdims=True)
            weights = np.exp(terms - top)
            total = weights.sum(axis=1)
            values[here] = top[:, 0] + np.log(total)
            slopes[here] = np.sum(weights * k, axis=1) / total / variance
        return values, slopes

    def above(self, outcome: float) -> float:
        """The chance of an outcome above this one, of a user who joins with one example or more."""
        from scipy.special import ndtr

        k = np.arange(1, len(self.parts.logs))
        return float(np.sum(np.exp(self.parts.logs[1:]) * ndtr((k - outcome) / self.noise_multiplier)))

    def range(self, cut: float, replaced: bool) -> tuple[float, float]:
        """The lowest and the highest loss that are kept. Beyond each lies a chance of at most `cut`."""
        from scipy.special import ndtri

        z, low = self.noise_multiplier, 0.0
        high = len(self.parts.logs) - z * float(ndtri(min(cut, 0.5)))
        if self.above(low) <= cut:
            high = low
        while high - low > 1e-3 * z:
            middle = (low + high) / 2
            low, high = (middle, high) if self.above(middle) > cut else (low, middle)
        highest = float(self._loss(np.array([high]), replaced)[0][0])
        lowest = z * float(ndtri(cut))
        return (-highest if replaced else float(self.log_ratio(np.array([lowest]))[0][0])), highest

    def _loss(self, outcomes: np.ndarray, replaced: bool) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = self.log_ratio(outcomes)
        if not replaced:
            return values, slopes
        mirrored, other = self.log_ratio(-outcomes)
        return values - mirrored, slopes + other

    def profile_of_joining(self, losses: np.ndarray) -> np.ndarray:
        """δ at each ε = loss >= 0 when a user is removed; at each loss < 0, how far δ lies above 1 - e^loss.

        With the outcome t at which the loss is ε, δ(ε) = Σ p_k (Φ((k-t)/z) - e^(s_k)·Φ(-t/z)) over k >= 1. Below 0 it
        is Σ p_k (e^(s_k)·Φ(t/z) - Φ((t-k)/z)). No term is negative, and none is a difference of numbers next to 1.
        """
        from scipy.special import log_ndtr, ndtr

        z, logs = self.noise_multiplier, self.parts.logs
        with np.errstate(divide="ignore", invalid="ignore"):  # below ln p_0 no loss lies: the answer there is 0
            over = np.expm1(np.minimum(losses, 50.0)) - math.expm1(float(logs[0]))
            wanted = np.log(over) + np.maximum(losses - 50.0, 0.0)
        found = np.zeros(len(losses))
        exists = np.isfinite(wanted)
        t = self._outcomes_of_joining(wanted[exists])
        k, values = np.arange(1, len(logs)), np.empty(len(t))
        side = np.where(losses[exists] >= 0, 1.0, -1.0)[:, None]
        for here in _chunks(len(t), len(k)):
            at, way = t[here, None], side[here]
            certain = k * (at - k / 2) / z**2 + log_ndtr(-way * at / z)
            terms = way * (ndtr(way * (k - at) / z) - np.exp(certain))
            values[here] = np.sum(np.exp(logs[1:]) * np.maximum(terms, 0.0), axis=1)
        found[exists] = values
        return found + np.where(losses >= 0, self.parts.left_out, 0.0)

    def profile_of_replacing(self, losses: np.ndarray) -> np.ndarray:
        """δ at each ε = loss >= 0 when a user is replaced.

        At the outcome t the loss is ε: δ(ε) = Σ p_k (Φ((k-t)/z) - e^ε·Φ((-k-t)/z)), all k = 0, 1, ... included.
        """
        from scipy.special import log_ndtr, ndtr

        z, logs = self.noise_multiplier, self.parts.logs
        t = self._outcomes_of_replacing(losses)
        k, values = np.arange(1, len(logs)), np.empty(len(t))
        with np.errstate(divide="ignore"):  # where ε is 0
            log_rise = losses + np.log(-np.expm1(-losses)) + logs[0]  # of p_0·(e^ε - 1)
        for here in _chunks(len(t), len(k)):
            at = t[here, None]
            terms = ndtr((k - at) / z) - np.exp(losses[here, None] + log_ndtr((-k - at) / z))
            none = np.exp(log_rise[here] + log_ndtr(-t[here] / z))
            values[here] = np.sum(np.exp(logs[1:]) * terms, axis=1) - none
        return np.maximum(values, 0.0) + self.parts.left_out

    def _outcomes_of_joining(self, wanted: np.ndarray) -> np.ndarray:
        """Where ln Σ p_k e^(s_k), over k >= 1, has these values.

        Newton's method: the function is convex and rises, so from above it comes down to the answer. At the first
        outcome at which one term alone is as large as wanted, the sum is at least that.
        """
        variance, logs = self.noise_multiplier**2, self.parts.logs
        start = np.full(len(wanted), np.inf)
        for k in range(1, len(logs)):
            np.minimum(start, (variance * (wanted - logs[k]) + k * k / 2) / k, out=start)

        def step(outcomes: np.ndarray) -> np.ndarray:
            values, slopes = self.log_ratio(outcomes, first=1)
            return outcomes - np.maximum(values - wanted, 0.0) / slopes

        return _settled(step, start, self.noise_multiplier)

    def _outcomes_of_replacing(self, losses: np.ndarray) -> np.ndarray:
        """Where the loss has these values, none negative: Newton's method, kept within brackets that close."""
        low, high = np.zeros(len(losses)), np.ones(len(losses))
        while np.any(short := self._loss(high, True)[0] < losses):
            low, high = np.where(short, high, low), np.where(short, 2 * high, high)

        def step(outcomes: np.ndarray) -> np.ndarray:
            nonlocal low, high
            values, slopes = self._loss(outcomes, True)
            low, high = np.where(values < losses, outcomes, low), np.where(values >= losses, outcomes, high)
            newton = outcomes - (values - losses) / slopes
            return np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)

        return _settled(step, (low + high) / 2, self.noise_multiplier)


def _settled(step: Callable[[np.ndarray], np.ndarray], outcomes: np.ndarray, scale: float) -> np.ndarray:
    for _ in range(_TURNS):
        before, outcomes = outcomes, step(outcomes)
        if not np.any(np.abs(outcomes - before) > _CLOSE * (scale + np.abs(outcomes))):
            break
    return outcomes


def _chunks(points: int, components: int) -> list[slice]:
    size = max(1, _AT_ONCE // components)
    return [slice(first, first + size) for first in range(0, points, size)]
