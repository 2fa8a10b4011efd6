"""A claimed curve is refuted as seldom as it says where it holds, and refuted where the noise is halved."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from sottovoce.audit.bounds import best_one_run_bound, count_correct, one_run_p_value
from sottovoce.audit.trade_off import SHARES, TradeOff, curve_bound, refutes, scaled
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian, epsilon

REPEATS, CANARIES, DELTA = 100, 400, 1e-5
ONE = [(SampledGaussian(1.0, "poisson", 1.0), 1)]  # μ = 1
CURVE = TradeOff.of(ONE)


def game(mu: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([seed, canaries])
    present = generator.random(canaries) < 0.5
    return mu * present + generator.normal(size=canaries), present


def refuted(mu: float, canaries: int, seed: int, confidence: float = 0.95) -> bool:
    """Does a game of a Gaussian refute the curve of μ = 1, by one of the shares?"""
    scores, present = game(mu, canaries, seed)
    each = 1 - (1 - confidence) / len(SHARES)
    counts = [int(share * canaries) for share in SHARES]
    return any(refutes(CURVE, canaries, n, count_correct(scores, present, n), each) for n in counts)


def test_the_curve_of_a_gaussian_is_hardly_below_its_trade_off_function():
    """Below it is on the safe side: Φ(Φ⁻¹(y) - μ) is exact."""
    for chance in np.linspace(0.001, 0.999, 50):
        exact = special.ndtr(special.ndtri(chance) - 1.0)
        assert 0.9 * exact - 1e-3 < CURVE.least(chance) < exact * (1 + 1e-6)


@pytest.mark.parametrize("pair", [(12, 12, 10), (12, 8, 7), (20, 10, 10), (9, 9, 6)])
def test_refuted_is_what_no_distribution_within_the_curve_reaches(pair):
    """The recursion against a linear program over all distributions of the number of right guesses."""
    canaries, guesses, correct = pair
    curve = TradeOff((0.2, 0.9, 2.0), (0.2, 0.05, 0.001))
    number = np.arange(guesses + 1)
    rows, limits = [], []
    for least in range(1, guesses + 1):
        r = np.where(number >= least, number, 0) / canaries
        h = np.where(number >= least - 1, guesses - number, 0) / canaries
        for eps, delta in zip(curve.epsilons, curve.deltas, strict=True):
            rows += [r - math.exp(eps) * h, r - math.exp(-eps) * h]
            limits += [delta, 1 - math.exp(-eps) * (1 - delta)]
    found = optimize.linprog(-1.0 * (number >= correct), rows, limits, np.ones((1, guesses + 1)), [1.0])
    likeliest = -found.fun
    assert 0.01 < likeliest < 0.99
    assert refutes(curve, canaries, guesses, correct, 1 - likeliest * 1.01)
    assert not refutes(curve, canaries, guesses, correct, 1 - likeliest * 0.99)


def test_with_one_epsilon_nothing_is_refuted_that_randomised_response_does():
    """Without δ it keeps to ε, with the chance of the other test of one run, which leaves no room."""
    for canaries, guesses, correct in ((50, 50, 40), (100, 30, 26)):
        p_value = one_run_p_value(canaries, guesses, correct, 0.8, 0.0)
        assert not refutes(TradeOff((0.8,), (0.0,)), canaries, guesses, correct, 1 - 0.99 * p_value)


def test_true_for_a_run_that_keeps_to_the_curve_with_probability_1_minus_confidence_at_most():
    """A Gaussian exactly at its claim, told by the best score there is."""
    wrong = sum(refuted(1.0, CANARIES, seed) for seed in range(REPEATS))
    assert wrong <= stats.binom.ppf(0.999, REPEATS, 0.05)


@pytest.mark.slow
def test_the_bound_on_epsilon_is_above_the_truth_as_seldom():
    truth = epsilon(ONE, DELTA)
    wrong = sum(curve_bound(*game(1.0, CANARIES, seed), ONE, DELTA).epsilon > truth for seed in range(REPEATS))
    assert wrong <= stats.binom.ppf(0.999, REPEATS, 0.05)


def test_half_the_noise_is_refuted_where_there_are_many_canaries():
    assert all(refuted(2.0, 3000, seed) for seed in range(3))


def test_the_bound_says_how_much_noise_there_is_at_most_and_the_epsilon_of_that():
    scores, present = game(2.0, 3000, 0)
    found = curve_bound(scores, present, ONE, DELTA)
    assert 0.5 < found.noise < 1
    assert found.refuted
    assert found.epsilon == pytest.approx(epsilon(scaled(ONE, found.noise), DELTA))
    assert epsilon(ONE, DELTA) < found.epsilon < epsilon(scaled(ONE, 0.5), DELTA)
    assert found.epsilon > best_one_run_bound(scores, present, DELTA).epsilon
    assert found.correct == count_correct(scores, present, found.guesses)


def test_guesses_that_are_chance_bound_nothing():
    found = curve_bound(*game(0.0, CANARIES, 1), ONE, DELTA)
    assert (found.noise, found.epsilon, found.refuted) == (math.inf, 0.0, False)


def test_noise_is_scaled_and_what_has_none_of_its_own_is_not():
    spent = [(SampledGaussian(1.5, "poisson", 0.3), 4), (NonPrivate(), 1)]
    (half, four), (other, one) = scaled(spent, 0.5)
    assert (half.noise_multiplier, half.user_rate, four) == (0.75, 0.3, 4)
    assert (other, one) == (NonPrivate(), 1)
