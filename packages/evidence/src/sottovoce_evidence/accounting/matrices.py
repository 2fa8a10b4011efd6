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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from sottovoce_evidence.errors import SettingError, SottoError

_UNIT = 2.0**-52
_MOST_WORK = 10**10  # in the search for the worst rounds of a tree: about ten seconds


@dataclass(frozen=True)
class Participation:
    """Which rounds of a run one user may join."""

    rounds: int  # n: planned
    min_separation: int  # b: any two rounds of one user are at least so far apart; 1 allows consecutive rounds
    participations: int  # k: at most so many rounds
    in_turn: bool = False  # exactly every b-th round, from any first round on

    def __post_init__(self) -> None:
        for name in ("rounds", "min_separation", "participations"):
            value = getattr(self, name)
            if value != int(value) or value < 1:
                raise SettingError(f"{{{name}}} must be a whole number of 1 or more", **{name: value})

    @property
    def most(self) -> int:
        """How many rounds one user can join: k, or fewer where the run has no room for k."""
        return min(self.participations, -(-self.rounds // self.min_separation))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class StrategyMatrix(ABC):
    """C of a run of any length. A subclass is a frozen dataclass of plain values, and is listed in `MATRICES`.

    The first t rounds of a run have the first t rows and columns of C (of a tree: the nodes that are complete by
    round t), so every method also answers for a run that stops early.
    """

    kind: ClassVar[str]  # its name in a recipe and in a ledger

    @abstractmethod
    def sensitivity(self, participation: Participation) -> float:
        """The largest ‖C u‖ of one user over the run, in units of what one user moves one round.

        Guarantee: an upper bound. It is exact but for the rounding of floating point.
        """

    @abstractmethod
    def norm(self, joined: Sequence[int] | np.ndarray, rounds: int) -> float:
        """‖C u‖ of a user who joins these rounds of the first `rounds`."""

    @abstractmethod
    def prefix_error(self, rounds: int) -> float:
        """The root mean square error of the sums over rounds 1 to t, over all t, when each m_t has a deviation of 1."""

    @abstractmethod
    def buffers(self, rounds: int) -> int:
        """How many vectors of the model's size the noise keeps from round to round, at most."""

    def coefficients(self, rounds: int) -> np.ndarray | None:
        """The first column of C where C is a Toeplitz matrix; None for the tree."""
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain values: `matrix_from_json` reads them."""
        values: Any = self  # a dataclass
        return {"noise": self.kind, **{name: list(value) for name, value in asdict(values).items()}}


class Toeplitz(StrategyMatrix):
    """A lower triangular Toeplitz matrix, whose coefficients are 1 first, not negative, and never increase.

    For these no rounds are worse than 1, 1 + b, 1 + 2b, ... (Kalinin and Lampert 2024; McMahan et al. 2024).
    """

    @abstractmethod
    def coefficients(self, rounds: int) -> np.ndarray: ...

    @abstractmethod
    def errors(self, rounds: int) -> np.ndarray:
        """The first column of A C⁻¹, where A takes prefix sums."""

    def sensitivity(self, participation: Participation) -> float:
        return _toeplitz_sensitivity(self, participation)

    def norm(self, joined: Sequence[int] | np.ndarray, rounds: int) -> float:
        column, moved = self.coefficients(rounds), np.zeros(rounds)
        for first in _rows(joined, rounds):
            moved[first:] += column[: rounds - first]
        return _upwards(math.sqrt(float(np.sum(np.square(moved)))), rounds + len(joined))

    def prefix_error(self, rounds: int) -> float:
        return math.sqrt(float(np.mean(np.cumsum(np.square(self.errors(rounds))))))


@dataclass(frozen=True)
class Identity(Toeplitz):
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
class Banded(Toeplitz):
    """Coefficients that are 0 from some round on (Choquette-Choo et al. 2023)."""

    kind = "banded"

    bands: tuple[float, ...]  # c_0 = 1, c_1, ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "bands", tuple(float(value) for value in self.bands))
        _check_falling(self.bands)

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
class Blt(Toeplitz):
    """Buffered linear Toeplitz: c_0 = 1, c_j = Σ_i scales_i · decays_i^(j-1) (McMahan et al. 2024)."""

    kind = "blt"

    scales: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("scales", "decays"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
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


@dataclass(frozen=True)
class Tree(StrategyMatrix):
    """A binary tree over the rounds: C has a row of ones for every node that is complete by the last round.

    Prefix sums are estimated from all nodes that lie within (Honaker 2015, online): a node of level l is combined from
    its own noise and its two halves, which leaves a variance of ν_l = 1 / (1 + 1 / 2ν_(l-1)), ν_0 = 1.
    """

    kind = "tree"

    def sensitivity(self, participation: Participation) -> float:
        return _tree_sensitivity(participation)

    def norm(self, joined: Sequence[int] | np.ndarray, rounds: int) -> float:
        return math.sqrt(_tree_square(_rows(joined, rounds), rounds))

    def prefix_error(self, rounds: int) -> float:
        times, variances = np.arange(1, rounds + 1), np.zeros(rounds)
        for level, variance in enumerate(self.variances(rounds)):
            variances += variance * (times >> level & 1)
        return math.sqrt(float(np.mean(variances)))

    @staticmethod
    def variances(rounds: int) -> list[float]:
        """ν_l of each level."""
        found = [1.0]
        while len(found) < rounds.bit_length():
            found.append(1 / (1 + 1 / (2 * found[-1])))
        return found

    def buffers(self, rounds: int) -> int:
        return rounds.bit_length()


MATRICES: dict[str, type[StrategyMatrix]] = {matrix.kind: matrix for matrix in (Identity, Tree, Banded, Blt)}


def matrix_from_json(data: Mapping[str, Any]) -> StrategyMatrix:
    """The matrix that `to_json` wrote."""
    values = dict(data)
    kind = values.pop("noise", None)
    if kind not in MATRICES:
        raise SottoError(f"noise={kind!r} must be one of {', '.join(MATRICES)}; was it written by a newer sottovoce?")
    try:
        return MATRICES[kind](**values)
    except (TypeError, ValueError) as error:
        raise SottoError(f"a strategy matrix {kind!r} cannot be read: {error}") from error


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
    if column is not None:
        apart = places[:, None] - places
        dense = np.where(apart >= 0, column[np.maximum(apart, 0)], 0.0)
        gram[1:, 1:] = dense.T @ dense
        return gram
    for level in range(rounds.bit_length()):
        nodes = places >> level
        gram[1:, 1:] += (nodes[:, None] == nodes) & (nodes < rounds >> level)
    return gram


# Toeplitz matrices


def _check_falling(bands: Sequence[float]) -> None:
    if not bands or bands[0] != 1:
        raise SottoError("the first coefficient of a strategy matrix must be 1")
    if not all(0 <= after <= before for before, after in pairwise(bands)):
        raise SottoError(
            "the coefficients of a strategy matrix must not be negative and must never increase: otherwise the "
            "sensitivity is not known"
        )


@lru_cache(maxsize=256)
def _toeplitz_sensitivity(matrix: Toeplitz, participation: Participation) -> float:
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


# The tree


def _tree_square(rows: np.ndarray, rounds: int) -> int:
    """The sum over all complete nodes of the square of how many of these rounds (from 0) they hold."""
    total = 0
    for level in range(rounds.bit_length()):
        nodes = rows >> level
        counts = np.bincount(nodes[nodes < rounds >> level])
        total += int(np.sum(np.square(counts)))
    return total


@lru_cache(maxsize=256)
def _tree_sensitivity(participation: Participation) -> float:
    n, b, k = participation.rounds, participation.min_separation, participation.most
    if participation.in_turn:
        firsts = range(max(min(n, b), n - (k - 1) * b))
        square = max(_tree_square(np.arange(first, n, b)[:k], n) for first in firsts)
    else:
        square = _WorstRounds(n, b, k).square()
    return math.sqrt(square)


_Ways = dict[int, np.ndarray]  # by the wait after it: the largest square for each number of rounds joined, or _NO
_NO = -(2**60)


class _WorstRounds:
    """The largest `_tree_square` of k of n rounds that are at least b apart, by a dynamic programme over the tree.

    The complete nodes are a forest of full trees, the largest first. What a subtree can add to the sum depends on what
    is outside only by the `wait`: how many of its first rounds are too close to the last round that was joined. It
    passes on a wait of its own. A subtree of at most b rounds holds one round at most; which one it is makes no
    difference to its nodes, so the first that is allowed, since it leaves the shortest wait. Of two ways to join as
    many rounds, one that has no larger square and no shorter wait is dropped.
    """

    def __init__(self, rounds: int, separation: int, most: int):
        self.rounds, self.separation, self.most = rounds, separation, most
        self.work = 0
        self.known: dict[tuple[int, int], _Ways] = {}

    def square(self) -> int:
        ways: _Ways = {0: np.zeros(1, np.int64)}
        for level in reversed(range(self.rounds.bit_length())):
            if self.rounds >> level & 1:
                ways = self.followed_by(ways, level)
        return max(int(squares.max()) for squares in ways.values())

    def tree(self, level: int, wait: int) -> _Ways:
        """The ways through a full tree of this level."""
        size = 2**level
        if (level, wait) not in self.known:
            if size <= self.separation:
                ways = {max(0, wait - size): np.zeros(1, np.int64)}
                if wait < size:
                    after = wait + self.separation - size
                    ways[after] = np.array([0 if after == max(0, wait - size) else _NO, level + 1])
            else:
                ways = self.followed_by(self.tree(level - 1, wait), level - 1)
                for squares in ways.values():
                    squares += np.arange(len(squares)) ** 2
            self.known[level, wait] = ways
        return self.known[level, wait]

    def followed_by(self, before: _Ways, level: int) -> _Ways:
        """The ways through what is before and then through a full tree of this level."""
        found: _Ways = {}
        for wait, first in before.items():
            for after, second in self.tree(level, wait).items():
                joint = self.added(first, second)
                if after in found:
                    longer, shorter = sorted((found[after], joint), key=len, reverse=True)
                    longer[: len(shorter)] = np.maximum(longer[: len(shorter)], shorter)
                    joint = longer
                found[after] = joint
        return _best(found)

    def added(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """For each total number of rounds, the largest sum of two squares."""
        first, second = sorted((first, second), key=len)
        self.work += len(first) * (len(second) + 2000)
        if self.work > _MOST_WORK:
            raise SottoError(
                f"the sensitivity of a tree with {self.rounds} rounds, separation {self.separation} and at most "
                f"{self.most} participations takes too long to find; use noise 'blt' or 'banded', or sampling 'in_turn'"
            )
        joint = np.full(min(len(first) + len(second) - 1, self.most + 1), _NO, np.int64)
        for number, square in enumerate(first):
            room = joint[number : number + len(second)]
            np.maximum(room, square + second[: len(room)], out=room)
        joint[joint < 0] = _NO
        return joint


def _best(ways: _Ways) -> _Ways:
    """Without what is no better than a way with a shorter wait."""
    kept, best = {}, np.full(max(len(squares) for squares in ways.values()), _NO, np.int64)
    for wait in sorted(ways):
        squares = ways[wait]
        worse = squares <= best[: len(squares)]
        best[: len(squares)] = np.maximum(best[: len(squares)], squares)
        squares[worse] = _NO
        if not worse.all():
            kept[wait] = squares
    return kept
