"""The moments accountant of the papers (Abadi et al. 2016), kept to reproduce their tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from sottovoce_evidence.accounting.events import SampledGaussian

ORDERS = range(1, 33)  # λ of the papers


def moments_epsilon(counts: Mapping[SampledGaussian, int], delta: float, orders: Iterable[int] = ORDERS) -> float:
    """ε = min over λ of (Σ α(λ) + ln(1/δ)) / λ, as published."""
    return min(
        (sum(count * _moment(event, order) for event, count in counts.items()) - math.log(delta)) / order
        for order in orders
    )


@lru_cache(maxsize=4096)
def _moment(event: SampledGaussian, order: int) -> float:
    """α(λ) = ln Σ_i C(λ+1, i) q^i (1-q)^(λ+1-i) e^(i(i-1)/2z²), summed on a logarithmic scale."""
    n, q, z = order + 1, event.user_rate, event.noise_multiplier
    if q == 1:
        return n * (n - 1) / (2 * z**2)
    i = np.arange(n + 1)
    terms = _log_binomials(n) + i * math.log(q) + (n - i) * math.log1p(-q) + i * (i - 1) / (2 * z**2)
    return max(0.0, float(np.logaddexp.reduce(terms)))


@lru_cache(maxsize=128)
def _log_binomials(n: int) -> np.ndarray:
    return np.array([math.log(math.comb(n, i)) for i in range(n + 1)])
