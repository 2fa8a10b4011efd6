"""Rényi differential privacy of sampled rounds, by dp-accounting: the "rdp" part of `accounting`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from sottovoce_evidence.accounting import selection
from sottovoce_evidence.accounting.events import BestOfRuns, SampledExamples, SampledGaussian

Round = SampledGaussian | BestOfRuns
_ROUNDING = 4e-15  # of one round's divergence
_MOST_POINTS = 100_000


def renyi_epsilon(counts: Mapping[Round, int], delta: float, replaced: bool = False) -> float:
    """ε by RDP when a user is added or removed, or `replaced`."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    divergences = np.sum([count * _divergences(event, replaced) for event, count in counts.items()], axis=0)
    return rdp.compute_epsilon(rdp.DEFAULT_RDP_ORDERS, divergences.tolist(), delta)[0]


@lru_cache(maxsize=256)
def _divergences(event: Round, replaced: bool) -> np.ndarray:
    """One round's Rényi divergence at each of dp-accounting's orders."""
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if isinstance(event, BestOfRuns):
        one = np.zeros(len(rdp.DEFAULT_RDP_ORDERS))
        for charged, count in event.run:
            for each in charged.gaussians():
                assert not isinstance(each, SampledExamples)  # which the event refuses
                one = one + count * _divergences(each, replaced)
        return selection.best_of(rdp.DEFAULT_RDP_ORDERS, one, event.expected_runs, event.distribution) + _ROUNDING
    if replaced and event.sampling == "poisson":
        q, z = event.user_rate, event.noise_multiplier
        of_removing = zip(rdp.DEFAULT_RDP_ORDERS, _divergences(event, False), strict=True)
        return np.array([_of_replacing(q, z, order, removing) for order, removing in of_removing]) + _ROUNDING
    z, relation = event.noise_multiplier, dp_accounting.NeighboringRelation
    if event.sampling == "poisson":
        charge = dp_accounting.PoissonSampledDpEvent(event.user_rate, dp_accounting.GaussianDpEvent(z))
        accountant = rdp.RdpAccountant(neighboring_relation=relation.ADD_OR_REMOVE_ONE)
    else:
        # Replacing a user moves a clipped sum twice as far as adding one. dp-accounting 0.6 does not double the
        # sensitivity here, although its PLD accountant does (google/differential-privacy#378): without z/2 the figure
        # would be 4.02 where 23.3 is true. `test_upstream_convention` turns red when that changes.
        assert event.users is not None
        assert event.cohort is not None
        charge = dp_accounting.SampledWithoutReplacementDpEvent(
            event.users, event.cohort, dp_accounting.GaussianDpEvent(z / 2)
        )
        accountant = rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE)
    # It warns of every order that did not converge, and leaves that order out: sound, and nothing to act on.
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        divergences = accountant.compose(charge).rdp
    except (ValueError, OverflowError):  # with so much noise that a chance rounds to 0; sampling only helps
        divergences = 0.5 * np.array(rdp.DEFAULT_RDP_ORDERS) / (z if event.sampling == "poisson" else z / 2) ** 2
    finally:
        log.setLevel(level)
    # Divergences near 0 are lost in rounding (about 1e-15), and for one that comes out negative dp-accounting answers
    # ε = 0. So they are rounded up.
    return np.maximum(divergences, 0.0) + _ROUNDING


def _of_replacing(q: float, z: float, order: float, removing: float) -> float:
    """The divergence of (1-q)·N(0) + q·N(1) from (1-q)·N(0) + q·N(-1), which dp-accounting does not have.

    By the trapezoid rule, whose error for a function that is smooth within a width w of the real line falls like
    e^(-2πw/step): here w = πz², and the sum is exact but for rounding. Where that takes too many points, the smaller of
    two bounds: that of `removing` a user, since the second population is at least 1-q of N(0); and by convexity.
    """
    with np.errstate(divide="ignore"):
        out, joined = np.log1p(-q), np.log(q)
    step = min(z, z * z) / 20
    points = int((2 * order + 2 + 80 * z) / step) + 2
    if points > _MOST_POINTS:
        return min(removing - out, np.logaddexp(out, joined + 2 * order * (order - 1) / z**2) / (order - 1))
    x = np.linspace(-1 - 40 * z, 2 * order + 1 + 40 * z, points)
    joined = joined - 0.5 / z**2
    here, there = np.logaddexp(out, joined + x / z**2), np.logaddexp(out, joined - x / z**2)
    logs = order * here + (1 - order) * there - 0.5 * (x / z) ** 2
    top = logs.max()
    total = top + np.log(np.exp(logs - top).sum() * (x[1] - x[0]) / (z * np.sqrt(2 * np.pi)))
    return max(0.0, float(total)) / (order - 1)
