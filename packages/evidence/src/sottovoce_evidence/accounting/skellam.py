"""Rényi differential privacy of Skellam noise: the "rdp" part of `accounting` where devices add the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from sottovoce_evidence.accounting.events import SampledSkellam

Orders = int | np.ndarray  # whole, 2 or more
Curve = Callable[[Orders], np.ndarray]  # the divergence at each order


def skellam_divergence(order: Orders, l1: float, l2: float, variance: float) -> np.ndarray:
    """The Rényi divergence of Skellam vectors whose means differ by whole numbers, of these norms at most.

    Agarwal, Kairouz and Liu (2021), Corollary 3.6: for whole orders, in any number of dimensions. It is that of
    Gaussians of the same variance, and a term that falls faster with the variance.
    """
    more = np.minimum(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return order * l2**2 / (2 * variance) + more


def sampled_divergence(order: int, rate: float, curve: Curve) -> float:
    """The divergence where every user joins by a coin, for any mechanism that has this curve in both directions.

    Zhu and Wang (2019), Theorem 5: add-or-remove, Poisson sampling, whole orders. The factor 3 is for any mechanism.
    Without it the bound holds under a condition on odd moments, which is not proved for Skellam.
    """
    from scipy.special import gammaln, logsumexp

    if rate == 1:
        return float(curve(order))
    out, joins = math.log1p(-rate), math.log(rate)
    number = np.arange(2, order + 1)
    chances = gammaln(order + 1) - gammaln(number + 1) - gammaln(order - number + 1)
    chances += (order - number) * out + number * joins + np.where(number > 2, math.log(3), 0.0)
    logs = chances + (number - 1) * curve(number)
    none_or_one = (order - 1) * out + math.log1p((order - 1) * rate)
    return min(float(curve(order)), float(logsumexp([none_or_one, *logs])) / (order - 1))


def replaced_divergence(order: int, curve: Callable[[int], float]) -> float:
    """The divergence where a user is replaced, from the curve of one who is added or removed.

    By the weak triangle inequality (Mironov 2017, Proposition 11): remove the user, then add the other.
    """
    return (order - 0.5) / (order - 1) * curve(2 * order) + curve(2 * order - 1)


@lru_cache(maxsize=256)
def divergences(event: SampledSkellam, orders: tuple[float, ...], replaced: bool) -> np.ndarray:
    """One round's divergence at each order. At orders between whole ones it is that of the next above."""
    whole = [max(2, math.ceil(order)) for order in orders]
    found = {order: _divergence(event, order, replaced) for order in set(whole)}
    return np.array([found[order] for order in whole])


def _divergence(event: SampledSkellam, order: int, replaced: bool) -> float:
    """A person in several silos counts as one who is drawn whole by any of them.

    The moments of a mixture are at most those of its worst part, since they are convex, and no part is longer than S.
    """
    rate = event.join_rate
    l1, l2, variance = event.l1, event.steps, (event.noise_multiplier * event.steps) ** 2
    everyone = partial(skellam_divergence, l1=l1, l2=l2, variance=variance)
    if not replaced:
        return sampled_divergence(order, rate, everyone)
    # Two users, each as far from nothing as one may be.
    moved = float(skellam_divergence(order, 2 * l1, 2 * l2, variance))
    if rate == 1:
        return moved
    sampled = lambda number: sampled_divergence(number, rate, everyone)  # noqa: E731
    return min(moved, replaced_divergence(order, sampled))


def chance_above(rounds: int, rate: float) -> np.ndarray:
    """The chance that a user joins more than 0, 1, ... rounds, by Poisson sampling. An upper bound, to 10^-6 of it."""
    from scipy.special import gammaln

    if rate >= 1:
        return np.append(np.ones(rounds), 0.0)
    number = np.arange(rounds + 1)
    logs = gammaln(rounds + 1) - gammaln(number + 1) - gammaln(rounds - number + 1)
    logs += number * math.log(rate) + (rounds - number) * math.log1p(-rate)
    # Added up from the smallest, and rounded up by more than the error of these logarithms.
    above = np.cumsum(np.exp(logs)[:0:-1])[::-1] * (1 + 1e-6)
    return np.minimum(np.append(above, 0.0), 1.0)
