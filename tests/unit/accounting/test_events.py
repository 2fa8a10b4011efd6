"""What a ledger keeps: events survive JSON, and say what they cost."""

from __future__ import annotations

import json
import math

import pytest

from sottovoce.accounting import Covered, NonPrivate, SampledGaussian, ThresholdedHistogram, event_from_json
from sottovoce.accounting.events import KINDS
from sottovoce.errors import SottoError


def poisson(z: float, q: float) -> SampledGaussian:
    return SampledGaussian(z, "poisson", q)


def fixed(z: float, cohort: int, users: int) -> SampledGaussian:
    return SampledGaussian(z, "fixed", cohort / users, cohort=cohort, users=users)


@pytest.mark.parametrize(
    "event",
    [poisson(1.0, 0.01), fixed(1.5, 10, 1000), ThresholdedHistogram(2.0, 1e-7), Covered(1.5), NonPrivate()],
)
def test_events_survive_json(event) -> None:
    assert event_from_json(json.loads(json.dumps(event.to_json()))) == event


def test_relations() -> None:
    assert poisson(1.0, 0.01).relation == "add-or-remove-one-user"
    assert fixed(1.0, 10, 1000).relation == "replace-one-user"


@pytest.mark.parametrize("data", [{"kind": "laplace"}, {}, {"kind": "sampled-gaussian", "sigma": 1}])
def test_unknown_events_are_refused(data) -> None:
    with pytest.raises(SottoError, match="event"):
        event_from_json(data)


def test_an_event_says_the_rounds_that_it_costs_as_much_as():
    assert poisson(1.0, 0.01).gaussians() == (poisson(1.0, 0.01),)
    assert ThresholdedHistogram(2.0, 1e-7).gaussians() == (poisson(2.0, 1.0),)  # a round that all users join
    assert Covered(1.5).gaussians() == NonPrivate().gaussians() == ()
    given_away = [event.giveaway for event in (poisson(1.0, 0.01), ThresholdedHistogram(2.0, 1e-7), Covered(1.5))]
    assert given_away == [0.0, 1e-7, 0.0]


def test_calibration_chooses_the_noise_of_rounds_alone():
    assert [name for name, kind in KINDS.items() if kind.scalable] == ["sampled-gaussian"]
    assert NonPrivate().noise_multiplier == 0


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_a_histogram_without_noise_is_refused(noise):
    with pytest.raises(SottoError, match="above 0"):
        ThresholdedHistogram(noise, 1e-7)
