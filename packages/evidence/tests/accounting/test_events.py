"""What a ledger keeps: events survive JSON, and say what they cost."""

from __future__ import annotations

import json
import math

import pytest

from sottovoce_evidence.accounting import (
    BestOfRuns,
    CorrelatedGaussian,
    Covered,
    Event,
    GaussianRelease,
    NonPrivate,
    SampledExamples,
    SampledGaussian,
    epsilon,
    relation_of,
)
from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.accounting.events import ADDED, HELD_OUT, KINDS, REPLACED
from sottovoce_evidence.accounting.gaussian import gaussian_epsilon
from sottovoce_evidence.accounting.matrices import Banded, Blt, Participation
from sottovoce_evidence.errors import SottoError


def poisson(z: float, q: float) -> SampledGaussian:
    return SampledGaussian(z, "poisson", q)


def fixed(z: float, cohort: int, users: int) -> SampledGaussian:
    return SampledGaussian(z, "fixed", cohort / users, cohort=cohort, users=users)


RUN = CorrelatedGaussian(0.8, Banded((1.0, 0.5, 0.375)), Participation(20, 5, 3))


@pytest.mark.parametrize(
    "event",
    [
        poisson(1.0, 0.01),
        fixed(1.5, 10, 1000),
        SampledExamples(2.5, 0.01, 8),
        GaussianRelease(2.0, 1e-7),
        GaussianRelease(3.0, people=HELD_OUT),
        BestOfRuns(10.0, "logarithmic", ((poisson(1.0, 0.01), 100), (RUN, 1))),
        Covered(1.5),
        Covered(1.5, ADDED),
        NonPrivate(),
        RUN,
        CorrelatedGaussian(0.8, Blt((0.3, 0.1), (0.9, 0.2)), Participation(20, 5, 3)),
    ],
)
def test_events_survive_json(event) -> None:
    assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_relations() -> None:
    assert poisson(1.0, 0.01).relation == "add-or-remove-one-user"
    assert fixed(1.0, 10, 1000).relation == "replace-one-user"


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "laplace"},
        {"kind": ["laplace"]},
        {},
        {"kind": "sampled-gaussian", "sigma": 1},
        {**NonPrivate().to_json(), "text": "of somebody"},
        {**poisson(1.0, 0.5).to_json(), "user_rate": "0.5"},
        {**GaussianRelease(1.0).to_json(), "people": "nobody"},
    ],
)
def test_unknown_events_are_refused(data) -> None:
    with pytest.raises(SottoError, match=r"event|people"):
        Event.from_json(data)


def test_an_event_says_the_rounds_that_it_costs_as_much_as():
    assert poisson(1.0, 0.01).gaussians() == (poisson(1.0, 0.01),)
    assert SampledExamples(1.0, 0.01, 8).gaussians() == (SampledExamples(1.0, 0.01, 8),)
    assert SampledExamples(1.0, 0.01, 1).gaussians() == (poisson(1.0, 0.01),)  # an example is a user
    assert GaussianRelease(2.0, 1e-7).gaussians() == (poisson(2.0, 1.0),)  # a round that all users join
    assert Covered(1.5).gaussians() == NonPrivate().gaussians() == ()
    given_away = [event.giveaway for event in (poisson(1.0, 0.01), GaussianRelease(2.0, 1e-7), Covered(1.5))]
    assert given_away == [0.0, 1e-7, 0.0]


def test_calibration_chooses_the_noise_of_rounds_alone():
    assert [name for name, kind in KINDS.items() if kind.scalable] == [
        "sampled-gaussian",
        "sampled-examples",
        "correlated-gaussian",
    ]
    assert NonPrivate().noise_multiplier == 0


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_a_release_without_noise_is_refused(noise):
    with pytest.raises(SottoError, match=r"noise.multiplier"):
        GaussianRelease(noise, 1e-7)


def test_a_run_of_correlated_noise_is_one_gaussian_for_one_user_added_or_removed():
    spent = [(RUN, 1), (Covered(0.8, ADDED), 19)]
    assert relation_of(event for event, _ in spent) == ADDED
    assert epsilon(spent, 1e-6) == pytest.approx(gaussian_epsilon(0.8, 1e-6), rel=1e-8)
    assert epsilon(spent, 1e-6, replaced=True) == pytest.approx(gaussian_epsilon(0.4, 1e-6), rel=1e-8)
    assert RUN.rho == 0.5 / 0.8**2
    assert RUN.sensitivity == RUN.matrix.sensitivity(RUN.participation) > math.sqrt(3)
    assert calibrate([(RUN, 1)], 8.0, 1e-5) * 0.8 == pytest.approx(0.5998, abs=1e-3)


def test_a_run_in_a_ledger_is_plain_and_flat():
    assert RUN.to_json() == {
        "kind": "correlated-gaussian",
        "noise_multiplier": 0.8,
        "sensitivity": RUN.sensitivity,
        "rounds": 20,
        "min_separation": 5,
        "participations": 3,
        "noise": "banded",
        "bands": [1.0, 0.5, 0.375],
    }
    assert Covered(1.5).to_json() == {"kind": "covered", "noise_multiplier": 1.5, "relation": REPLACED}


@pytest.mark.parametrize(
    "change",
    [{"sensitivity": 1.0}, {"participations": 4}, {"min_separation": 1}, {"bands": [1.0, 0.9]}, {"rounds": 10}],
)
def test_a_run_whose_sensitivity_does_not_follow_is_refused(change):
    with pytest.raises(SottoError, match="claims a sensitivity"):
        Event.from_json({**RUN.to_json(), **change})


def test_a_run_that_cannot_be_read_is_refused():
    for name in RUN.to_json():
        broken = {key: value for key, value in RUN.to_json().items() if key != name}
        with pytest.raises(SottoError, match=r"event|noise=|matrix"):
            Event.from_json(broken)
    with pytest.raises(SottoError, match="relation"):
        Covered(1.0, "anyone")
    assert Covered(1.0).relation == REPLACED


def test_sampled_examples_say_how_often_a_user_joins_and_who_may_account_for_them():
    event = SampledExamples(2.0, 0.1, 3)
    assert event.user_rate == pytest.approx(1 - 0.9**3)
    assert SampledExamples(2.0, 1.0, 3).user_rate == 1
    assert event.relation == ADDED
    for accountant in ("rdp", "moments"):
        with pytest.raises(SottoError, match="no accounting for sampled examples; use accountant='pld'"):
            epsilon([(event, 3)], 1e-5, accountant)
    with pytest.raises(SottoError, match="too many"):
        epsilon([(event, 10**7)], 1e-5)


@pytest.mark.parametrize(
    ("rate", "most", "match"),
    [
        (0.0, 3, "example_rate"),
        (1.5, 3, "example_rate"),
        (0.1, 0, "examples_per_user"),
        (0.1, 2.5, "examples_per_user"),
    ],
)
def test_sampled_examples_that_make_no_sense_are_refused(rate, most, match):
    with pytest.raises(SottoError, match=match):
        SampledExamples(1.0, rate, most)


def test_the_noise_for_sampled_examples_is_found():
    z = calibrate([(SampledExamples(1.0, 0.02, 5), 30)], 2.0, 1e-5)
    assert 1.99 < epsilon([(SampledExamples(z, 0.02, 5), 30)], 1e-5) <= 2.0


def test_a_person_in_several_silos_is_charged_for_all_of_them_together():
    """Above one silo alone. Where every silo draws them, as one user whom a round surely draws."""
    charged = epsilon([(SampledExamples(2 * 1.5, 0.05, 2), 40)], 1e-5)
    assert charged > 1.5 * epsilon([(poisson(3.0, 0.05), 40)], 1e-5)
    surely = epsilon([(SampledExamples(4 * 3.0, 1.0, 4), 10)], 1e-5)
    assert surely == pytest.approx(epsilon([(poisson(3.0, 1.0), 10)], 1e-5), rel=1e-9)
    with pytest.raises(SottoError, match="sampled examples"):
        epsilon([(SampledExamples(2 * 1.5, 0.05, 2), 40)], 1e-5, "rdp")
