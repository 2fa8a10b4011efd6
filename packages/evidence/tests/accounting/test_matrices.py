"""Strategy matrices: their sensitivity and error against dense matrices and every allowed pattern of rounds."""

from __future__ import annotations

import json
import math
from itertools import combinations, pairwise

import numpy as np
import pytest

from sottovoce_evidence.accounting.matrices import (
    Banded,
    Blt,
    Identity,
    Participation,
    StrategyMatrix,
    matrix_from_json,
    realised_sensitivity,
    worst_rounds,
)
from sottovoce_evidence.errors import SottoError

ROOT = tuple(np.cumprod([1.0] + [(2 * j - 1) / (2 * j) for j in range(1, 8)]))  # of 1/√(1-x)
BLT = Blt((0.3, 0.2), (0.9, 0.5))
ALL = (Identity(), Banded(ROOT), Banded((1.0, 1.0, 0.5)), BLT)


def dense(matrix: StrategyMatrix, n: int) -> np.ndarray:
    """C, written down."""
    column = matrix.coefficients(n)
    return np.array([[column[t - s] if s <= t else 0.0 for s in range(n)] for t in range(n)])


def patterns(allowed: Participation) -> np.ndarray:
    """Every set of rounds that one user may join, a row of 0 and 1 each."""
    n, b, k = allowed.rounds, allowed.min_separation, allowed.participations
    found = []
    for number in range(1, min(k, n) + 1):
        for rounds in combinations(range(n), number):
            gaps = [after - before for before, after in pairwise(rounds)]
            if all(gap >= b for gap in gaps):
                found.append([t in rounds for t in range(n)])
    return np.array(found, dtype=float)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 8, 11, 12])
def test_the_sensitivity_is_that_of_the_worst_pattern(n):
    for b in range(1, 6):
        for k in range(1, 5):
            allowed = Participation(n, b, k)
            every = patterns(allowed)
            for matrix in ALL:
                worst = np.sqrt(np.square(dense(matrix, n) @ every.T).sum(axis=0).max())
                found = matrix.sensitivity(allowed)
                assert found == pytest.approx(worst, rel=1e-12), (matrix, allowed)
                assert found >= worst * (1 - 1e-15)


# By jax_privacy 2.0.0: toeplitz.minsep_sensitivity_squared(coefficients, b, k, n).
LIBRARY = [
    (ROOT, 20, 3, 4, 12.210469245910645),
    (ROOT, 64, 8, 8, 13.747034072875977),
    (ROOT, 50, 7, 3, 5.993028402328491),
    (ROOT, 500, 27, 19, 32.649205923080444),
    (ROOT, 2000, 313, 6, 10.310275554656982),
    ((1.0, 1.0, 1.0, 1.0, 1.0), 20, 3, 4, 32.0),
    ((1.0, 0.5, 0.5, 0.25, 0.1, 0.1, 0.0), 20, 3, 4, 8.43),
    ((1.0, 0.5, 0.5, 0.25, 0.1, 0.1, 0.0), 500, 27, 19, 30.0675),
]


@pytest.mark.parametrize(("coefficients", "n", "b", "k", "squared"), LIBRARY)
def test_the_sensitivity_is_that_of_jax_privacy(coefficients, n, b, k, squared):
    assert Banded(coefficients).sensitivity(Participation(n, b, k)) ** 2 == pytest.approx(squared, rel=1e-11)


@pytest.mark.slow
def test_the_sensitivity_is_that_of_jax_privacy_for_longer_matrices():
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    import jax

    with jax.enable_x64(True):
        for n, b, k in [(100, 7, 5), (333, 10, 34), (1000, 1, 17), (2052, 342, 6)]:
            for matrix in (BLT, Banded(ROOT)):
                theirs = toeplitz.minsep_sensitivity_squared(matrix.coefficients(n), b, k, n)
                assert matrix.sensitivity(Participation(n, b, k)) ** 2 == pytest.approx(float(theirs), rel=1e-10)


@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_the_error_of_prefix_sums_is_that_of_dense_matrices(n):
    sums = np.tril(np.ones((n, n)))
    for matrix in (Identity(), Banded(ROOT), BLT):
        rows = np.square(sums @ np.linalg.inv(dense(matrix, n))).sum(axis=1)
        assert matrix.prefix_error(n) == pytest.approx(math.sqrt(rows.mean()), rel=1e-12)


def test_a_known_error():
    assert Identity().prefix_error(3) == pytest.approx(math.sqrt(2))  # of 1, 2 and 3


@pytest.mark.parametrize("matrix", ALL)
def test_the_sensitivity_never_falls_with_rounds_nor_participations_nor_rises_with_separation(matrix):
    def at(n: int, b: int, k: int) -> float:
        return matrix.sensitivity(Participation(n, b, k))

    for n, b, k in [(30, 4, 3), (57, 5, 6), (64, 9, 7), (100, 3, 20)]:
        assert at(n, b, k) <= at(n + 1, b, k) <= at(2 * n, b, k)
        assert at(n, b, k) <= at(n, b, k + 1)
        assert at(n, b + 1, k) <= at(n, b, k)


def test_a_run_in_turn_has_room_for_as_many_participations():
    assert Participation(500, 27, 10**6).most == 19
    assert Participation(20, 27, 5).most == 1
    assert Identity().sensitivity(Participation(500, 27, 19)) == pytest.approx(math.sqrt(19))


def test_what_was_realised_is_at_most_what_was_planned_and_exact():
    n, rng = 40, np.random.default_rng(5)
    joined = [sorted(rng.choice(8, size=rng.integers(1, 5), replace=False) * 5 + 1) for _ in range(30)]
    for matrix in ALL:
        planned = matrix.sensitivity(Participation(n, 5, 4))
        written = dense(matrix, n)
        worst = max(np.linalg.norm(written[:, np.array(rounds) - 1].sum(axis=1)) for rounds in joined)
        assert realised_sensitivity(matrix, joined, n) == pytest.approx(worst)
        assert realised_sensitivity(matrix, joined, n) <= planned * (1 + 1e-12)
        assert realised_sensitivity(matrix, [], n) == 0
        with pytest.raises(SottoError, match="from 1 to 40"):
            realised_sensitivity(matrix, [(0, 5)], n)


@pytest.mark.parametrize("coefficients", [(), (0.5,), (1.0, 1.1), (1.0, 0.2, 0.3), (1.0, -0.1), (1.0, math.nan)])
def test_coefficients_that_increase_or_are_negative_are_refused(coefficients):
    with pytest.raises(SottoError, match="coefficient"):
        Banded(coefficients)


@pytest.mark.parametrize(
    ("scales", "decays"),
    [((), ()), ((0.5,), (0.5, 0.1)), ((0.6, 0.5), (0.9, 0.8)), ((-0.1,), (0.5,)), ((0.1,), (1.1,)), ((0.1,), (-0.5,))],
)
def test_a_blt_whose_coefficients_may_increase_is_refused(scales, decays):
    with pytest.raises(SottoError, match="BLT"):
        Blt(scales, decays)


def test_the_coefficients_of_a_blt():
    assert BLT.coefficients(4) == pytest.approx([1, 0.5, 0.37, 0.3 * 0.81 + 0.2 * 0.25])
    assert Blt((1.0,), (1.0,)).coefficients(3).tolist() == [1, 1, 1]


@pytest.mark.parametrize("values", [(0, 1, 1), (5, 0, 1), (5, 1, 0), (5, 1.5, 1)])
def test_a_participation_of_nothing_is_refused(values):
    with pytest.raises(SottoError, match="whole number"):
        Participation(*values)


def test_matrices_survive_json():
    for matrix in ALL:
        assert matrix_from_json(json.loads(json.dumps(matrix.to_json()))) == matrix
    for data in ({"noise": "cosine"}, {}, {"noise": "banded"}, {"noise": "blt", "scales": [0.1], "decays": ["x"]}):
        with pytest.raises(SottoError, match=r"noise=|cannot be read"):
            matrix_from_json(data)


def test_what_the_noise_keeps():
    assert [matrix.buffers(100) for matrix in ALL] == [0, 7, 2, 2]
    assert Banded(ROOT).buffers(3) == 2


@pytest.mark.parametrize("matrix", [Identity(), Banded((1.0, 0.6, 0.2)), Blt((0.3, 0.2), (0.9, 0.4))], ids=str)
def test_the_worst_of_many_users_is_the_one_of_the_largest_norm(matrix):
    """Among random rounds of random users, also of a run that stopped early; rows are padded with zeros."""
    generator = np.random.default_rng(4)
    for rounds in (1, 6, 8, 21):
        joined = np.sort(generator.integers(0, 2, (200, rounds)) * np.arange(1, rounds + 1), axis=1)
        patterns = [row[row > 0] for row in joined]
        found = worst_rounds(matrix, joined, rounds)
        assert any(list(found) == row.tolist() for row in patterns)
        assert matrix.norm(found, rounds) == pytest.approx(realised_sensitivity(matrix, patterns, rounds))
    assert worst_rounds(matrix, np.zeros((0, 3), int), 4) == ()
