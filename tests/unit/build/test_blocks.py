"""The blocks of a recipe are built without jax."""

from __future__ import annotations

import pytest

from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity
from sottovoce_evidence.bounds import ClippedDenominator, FixedDenominator
from sottovoce_evidence.mechanism import device_noise_of, estimator_of, matrix_of, sampler_of, settings_of, tracking_of
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.sampling import InTurn, MinSeparation, Poisson

GOOD = Recipe().replace(privacy={"users": 1000, "cohort": 50.0, "noise_multiplier": 1.0}, run={"rounds": 20})


def test_each_sampler_gets_what_is_declared():
    assert sampler_of(GOOD) == Poisson(0.05)
    assert sampler_of(GOOD.replace(privacy={"sampling": "in_turn"})) == InTurn(50, 1000, 0)
    apart = GOOD.replace(privacy={"sampling": "min_separation", "min_separation": 5, "participations": 2})
    assert sampler_of(apart) == MinSeparation(50, 1000, 0, 5, 2)


def test_the_denominator_is_declared():
    assert estimator_of(GOOD.privacy) == FixedDenominator(50.0)
    least = GOOD.replace(privacy={"estimator": "clipped_denominator", "total_weight": 400.0})
    assert estimator_of(least.privacy) == ClippedDenominator(20.0)


def test_tracking_and_noise_of_devices_are_there_where_they_are_asked_for():
    assert tracking_of(GOOD.privacy) is None
    tracking = tracking_of(GOOD.replace(privacy={"adaptive_quantile": 0.5}).privacy)
    assert tracking is not None
    assert tracking.bit_noise == 2.5
    assert device_noise_of(GOOD, sampler_of(GOOD)) is None
    noised = GOOD.replace(federation={"noise": "devices", "survivors": 10, "colluding": 2, "participations": 3})
    found = device_noise_of(noised, sampler_of(noised))
    assert found is not None
    assert (found.honest, found.participations) == (8, 3)


@pytest.mark.parametrize("matrix", [Banded((1.0, 0.5)), Blt((0.5,), (0.9,)), Identity()])
def test_a_recipe_keeps_a_matrix(matrix):
    kept = settings_of(matrix) if isinstance(matrix, Banded | Blt) else {}
    assert matrix_of(GOOD.replace(privacy={"noise": matrix.kind, **kept}).privacy) == matrix
