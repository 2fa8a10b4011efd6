"""The privacy loss of many rounds, composed numerically: the "pld" part of `accounting`.

One round's loss becomes a distribution on a grid that dominates it (Connect-the-Dots, Doroshenko et al. 2022); rounds
are composed by multiplying Fourier transforms; dp-accounting reads ε off the result. dp-accounting could do all of it,
but slowly, with rounding errors that pass 100 % in 10^5 rounds and errors of its FFTs that pass a small δ. Here every
mass is computed from the small side, and composed after tilting: each mass is weighed by e^(θ·loss), so that the losses
near ε are the middle of what is transformed, not the tail, and errors are small compared with δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sottovoce_evidence.accounting.mixture import Mixture

STEP = 0.01  # of ε/√rounds
TAIL = 1e-3  # the share of δ that one round's cut tails may use in all rounds: 0.00005 of ε
TILT = 0.85  # of the order that puts the middle at ε: a heavy tail, lifted that high, would need a long window
ASTRAY = 0.01  # the share of δ that rounding, and what lies outside the window of an FFT, may use: 0.0002 of ε
UNITS = 8  # of rounding a round, of the largest tilted mass. Measured against quadruple precision: up to 1.9
MOST_POINTS = 2_000_000  # in one round's grid. Beyond, the grid is coarser: still an upper bound, less tight
LONGEST = 2**24  # points of an FFT (2 s)
MASS_DRIFT = 1e-4  # a composed mass further than this from 1 is not trusted


class DriftError(Exception):
    """This grid is too fine: a composed mass is no longer 1, or there is no room for it."""


REMOVED, REPLACED, EXCHANGED = "removed", "replaced", "exchanged"


class Round(NamedTuple):
    """Gaussian noise of `noise_multiplier` times the most that one user moves the query, who joins at `user_rate`.

    `change` is what two populations differ in. A user is removed: (1-q)·N(0) + q·N(1) against N(0), in units of what
    one user moves. A user is replaced: against (1-q)·N(0) + q·N(-1). A member of a cohort of fixed size is exchanged,
    which moves the query by one unit, whatever member it was. In the last two either population may play either part.

    Of a user with several `examples`, each joins at this rate by itself and moves the query by one unit.
    """

    user_rate: float
    noise_multiplier: float
    change: str = REMOVED
    examples: int = 1

    @property
    def mixture(self) -> Mixture | None:
        """Of a user with several examples."""
        return Mixture(self.user_rate, self.noise_multiplier, self.examples) if self.examples > 1 else None


Rounds = Sequence[tuple[Round, int]]  # each with its count


class Grid(NamedTuple):
    """Losses are multiples of `step`, cut where one round's lie beyond with a chance of at most `cut`."""

    step: float
    cut: float


class Losses(NamedTuple):
    """One round: each loss with the logarithm of its chance, and the chance of an infinite loss."""

    first: int
    losses: np.ndarray
    logs: np.ndarray
    infinite: float


Summands = Sequence[tuple[Losses, int]]  # the losses of kinds of rounds, each with its count


def find_grid(rounds: Rounds, delta: float, bound: float) -> tuple[Grid, float]:
    """A grid fine enough for these rounds, and their ε on it, starting from any upper bound of ε.

    The grid for a bound that is too large is coarse, so cheap, and its answer is a better bound. The search ends when
    the two agree.
    """
    grid = grid_for(rounds, delta, bound)
    answer = read_epsilon(rounds, delta, grid)
    while 0 < answer < bound / 1.2:
        bound, coarser = answer, grid
        grid = grid_for(rounds, delta, bound)
        if grid == coarser:  # it has all the points there may be
            break
        try:
            answer = min(answer, read_epsilon(rounds, delta, grid))  # both are upper bounds
        except DriftError:  # the coarser answer is an upper bound all the same
            return coarser, bound
    return grid, answer


def read_epsilon(rounds: Rounds, delta: float, grid: Grid) -> float:
    """ε of these rounds at `delta`, the larger of the two directions.

    Guarantee: an upper bound. Cut tails and rounding are counted as certain loss.
    """
    pairs = [(_one_round(kind, grid), count) for kind, count in rounds]
    symmetric = all(removed is added for (removed, added), _ in pairs)
    directions = [[(pair[way], count) for pair, count in pairs] for way in ((0,) if symmetric else (0, 1))]
    return max(_read(one_way, delta, grid.step) for one_way in directions)


def grid_for(rounds: Rounds, delta: float, epsilon: float) -> Grid:
    """Discretising spreads every round's loss by a step, so the sum by step·√rounds; a large ε also feels step²."""
    total = sum(count for _, count in rounds)
    cut = TAIL * delta / total
    wanted = STEP * epsilon / math.sqrt(total) * min(1.0, math.sqrt(10 / epsilon))
    widest = max(highest - lowest for lowest, highest in (_range(kind, cut) for kind, _ in rounds))
    # e^step is taken on the way, so a hopeless ε must not make it huge.
    return Grid(max(min(wanted, 1.0), widest / MOST_POINTS), cut)


# One round


def _range(kind: Round, cut: float) -> tuple[float, float]:
    """The lowest and the highest loss of one round that are kept. Beyond each lies a chance of at most `cut`."""
    from scipy.special import ndtri

    if (mixture := kind.mixture) is not None:
        return mixture.range(cut, kind.change == REPLACED)
    q, z, change, _ = kind
    # A user shows only when sampled, and then with the tail of a Gaussian: q·Φ(1/z - t) <= cut.
    t = 1 / z - ndtri(min(cut / q, 0.5))
    highest = _sampled_loss(t / z - 0.5 / z**2, q)
    if change == REPLACED:
        highest -= _sampled_loss(-t / z - 0.5 / z**2, q)
    lowest = _sampled_loss(ndtri(cut) / z - 0.5 / z**2, q) if change == REMOVED else -highest
    return float(lowest), float(highest)


def _sampled_loss(loss: float, q: float) -> float:
    """The loss of a round, from the loss that an outcome would have if the user had joined for certain."""
    if q == 1 or loss > 50:
        return loss + math.log(q)
    return math.log1p(q * math.expm1(loss))


def profile(kind: Round, losses: np.ndarray) -> np.ndarray:
    """δ at each ε = loss >= 0; at each loss < 0, how far δ lies above its least value 1 - e^loss.

    Where either population may play either part, what lies below 0 mirrors what is above.
    """
    if kind.change == REMOVED:
        return _profile_of_joining(kind, losses)
    of = _profile_of_replacing if kind.change == REPLACED else _profile_of_joining
    values = of(kind, np.abs(losses))
    return np.where(losses >= 0, values, np.exp(np.minimum(losses, 0.0)) * values)


def _profile_of_joining(kind: Round, losses: np.ndarray) -> np.ndarray:
    """With e^ε = 1 - q + q·e^s and t = zs + 1/2z, removing a user who joins with probability q has
    δ(ε) = q·(Φ(1/z - t) - e^s·Φ(-t)); subtracting 1 - e^ε leaves q·(e^s·Φ(t) - Φ(t - 1/z)). Neither is a
    difference of numbers next to 1.
    """
    from scipy.special import log_ndtr, ndtr

    if (mixture := kind.mixture) is not None:
        return mixture.profile_of_joining(losses)
    q, z, *_ = kind
    side = np.where(losses >= 0, 1.0, -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # below ln(1-q) no loss lies: the answer there is 0
        s = losses if q == 1 else np.log1p(np.expm1(np.minimum(losses, 50.0)) / q) + np.maximum(losses - 50.0, 0.0)
        t = z * s + 0.5 / z
        values = side * q * (ndtr(side * (1 / z - t)) - np.exp(s + log_ndtr(-side * t)))
    return np.where(np.isfinite(s), np.maximum(values, 0.0), 0.0)


def _profile_of_replacing(kind: Round, losses: np.ndarray) -> np.ndarray:
    """At an outcome tz the loss is ε, where y = e^(t/z) solves y² - 2by = e^ε with 2b = (1-q)(e^ε - 1)·e^(1/2z²)/q.

    All that is likelier lies above it: δ(ε) = q·(Φ(1/z - t) - e^ε·Φ(-1/z - t)) - (1-q)(e^ε - 1)·Φ(-t).
    """
    from scipy.special import log_ndtr, ndtr

    if (mixture := kind.mixture) is not None:
        return mixture.profile_of_replacing(losses)
    q, z, *_ = kind
    with np.errstate(divide="ignore"):  # where ε is 0 or all users join, b is 0
        log_rise = losses + np.log(-np.expm1(-losses)) + np.log1p(-q)  # of (1-q)(e^ε - 1)
        log_b = log_rise + 0.5 / z**2 - math.log(2 * q)
        t = z * np.logaddexp(log_b, 0.5 * np.logaddexp(2 * log_b, losses))
        values = q * (ndtr(1 / z - t) - np.exp(losses + log_ndtr(-1 / z - t))) - np.exp(log_rise + log_ndtr(-t))
    return np.maximum(values, 0.0)


@lru_cache(maxsize=16)
def _one_round(kind: Round, grid: Grid) -> tuple[Losses, Losses]:
    """One round's loss when a user is removed, and when one is added. The same twice where the two do not differ.

    Between two points of the grid the masses of both populations go to the ends, so that both are kept: the new pair
    dominates the old one in either direction, and the second direction follows from the first: the loss changes sign
    and its mass is weighed by e^-loss.
    """
    lowest, highest = _range(kind, grid.cut)
    first, last = min(-1, math.floor(lowest / grid.step)), max(1, math.ceil(highest / grid.step))
    losses = np.arange(first, last + 1) * grid.step
    values = profile(kind, losses)
    up, down = np.diff(values) / math.expm1(grid.step), np.diff(values) / math.expm1(-grid.step)
    probs = np.concatenate([[-values[0]], down]) + np.concatenate([up, [0.0]])
    probs[-first] += 1.0  # the line 1 - e^loss, which `profile` leaves out below 0, has its bend at 0
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(probs, 0.0))
    removed = Losses(first, losses, logs, float(values[-1]))
    if kind.change != REMOVED or kind.user_rate == 1:
        return removed, removed
    # Below the lowest loss lies a mass of the other population alone: turned round, it is a certain giveaway.
    below = float(values[0] * math.exp(-losses[0]))
    return removed, Losses(-last, -losses[::-1], np.ascontiguousarray((logs - losses)[::-1]), below)


# Many rounds


class Tilted(NamedTuple):
    """The sum of the rounds with masses weighed by e^(order·loss): ln Σ mass·e^(order·loss), its mean and deviation."""

    order: float
    log_mass: float
    mean: float
    deviation: float


def _read(rounds: Summands, delta: float, step: float) -> float:
    """ε at `delta` in one direction.

    A transform wraps round what lies outside its window: that only adds mass inside, and what was above is charged.
    Rounding is charged too: no tilted mass is wrong by more than `UNITS` units a round of the largest one. At a loss l
    an error counts e^(log_mass - order·l) times as much without the tilt, and 1 - e^(ε - l) of that in δ. Summed over
    all losses above ε this stays within `ASTRAY` of δ down to a `floor`. Nothing is read below the floor: since δ
    falls as ε grows, the floor is an upper bound where the answer would lie below it.
    """
    total = sum(n for _, n in rounds)
    infinite = -math.expm1(sum(n * math.log1p(-kind.infinite) for kind, n in rounds))
    if total == 1:
        ((kind, _),) = rounds
        return _epsilon_at(delta, step, kind.first, np.exp(kind.logs), infinite)
    tilted = _tilt_for(rounds, math.log(delta))
    order, outside = tilted.order, ASTRAY / 2 * delta
    first, masses = _compose(rounds, tilted, step, outside)
    highest = (first + len(masses)) * step
    counted = math.exp(-order * step) * math.expm1(-step) / math.expm1(-order * step) / -math.expm1(-(order + 1) * step)
    error = UNITS * total * float(np.finfo(np.float64).eps) * float(masses.max())
    floor = max(0.0, (tilted.log_mass + math.log(max(error * counted, 1e-300) / (ASTRAY * delta))) / order)
    skip = max(0, math.ceil(floor / step) - first)
    losses = (first + np.arange(skip, len(masses))) * step
    probs = masses[skip:] * np.exp(tilted.log_mass - order * losses)
    # dp-accounting reads from the highest loss downwards, in Python: what cannot matter is cut off first.
    above = np.cumsum(probs[::-1])
    spare = int(np.searchsorted(above, TAIL * delta))
    infinite += ASTRAY * delta + (float(above[spare - 1]) if spare else 0.0)
    infinite += outside * math.exp(tilted.log_mass - order * highest)  # what lies above the window
    return max(floor, _epsilon_at(delta, step, first + skip, probs[: len(probs) - spare], infinite))


def _epsilon_at(delta: float, step: float, first: int, probs: np.ndarray, infinite: float) -> float:
    from dp_accounting.pld import pld_pmf

    with np.errstate(over="ignore"):  # of e^700 and more, where it answers infinity: RDP's bound is taken then
        return float(pld_pmf.DensePLDPmf(step, first, probs, infinite, True).get_epsilon_for_delta(delta))


def _compose(rounds: Summands, tilted: Tilted, step: float, outside: float) -> tuple[int, np.ndarray]:
    """The tilted masses of the sum, from the first loss (in steps) that the window holds."""
    from scipy import fft

    low, high = _window(rounds, tilted, outside)
    low, high = math.floor(low / step), math.ceil(high / step)
    length = fft.next_fast_len(max([len(kind.logs) for kind, _ in rounds] + [high - low + 1]), real=True)
    if length > LONGEST:
        raise DriftError
    product, start = np.ones(1), 0
    for kind, n in rounds:
        product = product * fft.rfft(_tilted_masses(kind, tilted.order)[0], length) ** n
        start += n * kind.first
    masses = np.roll(fft.irfft(product, length), (start - low) % length)[: high - low + 1]
    if abs(masses.sum() - 1) > MASS_DRIFT:
        raise DriftError
    return low, np.maximum(masses, 0.0)


def _window(rounds: Summands, tilted: Tilted, outside: float) -> tuple[float, float]:
    """The lowest and highest loss of the sum; beyond lies a tilted mass of at most `outside` (Chernoff's bound)."""
    spread = math.log(2 / outside)
    least = sum(n * float(kind.losses[0]) for kind, n in rounds)
    most = sum(n * float(kind.losses[-1]) for kind, n in rounds)
    normal = math.sqrt(2 * spread) / max(tilted.deviation, 1e-300)  # the best order, were the sum normal
    widest = max(float(kind.losses[-1] - kind.losses[0]) for kind, _ in rounds)
    for more in np.geomspace(min(normal / 2, 4 / widest), 2 * normal, 8):
        above, below = (
            sum(n * _tilted_masses(kind, tilted.order + way)[1] for kind, n in rounds) - tilted.log_mass
            for way in (more, -more)
        )
        least, most = max(least, -(below + spread) / more), min(most, (above + spread) / more)
    return least, most


def _tilt_for(rounds: Summands, log_delta: float) -> Tilted:
    """Of the order at which the mean is about ε: Chernoff's bound of the mass above it; δ counts 1/(1+θ) of that."""

    def excess(order: float) -> float:
        tilted = _tilt(rounds, order)
        return tilted.log_mass - order * tilted.mean - log_delta - math.log1p(order)  # falls as the order grows

    low = high = math.sqrt(-2 * log_delta) / max(_tilt(rounds, 0.0).deviation, 1e-300)
    while excess(low) < 0:
        low, high = low / 2, low
    while excess(high) > 0:
        low, high = high, high * 2
    while high > 1.1 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return _tilt(rounds, TILT * low)


def _tilt(rounds: Summands, order: float) -> Tilted:
    log_mass = mean = variance = 0.0
    for kind, n in rounds:
        masses, log_sum = _tilted_masses(kind, order)
        middle = float(np.sum(masses * kind.losses))  # not a dot product: its threads cost more than they save
        log_mass += n * log_sum
        mean += n * middle
        variance += n * float(np.sum(masses * np.square(kind.losses - middle)))
    return Tilted(order, log_mass, mean, math.sqrt(variance))


def _tilted_masses(kind: Losses, order: float) -> tuple[np.ndarray, float]:
    """One round's masses weighed by e^(order·loss), scaled to a sum of 1, and the logarithm of the sum they had."""
    masses = kind.logs + order * kind.losses
    top = float(masses.max())
    masses -= top
    np.exp(masses, out=masses)
    total = float(masses.sum())
    masses /= total
    return masses, top + math.log(total)
