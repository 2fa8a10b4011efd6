"""Strategy matrices: how the noise of a run's rounds is correlated, and how far one user moves the whole run.

Round t releases x_t + w_t with w = C⁻¹ m. The m_t are independent Gaussians and C, the strategy matrix, is lower
triangular. So the run is as private as C x + m: one user moves it by at most the sensitivity of C, the largest ‖C u‖
over the rounds that the user may join, where u is 1 in those rounds. No entry of any matrix here is negative, so ‖C u‖
is largest when a user moves all those rounds in one direction, as far as the clip allows.

Rounds are numbered from 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import numpy as np

from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import Facts, Json

_UNIT = 2.0**-52


@dataclass(frozen=True)
class Participation(Facts):
    """Which rounds of a run one user may join."""

    rounds: int  # n: planned
    min_separation: int  # b: any two rounds of one user are at least so far apart; 1 allows consecutive rounds
    participations: int  # k: at most so many rounds

    def __post_init__(self) -> None:
        for name in ("rounds", "min_separation", "participations"):
            value = getattr(self, name)
            if value != int(value) or value < 1:
                raise SettingError(f"{{{name}}} must be a whole number of 1 or more", **{name: value})

    @property
    def most(self) -> int:
        """How many rounds one user can join: k, or fewer where the run has no room for k."""
        return min(self.participations, -(-self.rounds // self.min_separation))


@dataclass(frozen=True)
class StrategyMatrix(Facts, ABC):
    """C of a run of any length. A subclass is a frozen dataclass of plain values, and is listed in `MATRICES`.

    It is a lower triangular Toeplitz matrix, whose coefficients are 1 first, not negative, and never increase. For
    these no rounds are worse than 1, 1 + b, 1 + 2b, ... (Kalinin and Lampert 2024; McMahan et al. 2024). The first t
    rounds of a run have the first t rows and columns of C, so every method also answers for a run that stops early.
    """

    kind: ClassVar[str]  # its name in a recipe and in a ledger

    @abstractmethod
    def coefficients(self, rounds: int) -> np.ndarray:
        """The first column of C."""

    @abstractmethod
    def errors(self, rounds: int) -> np.ndarray:
        """The first column of A C⁻¹, where A takes prefix sums."""

    @abstractmethod
    def buffers(self, rounds: int) -> int:
        """How many vectors of the model's size the noise keeps from round to round, at most."""

    def sensitivity(self, participation: Participation) -> float:
        """The largest ‖C u‖ of one user over the run, in units of what one user moves one round.

        Guarantee: an upper bound. It is exact but for the rounding of floating point.
        """
        return _sensitivity(self, participation)

    def norm(self, joined: Sequence[int] | np.ndarray, rounds: int) -> float:
        """‖C u‖ of a user who joins these rounds of the first `rounds`."""
        column, moved = self.coefficients(rounds), np.zeros(rounds)
        for first in _rows(joined, rounds):
            moved[first:] += column[: rounds - first]
        return _upwards(math.sqrt(float(np.sum(np.square(moved)))), rounds + len(joined))

    def prefix_error(self, rounds: int) -> float:
        """The root mean square error of the sums over rounds 1 to t, over all t, when each m_t has a deviation of 1."""
        return math.sqrt(float(np.mean(np.cumsum(np.square(self.errors(rounds))))))

    def to_json(self) -> Json:
        """Plain values: `matrix_from_json` reads them."""
        return {"noise": self.kind, **super().to_json()}


@dataclass(frozen=True)
class Identity(StrategyMatrix):
    """Independent noise."""

    kind = "independent"

    def coefficients(self, rounds: int) -> np.ndarray:
        return np.concatenate([[1.0], np.zeros(rounds - 1)])

    def errors(self, rounds: int) -> np.ndarray:
        return np.ones(rounds)

    def sensitivity(self, participation: Participation) -> float:
        return math.sqrt(participation.most)

    def prefix_error(self, rounds: int) -> float:
        return math.sqrt((rounds + 1) / 2)

    def buffers(self, rounds: int) -> int:
        return 0


@dataclass(frozen=True)
class Banded(StrategyMatrix):
    """Coefficients that are 0 from some round on (Choquette-Choo et al. 2023)."""

    kind = "banded"

    bands: tuple[float, ...]  # c_0 = 1, c_1, ...

    def __post_init__(self) -> None:
        if self.bands[:1] != (1,) or not all(0 <= after <= before for before, after in pairwise(self.bands)):
            raise SottoError(
                "the first coefficient of a strategy matrix must be 1, and the others must not be negative and must "
                "never increase: otherwise the sensitivity is not known"
            )

    def coefficients(self, rounds: int) -> np.ndarray:
        column = np.zeros(rounds)
        given = self.bands[:rounds]
        column[: len(given)] = given
        return column

    def errors(self, rounds: int) -> np.ndarray:
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], np.array(self.bands[:rounds]), np.ones(rounds)))

    def buffers(self, rounds: int) -> int:
        return min(len(self.bands), rounds) - 1


@dataclass(frozen=True)
class Blt(StrategyMatrix):
    """Buffered linear Toeplitz: c_0 = 1, c_j = Σ_i scales_i · decays_i^(j-1) (McMahan et al. 2024)."""

    kind = "blt"

    scales: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.scales or len(self.scales) != len(self.decays):
            raise SottoError(
                f"a BLT needs as many scales as decays, one or more; it has {len(self.scales)} and {len(self.decays)}"
            )
        # With these the coefficients are not negative and never increase.
        fits = all(scale >= 0 for scale in self.scales) and all(0 <= decay <= 1 for decay in self.decays)
        if not (fits and math.fsum(self.scales) <= 1):
            raise SottoError(
                "the scales of a BLT must not be negative nor add up to more than 1, and its decays must lie in [0, 1]:"
                " otherwise the sensitivity is not known"
            )

    def coefficients(self, rounds: int) -> np.ndarray:
        powers = np.power(np.array(self.decays)[:, None], np.arange(rounds - 1))
        column = np.concatenate([[1.0], np.sum(np.array(self.scales)[:, None] * powers, axis=0)])
        return np.minimum.accumulate(column)  # rounding may lift the last bit of a coefficient

    def errors(self, rounds: int) -> np.ndarray:
        scales, decays = np.array(self.scales), np.array(self.decays)
        state, column = np.zeros(len(scales)), np.empty(rounds)
        for t in range(rounds):
            column[t] = 1 - scales @ state
            state = decays * state + column[t]
        return column

    def buffers(self, rounds: int) -> int:
        return len(self.scales)


MATRICES: dict[str, type[StrategyMatrix]] = {matrix.kind: matrix for matrix in (Identity, Banded, Blt)}


def matrix_from_json(values: Json) -> StrategyMatrix:
    """The matrix that `to_json` wrote, alone or among other values."""
    try:
        return MATRICES[values["noise"]].from_json(values)
    except (TypeError, ValueError, KeyError) as error:
        raise SottoError(f"a strategy matrix noise={values.get('noise')!a:.80} cannot be read: {error}") from error


def realised_sensitivity(matrix: StrategyMatrix, patterns: Iterable[Sequence[int]], rounds: int) -> float:
    """The largest ‖C u‖ of users who joined these rounds, of a run in which `rounds` rounds were done.

    Each pattern lists the rounds of one user or more, numbered from 1. 0 when nobody joined.
    """
    return max((matrix.norm(joined, rounds) for joined in patterns), default=0.0)


def worst_rounds(matrix: StrategyMatrix, joined: np.ndarray, rounds: int) -> tuple[int, ...]:
    """Of users who joined these rounds, a row each and padded with zeros, the rounds of one with the largest ‖C u‖.

    For many users: only the rounds that this gives have to be measured by `norm`.
    """
    gram, squares = _gram(matrix, rounds), np.zeros(len(joined))
    for column in range(joined.shape[1]):
        squares += gram[joined[:, column, None], joined].sum(axis=1)
    worst = joined[np.argmax(squares)] if len(joined) else np.zeros(0, np.int64)
    return tuple(worst[worst > 0].tolist())


@lru_cache(maxsize=1)
def _gram(matrix: StrategyMatrix, rounds: int) -> np.ndarray:
    """CᵀC, by rounds from 1 on; row and column 0 are zero."""
    gram, places = np.zeros((rounds + 1, rounds + 1)), np.arange(rounds)
    column = matrix.coefficients(rounds)
    apart = places[:, None] - places
    dense = np.where(apart >= 0, column[np.maximum(apart, 0)], 0.0)
    gram[1:, 1:] = dense.T @ dense
    return gram


@lru_cache(maxsize=256)
def _sensitivity(matrix: StrategyMatrix, participation: Participation) -> float:
    """Of the rounds 1, 1 + b, 1 + 2b, ...: sums of every b-th coefficient, of k of them at most."""
    n, b, k = participation.rounds, participation.min_separation, participation.most
    b = min(b, n)
    column = np.pad(matrix.coefficients(n), (0, -n % b))
    sums = np.cumsum(column.reshape(-1, b), axis=0)
    moved = sums.copy()
    moved[k:] -= sums[:-k]
    moved += 2 * len(sums) * _UNIT * sums  # at least what rounding can take off a difference of sums
    return _upwards(math.sqrt(float(np.sum(np.square(moved.ravel()[:n])))), n)


def _upwards(value: float, terms: int) -> float:
    return value * (1 + 2 * terms * _UNIT)


def _rows(joined: Sequence[int] | np.ndarray, rounds: int) -> np.ndarray:
    rows = np.asarray(joined, dtype=np.int64) - 1
    if len(rows) and not (rows.min() >= 0 and rows.max() < rounds and len(np.unique(rows)) == len(rows)):
        raise SottoError(f"the rounds that a user joined must be different numbers from 1 to {rounds}")
    return rows
