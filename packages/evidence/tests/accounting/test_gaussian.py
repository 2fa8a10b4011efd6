"""ε of one Gaussian, against figures in print, its own definition and dp-accounting."""

from __future__ import annotations

import math

import pytest

from sottovoce_evidence.accounting import SampledGaussian, calibrate, epsilon, epsilon_curve
from sottovoce_evidence.accounting.gaussian import gaussian_epsilon, zcdp_epsilon


@pytest.mark.parametrize(("rho", "expected", "printed"), [(0.15, 3.416, 3.42), (0.0144, 0.996, 0.994)])
def test_gboard_trained_with_banded_matrices(rho, expected, printed):
    """Spanish of Spain and Portuguese of Brazil, at δ = 1e-10 (0.994 comes from a ρ that is not rounded)."""
    found = gaussian_epsilon((2 * rho) ** -0.5, 1e-10)
    assert found == pytest.approx(expected, abs=5e-4)
    assert found == pytest.approx(printed, abs=5e-3)


def true_delta(z: float, epsilon: float) -> float:
    """Balle and Wang 2018, theorem 8, with many digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        half, moved = mpmath.mpf(1) / (2 * mpmath.mpf(z)), mpmath.mpf(epsilon) * mpmath.mpf(z)
        return mpmath.ncdf(half - moved) - mpmath.exp(epsilon) * mpmath.ncdf(-half - moved)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10, 1e-30])
@pytest.mark.parametrize("z", [0.05, 0.3, 0.79, 1.0, 4.0, 50.0, 3000.0])
def test_it_is_the_exact_value_rounded_up(z, delta):
    found = gaussian_epsilon(z, delta)
    assert true_delta(z, found) <= delta
    assert found == 0 or true_delta(z, found * (1 - 1e-6)) > delta


def test_so_much_noise_that_nothing_is_lost():
    assert gaussian_epsilon(1e6, 1e-5) == 0


@pytest.mark.parametrize("z", [0.2, 0.8, 3.0, 40.0])
def test_zcdp_is_above_the_exact_value_and_below_the_simple_conversion(z):
    rho, delta = 0.5 / z**2, 1e-6
    simple = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert gaussian_epsilon(z, delta) < zcdp_epsilon(rho, delta) < simple


def test_zcdp_against_renyi_by_dp_accounting():
    event = SampledGaussian(0.787, "poisson", 1.0)
    assert zcdp_epsilon(0.5 / 0.787**2, 1e-10) == pytest.approx(epsilon([(event, 1)], 1e-10, "rdp"), rel=2e-3)


def test_rounds_that_everyone_joins_are_exact():
    event = SampledGaussian(4.0, "poisson", 1.0)
    assert epsilon([(event, 16)], 1e-6) == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-8)
    assert epsilon([(event, 16)], 1e-6, replaced=True) == pytest.approx(gaussian_epsilon(0.5, 1e-6), rel=1e-8)
    assert epsilon_curve([(event, 16)], 1e-6)(4) == pytest.approx(gaussian_epsilon(2.0, 1e-6), rel=1e-8)
    assert calibrate([(event, 16)], gaussian_epsilon(1.0, 1e-6), 1e-6) == pytest.approx(1.0, abs=1e-3)
