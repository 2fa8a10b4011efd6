"""The privacy loss of many sampled-Gaussian rounds, composed numerically: the "pld" part of `accounting`.

dp-accounting makes the distribution of one round, pessimistic on a grid of losses, composes it and reads ε off. What it
leaves to its caller is here: how fine the grid is, how much of δ may go to cut tails and rounding, and whether the
result can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:  # importing it costs 1.5 s
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Rounds = Sequence[tuple[float, float, int]]  # user_rate, noise_multiplier, how many such rounds

STEP = 0.01  # of ε/√rounds. Measured: between 0.2 and 1 per mille above the true ε
TAIL = 1e-3  # the share of δ that cut tails may use: 0.00005 of ε
ROUNDING = 0.2  # the share of δ that rounding may use, 0.005 of ε, before the FFTs turn to extended precision
MOST_POINTS = 1_000_000  # in one round's grid (5 s). Beyond, the grid is coarser: still an upper bound, less tight
MASS_DRIFT = 0.01  # a composed mass further than this from 1 is not trusted


class DriftError(Exception):
    """Rounding errors have grown until a composed mass is no longer 1."""


class Grid(NamedTuple):
    """Losses are multiples of `step`, cut where one round's lie beyond with a chance of at most `cut`.

    `log_cut_high` is the (logarithmic) tail of the Gaussian at which that is so for the highest loss.
    """

    step: float
    cut: float
    log_cut_high: float


def find_grid(rounds: Rounds, delta: float, bound: float, enough: float = 0.0) -> tuple[Grid, float]:
    """A grid fine enough for these rounds, and their ε on it, starting from any upper bound of ε.

    The bound may be thousands of times too large. A grid made for it is coarse, so cheap, and its answer is a better
    bound: the search goes on until the two agree, or until ε is known to be below half of what is `enough`.
    """
    grid = _grid_for(rounds, delta, bound)
    answer = read_epsilon(rounds, delta, grid)
    while enough / 2 < answer < bound / 2:
        bound, coarser = answer, grid
        grid = _grid_for(rounds, delta, bound)
        try:
            answer = read_epsilon(rounds, delta, grid)
        except DriftError:  # too fine for floating point: the coarser answer is an upper bound all the same
            return coarser, bound
    return grid, answer


def read_epsilon(rounds: Rounds, delta: float, grid: Grid) -> float:
    """ε of these rounds at `delta`, the larger of the two directions."""
    return float(compose(rounds, delta, grid).get_epsilon_for_delta(delta))


def compose(rounds: Rounds, delta: float, grid: Grid) -> PrivacyLossDistribution:
    """The distribution of all rounds, both directions apart.

    Guarantee: the ε read off at `delta` is an upper bound; cut tails and rounding are counted as certain loss.
    """
    from dp_accounting.pld import privacy_loss_distribution

    total = sum(count for _, _, count in rounds)
    composed = None
    for user_rate, noise_multiplier, count in rounds:
        tail = TAIL * delta * count / total
        remove, add = (_repeat(pmf, count, tail, delta) for pmf in _one_round(user_rate, noise_multiplier, grid))
        many = privacy_loss_distribution.PrivacyLossDistribution(remove, add)
        composed = many if composed is None else composed.compose(many, tail_mass_truncation=tail)
    assert composed is not None
    for pmf in (composed._pmf_remove, composed._pmf_add):
        if abs(pmf.to_dense_pmf()._probs.sum() + pmf._infinity_mass - 1) > MASS_DRIFT:
            raise DriftError
    return composed


def _grid_for(rounds: Rounds, delta: float, epsilon: float) -> Grid:
    """Discretising spreads every round's loss by a step, so the sum by step·√rounds; a large ε also feels step²."""
    total = sum(count for _, _, count in rounds)
    cut = TAIL * delta / total
    high = min(_log_cut_high(user_rate, noise_multiplier, cut) for user_rate, noise_multiplier, _ in rounds)
    wanted = STEP * epsilon / math.sqrt(total) * min(1.0, math.sqrt(10 / epsilon))
    ranges = [_losses(user_rate, noise_multiplier, cut, high) for user_rate, noise_multiplier, _ in rounds]
    widest = max(highest - lowest for lowest, highest in ranges)
    # e^step is taken on the way, so a hopeless ε must not make it huge.
    return Grid(max(min(wanted, 1.0), widest / MOST_POINTS), cut, high)


def _log_cut_high(user_rate: float, noise_multiplier: float, cut: float) -> float:
    """Mostly 1/user_rate above `cut`, since only sampled users reach high losses: a grid several times shorter."""
    wide = min(-1.0, math.log(cut / user_rate))
    _, highest = _losses(user_rate, noise_multiplier, cut, wide)
    beyond = np.max(_gaussian(user_rate, noise_multiplier, wide).get_delta_for_epsilon(highest))
    return wide if beyond <= cut else math.log(cut)


def _losses(user_rate: float, noise_multiplier: float, cut: float, log_cut_high: float) -> tuple[float, float]:
    """The lowest and highest loss of one round that are kept, for a user removed."""
    lowest = _gaussian(user_rate, noise_multiplier, math.log(cut)).connect_dots_bounds().epsilon_lower
    highest = _gaussian(user_rate, noise_multiplier, log_cut_high).connect_dots_bounds().epsilon_upper
    assert lowest is not None
    assert highest is not None
    return lowest, highest


def _gaussian(user_rate: float, noise_multiplier: float, log_cut: float):
    from dp_accounting.pld import privacy_loss_mechanism as mechanism

    return mechanism.GaussianPrivacyLoss(
        noise_multiplier,
        sampling_prob=user_rate,
        log_mass_truncation_bound=log_cut,
        adjacency_type=mechanism.AdjacencyType.REMOVE,
    )


@lru_cache(maxsize=8)
def _one_round(user_rate: float, noise_multiplier: float, grid: Grid) -> tuple[DensePLDPmf, DensePLDPmf]:
    """One round's loss when a user is removed, and when one is added.

    A pair of distributions that dominates P against Q also dominates Q against P, so the second follows from the first:
    the loss changes sign and its mass is weighed by e^-loss. dp-accounting works it out afresh instead, from
    probabilities close to 1, and its rounding errors pass 100 % in 10^5 rounds.
    """
    from dp_accounting.pld import pld_pmf

    lowest, highest = _losses(user_rate, noise_multiplier, grid.cut, grid.log_cut_high)
    first, last = math.floor(lowest / grid.step), math.ceil(highest / grid.step)
    losses = np.arange(first, last + 1) * grid.step
    gaussian = _gaussian(user_rate, noise_multiplier, grid.log_cut_high)
    deltas = gaussian.get_delta_for_epsilon(losses)  # pyrefly: ignore[bad-argument-type]
    remove = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid.step, first, last, deltas).to_dense_pmf()
    if user_rate == 1:
        return remove, remove
    swapped = (remove._probs * np.exp(-losses))[::-1].copy()
    # Below the lowest loss kept lies at most `cut`: turned round, it is a loss beyond the highest.
    return remove, pld_pmf.DensePLDPmf(grid.step, -last, swapped, grid.cut, True)


def _repeat(pmf: DensePLDPmf, count: int, tail: float, delta: float) -> DensePLDPmf:
    """`count` rounds of one, by FFT.

    Rounding misplaces a mass of about one unit a round (measured: 0.8), anywhere up to the highest loss kept, where it
    adds to δ at most 1 - e^-loss of itself. That is charged; it matters from 10^5 rounds at δ below 10^-10.
    """
    from dp_accounting.pld import pld_pmf

    if count == 1:
        return pmf
    step = pmf._discretization
    for precision in (np.float64, np.longdouble):
        one = pld_pmf.DensePLDPmf(step, pmf._lower_loss, pmf._probs.astype(precision), pmf._infinity_mass, True)
        many = one.self_compose(count, tail_mass_truncation=tail)
        highest = (many._lower_loss + many.size) * step
        rounding = count * float(np.finfo(precision).eps) * -math.expm1(-max(0.0, highest))
        if rounding <= ROUNDING * delta:
            break
    lost = float(many._infinity_mass) + rounding
    return pld_pmf.DensePLDPmf(step, many._lower_loss, many._probs.astype(np.float64), lost, True)
