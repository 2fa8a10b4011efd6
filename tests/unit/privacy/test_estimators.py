from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from examples import examples
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator, TrueAverage, user_weight
from sottovoce_evidence.errors import SottoError

S = 2.0
# A user: a weight in [0, 1] and an update of norm at most S (two dimensions are enough to differ in direction).
users = st.tuples(st.floats(0, 1), st.floats(0, S), st.floats(0, 2 * math.pi))


def value(estimator, cohort):
    total = sum((w * r * np.array([math.cos(a), math.sin(a)]) for w, r, a in cohort), np.zeros(2))
    weight = sum((w for w, _, _ in cohort), 0.0)
    return np.asarray(estimator.estimate(jnp.asarray(total), jnp.asarray(weight)), float)


@pytest.mark.parametrize("qw", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("kind", [FixedDenominator, ClippedDenominator])
@given(cohort=st.lists(users, max_size=8), newcomer=users)
@example(cohort=[(1.0, S, 0.0)], newcomer=(1.0, S, math.pi))  # the worst there is, which chance may not find
@examples(150)
def test_one_user_moves_an_estimate_by_at_most_its_sensitivity(kind, qw, cohort, newcomer):
    estimator = kind(qw)
    moved = np.linalg.norm(value(estimator, [*cohort, newcomer]) - value(estimator, cohort))
    assert moved <= estimator.sensitivity(S) * (1 + 1e-5) + 1e-6


def test_the_sensitivity_of_the_fixed_denominator_is_attained():
    estimator = FixedDenominator(4.0)
    moved = np.linalg.norm(value(estimator, [(1.0, S, 0.0)]) - value(estimator, []))
    assert moved == pytest.approx(estimator.sensitivity(S))


@pytest.mark.parametrize("qw", [1.0, 3.0, 7.0])
def test_the_sensitivity_of_the_clipped_denominator_is_attained(qw):
    estimator = ClippedDenominator(qw)
    crowd = [(1.0, S, 0.0)] * int(qw)  # exactly qW_min of weight, all pulling one way
    moved = np.linalg.norm(value(estimator, [*crowd, (1.0, S, math.pi)]) - value(estimator, crowd))
    assert moved == pytest.approx(estimator.sensitivity(S), rel=1e-6)
    assert estimator.sensitivity(S) == pytest.approx(2 * S / (1 + qw))


def test_weights_above_one_would_break_the_sensitivity():
    estimator = FixedDenominator(4.0)
    moved = np.linalg.norm(value(estimator, [(1.5, S, 0.0)]) - value(estimator, []))
    assert moved > estimator.sensitivity(S)


def test_the_fixed_denominator_does_not_look_at_the_cohort():
    estimator = FixedDenominator(10.0)
    one, many = (float(estimator.estimate(jnp.array(3.0), jnp.array(w))) for w in (1.0, 500.0))
    assert one == many == pytest.approx(0.3)


def test_the_clipped_denominator_is_the_true_average_of_a_large_cohort():
    assert float(ClippedDenominator(2.0).estimate(jnp.array(12.0), jnp.array(6.0))) == 2.0
    assert float(ClippedDenominator(2.0).estimate(jnp.array(1.0), jnp.array(0.5))) == 0.5


def test_the_true_average_has_no_bounded_sensitivity():
    assert TrueAverage().sensitivity(S) == math.inf
    assert float(TrueAverage().estimate(jnp.array(0.0), jnp.array(0.0))) == 0.0  # an empty cohort is not NaN


def test_weights_are_capped_at_one():
    np.testing.assert_allclose(user_weight(jnp.array([0, 40, 160, 1600]), 160.0), [0, 0.25, 1, 1])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_denominator_must_be_positive(bad):
    for kind in (FixedDenominator, ClippedDenominator):
        with pytest.raises(SottoError, match="must be from 1e-6 to 1e12"):
            kind(bad)
