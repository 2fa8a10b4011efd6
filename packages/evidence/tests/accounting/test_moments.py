"""The moments accountant against the integral that its sum stands for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.accounting.moments import ORDERS, moments_epsilon


def test_a_round_that_all_users_join_has_the_moments_of_a_gaussian():
    """α(λ) = λ(λ+1)/2z²."""
    z, delta, rounds = 3.0, 1e-5, 7
    wanted = min((rounds * order * (order + 1) / (2 * z**2) - math.log(delta)) / order for order in ORDERS)
    assert moments_epsilon({SampledGaussian(z, "poisson", 1.0): rounds}, delta) == pytest.approx(wanted)


@pytest.mark.parametrize(("q", "z", "order"), [(0.1, 1.5, 1), (0.3, 2.0, 4), (0.02, 1.0, 8)])
def test_a_moment_is_the_expected_power_of_the_likelihood_ratio(q, z, order):
    """α(λ) = ln E_{x ~ N(0)} (μ(x)/μ0(x))^(λ+1), with μ = (1-q)·N(0) + q·N(1)."""

    def integrand(x: float) -> float:
        ratio = 1 - q + q * math.exp((2 * x - 1) / (2 * z**2))
        return stats.norm.pdf(x, scale=z) * ratio ** (order + 1)

    moment = math.log(integrate.quad(integrand, -12 * z, order + 12 * z, limit=400)[0])
    wanted = (moment + math.log(1e5)) / order
    assert moments_epsilon({SampledGaussian(z, "poisson", q): 1}, 1e-5, [order]) == pytest.approx(wanted, rel=1e-6)


def test_rounds_add_up():
    one, other = SampledGaussian(1.0, "poisson", 0.01), SampledGaussian(2.0, "poisson", 0.1)
    alone = [moments_epsilon({event: 5}, 1e-5, [3]) - math.log(1e5) / 3 for event in (one, other)]
    assert moments_epsilon({one: 5, other: 5}, 1e-5, [3]) == pytest.approx(np.sum(alone) + math.log(1e5) / 3)
