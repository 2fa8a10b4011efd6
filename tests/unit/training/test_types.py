from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from family import HalfFrozen
from sottovoce.local.update import FedAvg, UserResult
from sottovoce.models.contract import split
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm, CohortSum


def make(clip_norm: float) -> Algorithm:
    mechanism = Mechanism(Poisson(0.5), FlatClip(1.0), FixedDenominator(6.0), noise_multiplier=1.0)
    return Algorithm(mechanism, FedAvg(FlatClip(clip_norm), True), Server(optax.sgd(1.0)))


def test_users_who_clip_to_another_norm_than_the_mechanism_are_refused():
    make(1.0)
    with pytest.raises(ValueError, match="must clip as the mechanism does"):
        make(2.0)


def test_an_algorithm_joins_the_frozen_part_to_the_parameters():
    model = HalfFrozen.make(50)
    algorithm = make(1.0).with_frozen_of(model)
    joined = algorithm.model(split(model)[0])
    assert jax.tree.structure(joined) == jax.tree.structure(model)
    assert all(map(np.array_equal, jax.tree.leaves(joined), jax.tree.leaves(model)))


def a_sum(**more) -> CohortSum:
    """Five users in two blocks, the second padded; user 3 has diverged."""
    first = UserResult(None, np.ones(3), np.array([4.0, 0.0, 2.0]), np.array([[True], [False], [False]]), np.ones(3))
    norms, losses = np.array([np.inf, 1.0, 9.0]), np.array([np.nan, 3.0, 7.0])
    second = UserResult(None, np.ones(3), norms, np.array([[True, False], [False, False], [True, True]]), losses)
    places = [np.array([4, 0, 2]), np.array([3, 1])]
    return CohortSum(None, np.float64(4), None, [first, second], places, **more)


def test_columns_are_in_the_order_of_the_cohort_and_without_padding():
    summed = a_sum()
    assert summed.users == 5
    assert summed.norms.tolist() == [0.0, 1.0, 2.0, np.inf, 4.0]
    assert summed.clipped.tolist() == [False, False, False, True, True]
    np.testing.assert_array_equal(summed.losses, [1, 3, 1, np.nan, 1])


def test_diagnostics_leave_out_what_is_not_finite():
    facts = a_sum().diagnostics()
    assert (facts["users"], facts["weight"], facts["not_finite"]) == (5, 4.0, 1)
    assert facts["clipped_share"] == pytest.approx(2 / 5)
    assert facts["norm_quantiles"][1] == pytest.approx(1.5)
    assert facts["loss"] == pytest.approx(6 / 4)


def test_an_empty_cohort_has_diagnostics_too():
    facts = CohortSum(None, np.float64(0), None, [], []).diagnostics()
    assert (facts["users"], facts["not_finite"]) == (0, 0)
    assert facts["clipped_share"] is facts["norm_quantiles"] is facts["loss"] is None
