from __future__ import annotations

import math

import pytest

from sottovoce.privacy.accounting import NonPrivate, SampledGaussian
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import FixedSize, Poisson


@pytest.mark.parametrize("clip", [FlatClip(15.0), PerLayerClip(15.0, 11)])
@pytest.mark.parametrize(
    ("estimator", "sensitivity"), [(FixedDenominator(100.0), 0.15), (ClippedDenominator(99.0), 0.3)]
)
def test_noise_is_the_multiplier_times_the_sensitivity(clip, estimator, sensitivity):
    mechanism = Mechanism(Poisson(0.01), clip, estimator, noise_multiplier=0.8)
    assert mechanism.sensitivity() == pytest.approx(sensitivity)
    assert mechanism.noise_std() == pytest.approx(0.8 * sensitivity)


def test_the_sampler_chooses_what_is_charged():
    poisson = Mechanism(Poisson(0.01), FlatClip(1.0), FixedDenominator(10.0), 1.5)
    assert poisson.event() == SampledGaussian(1.5, "poisson", 0.01)
    fixed = Mechanism(FixedSize(10, 1000), FlatClip(1.0), FixedDenominator(10.0), 1.5)
    assert fixed.event() == SampledGaussian(1.5, "fixed", 0.01, cohort=10, users=1000)
    assert fixed.event().relation == "replace-one-user"


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 0.0),
        Mechanism(Poisson(0.1), NoClip(), FixedDenominator(10.0), 1.0),
        Mechanism(Poisson(0.1), FlatClip(1.0), TrueAverage(), 1.0),
        Mechanism(Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 1.0, experiment_noise_std=0.5),
    ],
    ids=["no noise", "no clip", "true average", "experiment"],
)
def test_without_a_part_of_the_proof_nothing_is_promised(mechanism):
    assert mechanism.event() == NonPrivate()


def test_an_experiment_adds_the_noise_it_was_given():
    mechanism = Mechanism(Poisson(0.1), NoClip(), TrueAverage(), 0.0, experiment_noise_std=0.25)
    assert mechanism.noise_std() == 0.25
    assert math.isinf(mechanism.sensitivity())
