"""Rényi divergences of one round against integrals and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from scipy import integrate, stats

from examples import first_of
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.accounting.rdp import _divergences, renyi_epsilon

ORDERS = np.array(rdp.DEFAULT_RDP_ORDERS)


def test_a_round_that_all_users_join_diverges_by_order_over_twice_the_square_of_the_noise():
    event = SampledGaussian(3.0, "poisson", 1.0)
    np.testing.assert_allclose(_divergences(event, False), ORDERS / (2 * 3.0**2), rtol=1e-9)
    # Replacing a user moves the sum twice as far.
    np.testing.assert_allclose(_divergences(event, True), 4 * ORDERS / (2 * 3.0**2), rtol=1e-6)
    known = SampledGaussian(3.0, "fixed", 1.0, cohort=1, users=1)  # a round that one is known to join
    np.testing.assert_allclose(_divergences(known, True), 4 * ORDERS / (2 * 3.0**2), rtol=1e-6)


@pytest.mark.parametrize(("q", "z", "order"), first_of([(0.1, 1.5, 2), (0.3, 2.0, 5), (0.5, 1.0, 3)]))
def test_replacing_a_user_diverges_as_the_integral_says(q, z, order):
    """Of (1-q)·N(0) + q·N(1) from (1-q)·N(0) + q·N(-1)."""

    def integrand(x: float) -> float:
        here, there = (
            (1 - q) * stats.norm.pdf(x, scale=z) + q * stats.norm.pdf(x, loc=mean, scale=z) for mean in (1.0, -1.0)
        )
        return here**order * there ** (1 - order)

    total = integrate.quad(integrand, -12 * z, 2 * order + 12 * z, limit=400)[0]
    found = _divergences(SampledGaussian(z, "poisson", q), True)[list(ORDERS).index(order)]
    assert found == pytest.approx(math.log(total) / (order - 1), rel=1e-6)


def test_replacing_costs_more_than_removing_and_rounds_add_up():
    event = SampledGaussian(1.2, "poisson", 0.05)
    assert np.all(_divergences(event, True) >= _divergences(event, False))
    assert renyi_epsilon({event: 10}, 1e-5) < renyi_epsilon({event: 20}, 1e-5) < renyi_epsilon({event: 20}, 1e-5, True)
