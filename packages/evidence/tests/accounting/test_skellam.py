"""RDP of Skellam noise: its terms, its bound on the exact divergence, sampling and replacing."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import ive, logsumexp

from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledExamples, SampledGaussian, SampledSkellam, epsilon
from sottovoce_evidence.accounting.events import MOST_COORDINATES
from sottovoce_evidence.accounting.skellam import (
    chance_above,
    divergences,
    replaced_divergence,
    sampled_divergence,
    skellam_divergence,
)
from sottovoce_evidence.errors import SottoError

STEPS = 2.0**26


def masses(variance: float, shift: int = 0, reach: int = 400) -> np.ndarray:
    return ive(np.abs(np.arange(-reach, reach + 1) - shift), variance)


def renyi(order: float, one: np.ndarray, other: np.ndarray) -> float:
    there = (one > 1e-290) & (other > 1e-290)
    return float(logsumexp(order * np.log(one[there]) + (1 - order) * np.log(other[there]))) / (order - 1)


@pytest.mark.parametrize(("variance", "moved", "order"), list(product([1.0, 4.0, 40.0], [1, 3], [2, 3, 8])))
def test_the_bound_holds_for_the_exact_divergence(variance, moved, order):
    exact = renyi(order, masses(variance), masses(variance, moved))
    bound = skellam_divergence(order, moved, moved, variance)
    assert exact <= bound
    if variance == 40:
        assert bound < 1.1 * exact  # and it is not far above


def test_the_divergence_has_the_terms_of_the_paper():
    """α Δ₂²/2μ, and the smaller of ((2α-1)Δ₂² + 6Δ₁)/4μ² and 3Δ₁/2μ, worked out by hand."""
    assert skellam_divergence(3, 10, 4, 100) == pytest.approx(3 * 16 / 200 + (5 * 16 + 60) / 40_000)
    assert skellam_divergence(30, 4, 4, 2) == pytest.approx(30 * 16 / 4 + 3 * 4 / 4)


def test_l1_bounds_every_vector_of_whole_numbers():
    """The worst has 1 or -1 in as many coordinates as its squares allow."""
    event = SampledSkellam(1.0, "poisson", 1.0, steps=3.0)
    short = np.array(list(product(range(-3, 4), repeat=4)))
    vectors = np.concatenate([np.pad(short, ((0, 0), (0, 5))), np.ones((1, 9), int)])
    within = vectors[np.sum(vectors**2, axis=1) <= event.steps**2]
    assert np.abs(within).sum(axis=1).max() == event.l1


def test_sampling_bounds_both_directions_exactly():
    """Against the exact divergence of a sampled round of one coordinate, from and to the round without the user."""
    variance, rate = 4.0, 0.2
    out, there = masses(variance), masses(variance, 2)
    mixed = (1 - rate) * out + rate * there
    curve = lambda order: skellam_divergence(order, 2, 2, variance)  # noqa: E731
    for order in (2, 3, 6):
        bound = sampled_divergence(order, rate, curve)
        assert max(renyi(order, mixed, out), renyi(order, out, mixed)) <= bound < curve(order)
        other = (1 - rate) * out + rate * masses(variance, -2)
        sampled = lambda at: sampled_divergence(at, rate, curve)  # noqa: E731
        assert renyi(order, mixed, other) <= replaced_divergence(order, sampled)


def test_on_a_fine_grid_it_costs_what_gaussian_noise_costs():
    """Without sampling to six digits. With it, a bound for any mechanism is a little above that of Gaussians."""
    skellam, gaussian = (SampledSkellam(1.0, "poisson", 1.0, STEPS), SampledGaussian(1.0, "poisson", 1.0))
    orders = (2, 5, 64)
    np.testing.assert_allclose(divergences(skellam, orders, False), [order / 2 for order in orders], rtol=1e-6)
    assert epsilon([(skellam, 10)], 1e-6, "rdp") == pytest.approx(epsilon([(gaussian, 10)], 1e-6, "rdp"), rel=0.02)
    skellam, gaussian = (SampledSkellam(1.0, "poisson", 0.01, STEPS), SampledGaussian(1.0, "poisson", 0.01))
    found, known = (epsilon([(event, 1000)], 1e-6, "rdp") for event in (skellam, gaussian))
    assert known < found < 1.2 * known
    # A user who is replaced moves twice as far.
    public = SampledSkellam(1.0, "fixed", 1.0, STEPS)
    half = SampledSkellam(0.5, "poisson", 1.0, STEPS)
    assert public.relation == "replace-one-user"
    assert epsilon([(public, 5)], 1e-6, "rdp") == pytest.approx(epsilon([(half, 5)], 1e-6, "rdp"), rel=1e-9)
    assert epsilon([(skellam, 1000)], 1e-6, "rdp", replaced=True) > found


def test_a_coarse_grid_costs_more():
    """Where a user moves a round by few steps, the L1 term counts."""
    fine, coarse = (epsilon([(SampledSkellam(1.0, "poisson", 1.0, steps), 1)], 1e-6, "rdp") for steps in (1e6, 2.0))
    assert coarse > 1.05 * fine


def test_what_has_no_answer_is_refused():
    event = SampledSkellam(1.0, "poisson", 0.01, STEPS)
    with pytest.raises(SottoError, match="no accounting for sampled skellam; use accountant='pld' or 'rdp'"):
        epsilon([(event, 10)], 1e-6, "moments")
    with pytest.raises(SottoError, match="fixed size"):
        SampledSkellam(1.0, "fixed", 0.5, STEPS)


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_noise_is_found_for_an_epsilon(accountant):
    shape = [(SampledSkellam(1.0, "poisson", 0.01, STEPS), 500)]
    z = accounting.calibrate(shape, 2.0, 1e-6, accountant)
    event = SampledSkellam(z, "poisson", 0.01, STEPS)
    assert 1.98 < epsilon([(event, 500)], 1e-6, accountant) <= 2.0


@pytest.mark.parametrize("variance", [16.0, 100.0, 1000.0])
def test_skellam_noise_is_as_close_to_gaussian_noise_as_is_charged(variance):
    """The divergence from a rounded Gaussian, added up over all whole numbers, is below V^-2, and not far below."""
    k = np.arange(-200, 201)
    found, std = ive(np.abs(k), variance), math.sqrt(variance)
    low, high = (np.abs(k) - 0.5) / std, (np.abs(k) + 0.5) / std
    rounded = stats.norm.sf(low) - stats.norm.sf(high)
    there = found > 1e-30
    divergence = np.sum(found[there] * np.log(found[there] / rounded[there]))
    assert 0.01 * variance**-2 < divergence < 0.1 * variance**-2
    event = SampledSkellam(1.0, "poisson", 0.01, steps=std)
    assert event.apart >= MOST_COORDINATES * divergence


def test_by_pld_it_costs_what_gaussian_noise_costs_and_a_share_of_delta():
    for skellam, gaussian in (
        (SampledSkellam(3.0, "poisson", 1.0, STEPS), SampledGaussian(3.0, "poisson", 1.0)),
        (SampledSkellam(3.0, "fixed", 1.0, STEPS), SampledGaussian(3.0, "fixed", 1.0, cohort=1, users=1)),
    ):
        known, less = (epsilon([(gaussian, 2)], delta) for delta in (1e-6, 1e-6 * (1 - 2.0**-4)))
        found = epsilon([(skellam, 2)], 1e-6)
        assert known < found == pytest.approx(less, rel=1e-9)
    assert epsilon([(skellam, 2)], 1e-6) < epsilon([(skellam, 2)], 1e-6, "rdp")


def test_where_the_noises_could_be_told_apart_it_costs_what_rdp_says():
    """On a coarse grid, or at so small a δ that what is kept back of it is not enough."""
    coarse = SampledSkellam(1.0, "poisson", 1.0, 2.0**10)
    assert epsilon([(coarse, 2)], 1e-6) == epsilon([(coarse, 2)], 1e-6, "rdp")
    fine = SampledSkellam(1.0, "poisson", 1.0, STEPS)
    assert epsilon([(fine, 2)], 1e-12) == epsilon([(fine, 2)], 1e-12, "rdp")
    # τ = √(n · KL/2) for n rounds, and (1 + e^ε)·τ must be within what is kept back.
    apart = math.sqrt(2 * fine.apart / 2)
    within = epsilon([(fine, 2)], 1e-6)
    assert within < epsilon([(fine, 2)], 1e-6, "rdp")
    assert apart * (1 + math.exp(within)) <= 1e-6 * 2.0**-4


@pytest.mark.parametrize(("rounds", "rate"), [(1000, 0.01), (50, 0.5), (3, 0.9), (7, 1.0), (2000, 1e-6)])
def test_the_chance_to_join_more_often_is_that_of_coins(rounds, rate):
    exact = stats.binom.sf(np.arange(rounds + 1), rounds, rate)
    found = chance_above(rounds, rate)
    assert np.all(found >= exact * (1 - 1e-9))
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-300)


@pytest.mark.parametrize("order", [2, 3, 6])
def test_a_person_in_several_silos_is_bounded_in_both_directions(order):
    """Against the exact divergence of one coordinate: each of three silos draws the person, and moves it by 2 steps."""
    event = SampledSkellam(0.5, "poisson", 0.2, steps=6.0, silos=3)
    variance, out = (0.5 * 6.0) ** 2, masses((0.5 * 6.0) ** 2)
    mixed = sum(stats.binom.pmf(drawn, 3, 0.2) * masses(variance, 2 * drawn) for drawn in range(4))
    bound = divergences(event, (order,), False)[0]
    assert max(renyi(order, mixed, out), renyi(order, out, mixed)) <= bound
    # A bound for one of the silos alone would be too small.
    alone = divergences(SampledSkellam(0.5 * 3, "poisson", 0.2, steps=2.0), (order,), False)[0]
    assert alone < renyi(order, mixed, out)


def test_by_pld_several_silos_cost_what_they_cost_with_gaussian_noise_and_a_share_of_delta():
    silos = SampledExamples(2 * 1.0, 0.05, 2)
    known, less = (epsilon([(silos, 20)], delta) for delta in (1e-6, 1e-6 * (1 - 2.0**-4)))
    found = epsilon([(SampledSkellam(1.0, "poisson", 0.05, STEPS, silos=2), 20)], 1e-6)
    assert known < found == pytest.approx(less, rel=1e-6)
    with pytest.raises(SottoError, match="2 or more, which draw by coins"):
        SampledSkellam(1.0, "fixed", 1.0, STEPS, silos=2)
