"""The noise for an ε: never too little, and hardly too much."""

from __future__ import annotations

from typing import Any

import pytest

from examples import first_of
from sottovoce_evidence.accounting import ACCOUNTANTS, GaussianRelease, NonPrivate, SampledGaussian, epsilon
from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.errors import SottoError


def poisson(z: float, q: float) -> SampledGaussian:
    return SampledGaussian(z, "poisson", q)


def fixed(z: float, cohort: int, users: int) -> SampledGaussian:
    return SampledGaussian(z, "fixed", cohort / users, cohort=cohort, users=users)


@pytest.mark.parametrize(("q", "rounds", "target"), first_of([(0.02, 300, 3.0), (0.001, 1000, 2.0)]))
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_answer_is_the_smallest_within_half_a_percent(accountant, q, rounds, target) -> None:
    z = calibrate([(poisson(1.0, q), rounds)], target, 1e-6, accountant)
    assert epsilon([(poisson(z, q), rounds)], 1e-6, accountant) <= target
    assert epsilon([(poisson(z * 0.995, q), rounds)], 1e-6, accountant) > target


@pytest.mark.parametrize("accountant", ["pld", "moments", pytest.param("rdp", marks=pytest.mark.slow)])
def test_a_common_factor_keeps_unequal_rounds_within_epsilon(accountant) -> None:
    planned = [(0.7, 0.01, 300), (1.0, 0.02, 100)]
    before = [(GaussianRelease(10.0, 1e-8), 1), (poisson(3.0, 0.01), 20)]

    def spent(factor: float) -> list[Any]:
        return [*before, *((poisson(factor * z, q), count) for z, q, count in planned)]

    factor = calibrate(spent(1.0)[2:], 2.0, 1e-6, accountant, before)
    assert factor == float(f"{factor:.4g}")
    assert epsilon(spent(factor), 1e-6, accountant) <= 2.0 < epsilon(spent(factor * 0.995), 1e-6, accountant)


@pytest.mark.parametrize(
    ("rounds", "target", "delta"),
    [
        ([(poisson(1.0, 5000 / 763_430), 5000)], 4.6, 1e-9),
        ([(poisson(1.0, 1e-5), 1)], 0.01, 1e-10),
        ([(poisson(1.0, 1.0), 10)], 1.0, 1e-6),
        ([(fixed(1.0, 100, 10_000), 500)], 3.0, 1e-6),
        pytest.param(
            [(poisson(0.5 + 0.1 * index, 0.01), 100) for index in range(10)], 2.0, 1e-6, marks=pytest.mark.slow
        ),
    ],
)
def test_calibrated_noise_never_exceeds_the_target(rounds, target, delta) -> None:
    factor = calibrate(rounds, target, delta)
    spent = [(SampledGaussian(**_fields(event, factor)), count) for event, count in rounds]
    assert 0.99 * target < epsilon(spent, delta) <= target


def _fields(event: SampledGaussian, factor: float) -> dict[str, Any]:
    fields = {key: value for key, value in event.to_json().items() if key != "kind"}
    return fields | {"noise_multiplier": factor * event.noise_multiplier}


def test_a_target_that_no_noise_reaches_is_an_error() -> None:
    rounds = [(poisson(1.0, 0.01), 100)]
    with pytest.raises(SottoError, match=r"before the rounds has ε = .*; raise epsilon"):
        calibrate(rounds, 0.5, 1e-6, before=[(poisson(1.0, 1.0), 1)])
    with pytest.raises(SottoError, match="ε = inf"):
        calibrate(rounds, 0.5, 1e-6, before=[(NonPrivate(), 1)])
    with pytest.raises(SottoError, match="must be above 1e-05"):
        calibrate(rounds, 0.5, 1e-6, before=[(GaussianRelease(10.0, 1e-5), 1)])
    with pytest.raises(SottoError, match="cannot be reached with accountant='rdp'"):
        calibrate(rounds, 0.001, 1e-9, "rdp")
