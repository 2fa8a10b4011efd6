"""Rényi divergences of one round against closed forms; `test_pld.py` has the integral of replacing a user."""

from __future__ import annotations

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as rdp

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


def test_replacing_costs_more_than_removing_and_rounds_add_up():
    event = SampledGaussian(1.2, "poisson", 0.05)
    assert np.all(_divergences(event, True) >= _divergences(event, False))
    assert renyi_epsilon({event: 10}, 1e-5) < renyi_epsilon({event: 20}, 1e-5) < renyi_epsilon({event: 20}, 1e-5, True)
