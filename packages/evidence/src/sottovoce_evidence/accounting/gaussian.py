"""ε of one Gaussian: exact by its trade-off function, and by zero-concentrated differential privacy (zCDP)."""

from __future__ import annotations

import math
from collections.abc import Callable

_UNITS = 16 * 2.0**-52  # of rounding in δ, of its largest term


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε at `delta` of one query that everyone joins, with noise of `noise_multiplier` times its sensitivity.

    Guarantee: an upper bound, above the exact value (Balle and Wang 2018) by rounding only.
    """
    if _delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    high = 1.0
    while _delta(noise_multiplier, high) > delta:
        high *= 2
    low = 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(noise_multiplier, middle) > delta else (low, middle)
    return high


def _delta(z: float, epsilon: float) -> float:
    """δ(ε) = Φ(a) - e^ε Φ(-b) with a = 1/2z - εz and b = 1/2z + εz, rounded up.

    φ(a) = e^ε φ(b), so it is φ(a) (R(-a) - R(b)) with the Mills ratio R, which is a difference of close numbers only
    where z is large.
    """
    from scipy.special import erfcx, log_ndtr, ndtr

    a, b = 0.5 / z - epsilon * z, 0.5 / z + epsilon * z
    if a > 5:
        first, second = float(ndtr(a)), math.exp(epsilon + float(log_ndtr(-b)))
    else:
        density = 0.5 * math.exp(-0.5 * a * a)  # times √2π/2, which turns erfcx into the Mills ratio
        first, second = density * float(erfcx(-a / math.sqrt(2))), density * float(erfcx(b / math.sqrt(2)))
    return max(0.0, first - second) + _UNITS * (1 + a * a) * first


def zcdp_epsilon(rho: float, delta: float) -> float:
    """ε at `delta` of what is ρ-zCDP, by the tight conversion of Canonne, Kamath and Steinke (2020).

    Guarantee: an upper bound, whatever order the search ends at.
    """

    def at(log_order: float) -> float:
        more = math.exp(log_order)  # α - 1
        order = 1 + more
        return order * rho + (order * math.log1p(-1 / order) - math.log(delta * more)) / more

    return max(0.0, _least(at, -20.0, 40.0)) * (1 + 1e-12)


def _least(of: Callable[[float], float], low: float, high: float) -> float:
    """The least value of a function that falls and then rises, by golden section."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if of(left) <= of(right) else (left, high)
    return of((low + high) / 2)
