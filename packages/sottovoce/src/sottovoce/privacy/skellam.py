"""Skellam noise in whole steps, drawn exactly: the difference of two Poisson numbers of the same mean.

The sum of independent Skellam numbers is a Skellam number, whose variance is the sum of theirs. So devices can each add
a share of the noise of a round, and no one needs to know more than their own.

It is drawn as `noise.py` draws rounded Gaussians, and by the same program: a Gaussian of the same variance V gives a
cell of 1/64 standard deviations, a place in the cell, and k, the nearest whole number. k is kept with a chance in
proportion to f(k) · exp(c²/2), where f is the mass of Skellam and c the start of the cell in standard deviations: what
is kept has the law f. The program has that chance from an expansion in 1/V, with more than its error on both sides.
`draw_one` has f from its characteristic function, in as many digits as a decision needs.

Beyond `REACH` standard deviations nothing is kept, since a Gaussian falls faster than f. The total variation between
this and Skellam is below 2^-1000 for every coordinate: no δ that a computer can write is that small.
"""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from sottovoce.privacy import noise
from sottovoce.privacy.noise import CELLS, Scale, draw_one, steps_of

REACH = 40  # standard deviations
LEAST_STD, MOST_STD = 2.0**12, 2.0**50
_EXP_ERROR = 2.0**-42  # more than the rounding of `_chance` in float64
_REST = 512.0  # times V^-2: more than all terms of the expansion that `_chance` leaves out


def skellam(key: bytes, size: int, std: float, stream: int = 0) -> Int[Array, " size"]:
    """`size` Skellam numbers of standard deviation `std`: the noise that a key has for a stream.

    Guarantee: coordinates are independent, and each has this distribution to 2^-1000 in total variation, given that the
    key stream of ChaCha20 under a secret key of 256 bits is uniform. A standard deviation is rounded up by at most
    2^-31 of it.
    """
    if not 0 <= size < 2**31:
        raise ValueError(f"{size} coordinates are more than one key has blocks for")
    scale = scale_of(std)
    drawn = noise.draw_many(key, size, scale, stream, _chance, _numbers(scale))
    use = partial(noise.without_padding, size)
    return noise.with_the_rest(drawn, lambda place: skellam_one(key, place, scale, stream), use)


def scale_of(std: float) -> Scale:
    """The scale that is drawn for a standard deviation. Its square is the variance, exactly."""
    if not LEAST_STD <= std <= MOST_STD:
        raise ValueError(f"Skellam noise of {std:g} steps is not from {LEAST_STD:g} to {MOST_STD:g}")
    return Scale.at_least(std)


def skellam_one(key: bytes, coordinate: int, scale: Scale, stream: int = 0) -> int:
    """One coordinate, with as many bits and digits as its decisions need: the twin to read."""
    return draw_one(key, coordinate, scale, stream, partial(_kept, scale))


def _headroom(scale: Scale) -> float:
    """More than ln of f(k) · √(2πV) · exp(c²/2) is for any k and cell within reach.

    With k = x√V: k lies at most 1/2 before the cell, which is worth 20/√V; f falls slower than a Gaussian, by x⁴/24V;
    and the mass is above the density by less than 1/V.
    """
    std = math.ldexp(scale.mantissa, scale.exponent)
    return 20 / std + 2.0**17 / std**2


def _numbers(scale: Scale) -> tuple[np.float64, np.float64]:
    return np.float64(math.ldexp(scale.mantissa, scale.exponent)), np.float64(_headroom(scale))


def _chance(cell: Array, t: Array, steps: Array, numbers: tuple[Any, ...]) -> tuple[Array, Array]:
    """The chance that a candidate is kept, and more than its error.

    With r = k/V: ln(f(k)√(2πV)) = -k²/2V + V(r⁴/24 - r⁶/80) - r²/4 + r⁴/8 + 1/8V, and terms of r²/V and V^-2.
    """
    std, headroom = numbers
    x = steps.astype(jnp.float64) / std
    r2 = (x / std) ** 2
    nearer = (cell - CELLS * x) * (cell + CELLS * x) / (2 * CELLS**2)  # (c² - x²)/2
    bent = x**2 * r2 * (1 / 24 - r2 / 80) - r2 / 4 + r2**2 / 8 + 0.125 / std**2
    return jnp.exp(nearer + bent - headroom), _EXP_ERROR + _REST / std**4


def _kept(scale: Scale, cell: int, place: int, coin: int, bits: int) -> bool | None:
    """Is coin < f(k) · √(2πV) · exp(c²/2 - headroom), for any place and coin that begin with these bits?"""
    if cell >= REACH * CELLS:
        return False
    steps = steps_of(scale, cell, place, bits)
    if steps is None:
        return None
    with decimal.localcontext() as context:
        context.prec = digits = math.ceil(bits * math.log10(2)) + 30
        variance = Decimal(scale.mantissa) ** 2 * Decimal(2) ** (2 * scale.exponent)
        density = log_mass(variance, steps, digits) + (2 * _pi(digits) * variance).ln() / 2
        chance = (density + Decimal(cell) ** 2 / (2 * CELLS**2) - Decimal(_headroom(scale))).exp()
        slack = Decimal(2) ** -(bits + 8)  # more than the rounding of the lines above
        if Decimal(coin + 1) / 2**bits <= chance - slack:
            return True
        return False if Decimal(coin) / 2**bits >= chance + slack else None


def log_mass(variance: Decimal, k: int, digits: int) -> Decimal:
    """ln f(k) for a variance V, to `digits` digits after the point.

    f(k) is the mean of exp(V(cos θ - 1) - ikθ) over a turn. Moved by iφ to the saddle point, where sinh φ = k/V, it is
    exp(s - V - kφ) · J with s = √(V² + k²), and J, about 1/√(2πs), the mean of exp(s(cos θ - 1)) · cos(k(sin θ - θ)).
    J is the chance that a variable of mean k and variance s, the difference of two Poisson numbers, is k. The mean over
    N equal steps of θ is the chance that it is k modulo N: too large by the chance of going N or more astray, which
    Bernstein bounds by 2 exp(-N²/(2s + 2N/3)). Steps beyond θ = a add at most exp(-2sa²/π²), and are left out.
    """
    with decimal.localcontext() as context:
        # √V, V and k have as many digits before the point as the context must hold besides.
        wide = len(str(int(variance) + abs(k)))
        context.prec = prec = digits + 2 * wide + 20
        context.Emin, context.Emax = -(10**9), 10**9
        k_ = Decimal(abs(k))
        s = (variance * variance + k_ * k_).sqrt()
        saddle = (s - variance) - k_ * ((k_ + s) / variance).ln()
        small = Decimal(digits + wide + 10) * Decimal(10).ln()  # -ln of the errors
        turn = int((2 * small * s).sqrt() + small) + 1  # N, for which N²/(2s + 2N/3) is above `small`
        step = 2 * _pi(prec) / turn
        last = min(turn // 2, int(_pi(prec) * (small / (2 * s)).sqrt() / step) + 1)
        total = Decimal(1)
        for number in range(1, last + 1):
            cosine, sine = _series(number * step, 2, prec), _series(number * step, 3, prec)  # cos θ - 1, sin θ - θ
            term = (s * cosine).exp() * (1 + _series(k_ * sine, 2, prec))
            total += term if 2 * number == turn else 2 * term
        return saddle + (total / turn).ln()


def _series(x: Decimal, first: int, digits: int) -> Decimal:
    """cos x - 1 (first = 2) or sin x - x (first = 3), by their series."""
    term, power = Decimal(-1), first
    for number in range(1, first + 1):
        term *= x / number
    total, least = term, Decimal(10) ** -(digits + 5)
    while abs(term) > least * abs(total) and term:
        term *= -x * x / ((power + 1) * (power + 2))
        power += 2
        total += term
    return total


@lru_cache(maxsize=16)
def _pi(digits: int) -> Decimal:
    """π by Machin's formula."""
    with decimal.localcontext() as context:
        context.prec = digits + 10
        return 4 * (4 * _arctan_of_inverse(5, digits + 10) - _arctan_of_inverse(239, digits + 10))


def _arctan_of_inverse(number: int, digits: int) -> Decimal:
    power = total = Decimal(1) / number
    odd, sign = 1, 1
    while power > Decimal(10) ** -(digits + 5):
        power /= number * number
        odd, sign = odd + 2, -sign
        total += sign * power / odd
    return total
