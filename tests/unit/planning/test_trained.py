"""Noise and traffic of an adapter against those of the whole model."""

from __future__ import annotations

import math

import pytest

from sottovoce.planning.plan import make_plan
from sottovoce.planning.trained import Sizes, compare_parts

GIVEN = {"users": 10_000, "cohort": 100, "rounds": 10, "delta": 1e-6, "noise_multiplier": 1.0, "accountant": "rdp"}


def test_the_noise_of_a_coordinate_stays_and_its_length_shrinks_by_the_root():
    whole, adapter = compare_parts(Sizes(1_000_000, 10_000, 999_000), noise_std=0.02, clip_norm=2.0)
    assert whole.noise_std == adapter.noise_std == 0.02
    assert whole.noise_norm_over_clip == pytest.approx(0.02 * 1000 / 2)
    assert whole.noise_norm_over_clip / adapter.noise_norm_over_clip == pytest.approx(math.sqrt(100))
    assert (whole.bytes_a_round, whole.bytes_once) == (8_000_000, 0)
    assert (adapter.bytes_a_round, adapter.bytes_once) == (80_000, 3_996_000)
    assert compare_parts(Sizes(5, 2, 5), None, 2.0)[1].noise_norm_over_clip is None


def test_a_plan_of_an_adapter_counts_what_is_trained():
    plan = make_plan(**GIVEN, clip_norm=2.0, parameters=1_000_000, trained_parameters=10_000)
    alone = make_plan(**GIVEN, clip_norm=2.0, parameters=10_000)
    assert (plan.signal_to_noise, plan.bytes_per_device) == (alone.signal_to_noise, alone.bytes_per_device)
    assert plan.noise_std == alone.noise_std
    assert [part.parameters for part in plan.trained] == [1_000_000, 10_000]
    assert 1 / plan.trained[1].noise_norm_over_clip == pytest.approx(plan.signal_to_noise)
    assert alone.trained is None
    assert plan.to_json()["trained"][1]["bytes_once"] == 4_000_000
