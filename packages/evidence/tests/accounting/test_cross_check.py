"""dp-accounting's own PLD accountant agrees with ours, or says that it has no answer."""

from __future__ import annotations

import math

import pytest

from sottovoce_evidence.accounting import (
    CorrelatedGaussian,
    Covered,
    GaussianRelease,
    NonPrivate,
    SampledExamples,
    SampledGaussian,
    epsilon,
)
from sottovoce_evidence.accounting.cross_check import dp_accounting_epsilon
from sottovoce_evidence.accounting.events import ADDED
from sottovoce_evidence.accounting.matrices import Banded, Participation

ROUND = SampledGaussian(1.2, "poisson", 0.25)
TURN = SampledGaussian(4.0, "fixed", 1.0, cohort=1, users=1)


@pytest.mark.parametrize(
    "spent",
    [
        [(ROUND, 6), (GaussianRelease(2.0, 1e-6), 1)],
        [(TURN, 3), (Covered(4.0), 5)],
        [(CorrelatedGaussian(0.8, Banded((1.0, 0.5)), Participation(20, 5, 3)), 1), (Covered(0.8, ADDED), 19)],
        [(SampledExamples(4.0, 0.05, 6), 12), (ROUND, 2)],
        [(SampledExamples(9.0, 1.0, 6), 2)],
    ],
    ids=["sampled, with a histogram", "in turn", "correlated", "examples", "all examples"],
)
def test_it_agrees_with_ours(spent):
    assert dp_accounting_epsilon(spent, 1e-4) == pytest.approx(epsilon(spent, 1e-4), rel=0.005)


@pytest.mark.parametrize(
    ("spent", "delta", "theirs"),
    [
        ([(SampledGaussian(1.0, "poisson", 0.01), 1000)], 1e-6, 3.2142),
        ([(ROUND, 6), (GaussianRelease(2.0, 1e-6), 1), (TURN, 3)], 1e-4, None),
        ([(CorrelatedGaussian(0.8, Banded((1.0, 0.5)), Participation(20, 5, 3)), 1)], 1e-4, None),
    ],
    ids=["sampled", "of three kinds", "correlated"],
)
def test_it_agrees_with_ours_for_one_user_replaced(spent, delta, theirs):
    found = dp_accounting_epsilon(spent, delta, replaced=True)
    assert found == pytest.approx(epsilon(spent, delta, replaced=True), rel=0.005)
    assert theirs is None or found == pytest.approx(theirs, rel=0.003)


def test_without_an_answer_it_is_none_and_without_protection_infinite():
    assert dp_accounting_epsilon([(SampledGaussian(3.0, "fixed", 0.1, cohort=10, users=100), 2)], 1e-4) is None
    assert dp_accounting_epsilon([(ROUND, 10**6)], 1e-4) is None
    assert dp_accounting_epsilon([(SampledExamples(4.0, 0.05, 6), 12)], 1e-4, replaced=True) is None
    assert dp_accounting_epsilon([(SampledGaussian(1e-3, "poisson", 1e-9), 1)], 1e-4) is None  # too large
    assert dp_accounting_epsilon([(SampledExamples(9.0, 0.1, 101), 1)], 1e-4) is None
    assert dp_accounting_epsilon([(ROUND, 1), (NonPrivate(), 1)], 1e-4) == math.inf
    assert dp_accounting_epsilon([], 1e-4) == 0
