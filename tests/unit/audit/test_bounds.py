"""Lower bounds on ε hold as often as they say, come near, and claim nothing from chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from examples import first_of
from sottovoce.audit.bounds import (
    FEWEST,
    at_most,
    best_one_run_bound,
    epsilon_of_errors,
    mu_of_errors,
    noise_at_most,
    one_run_bound,
    one_run_epsilon,
    one_run_p_value,
    trials_bound,
    trials_mu,
    would_notice,
)
from sottovoce_evidence.accounting import SampledGaussian, epsilon

REPEATS = 100
# So many of 200 bounds may be wrong at 95 % confidence before chance is no excuse (1 in 1,000).
MOST_WRONG = int(stats.binom.ppf(0.999, REPEATS, 0.05))


def gaussian(z: float, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of somebody who moves a sum by 1, noised with z, when they are in it."""
    generator = np.random.default_rng([seed, trials])
    present = generator.random(trials) < 0.5
    return present + z * generator.normal(size=trials), present


def proved(z: float, delta: float) -> float:
    return epsilon([(SampledGaussian(z, "poisson", 1.0), 1)], delta)


@pytest.mark.parametrize(("z", "delta"), first_of([(0.7, 1e-2), (1.0, 1e-2), (2.0, 1e-3)]))
def test_a_bound_of_trials_holds_as_often_as_it_says_and_comes_within_a_factor_of_three(z, delta):
    truth = proved(z, delta)
    found = np.array([trials_bound(*gaussian(z, 4000, seed), delta).epsilon for seed in range(REPEATS)])
    assert np.sum(found > truth) <= MOST_WRONG
    assert np.median(found) > truth / 3


def test_a_bound_of_trials_is_wrong_as_seldom_where_it_has_no_room():
    """Randomised response is as leaky as its ε allows at every threshold: no slack hides a wrong interval."""
    truth, wrong = 1.0, 0
    for seed in range(REPEATS):
        generator = np.random.default_rng(seed)
        present = generator.random(400) < 0.5
        told = np.where(generator.random(400) < 1 / (1 + math.exp(-truth)), present, ~present)
        wrong += trials_bound(told.astype(float), present, 0.0).epsilon > truth
    assert wrong <= MOST_WRONG


def test_noise_at_half_is_found_out():
    for seed in range(20):
        assert trials_bound(*gaussian(0.5, 4000, seed), 1e-2).epsilon > proved(1.0, 1e-2)


def test_nothing_is_claimed_from_chance():
    found = np.array([trials_bound(*gaussian(1e9, 1000, seed), 1e-5).epsilon for seed in range(REPEATS)])
    assert np.sum(found > 0) <= MOST_WRONG
    assert np.median(found) == 0


def test_the_threshold_is_chosen_by_other_trials_than_those_judged():
    """Scores that tell all, but only in the trials that choose."""
    scores, present = gaussian(1e9, 1000, 0)
    scores[:250] = np.where(present[:250], 1e12, -1e12)
    assert trials_bound(scores, present, 0.0).epsilon == 0


def test_both_directions_count():
    """Who is there is sometimes missed, who is away is never taken for there; and the other way round."""
    one = epsilon_of_errors(250, 500, 0, 500, 0.0, 0.95)
    assert one == pytest.approx(epsilon_of_errors(0, 500, 250, 500, 0.0, 0.95))
    assert one > 4


def test_the_interval_is_clopper_and_pearsons():
    for count, trials in ((0, 10), (3, 40), (39, 40), (40, 40), (500, 1000)):
        exact = stats.binomtest(count, trials, alternative="less").proportion_ci(0.975, method="exact")
        assert at_most(count, trials, 0.025) == pytest.approx(exact.high, abs=1e-9)


def test_perfect_guesses_show_so_much_and_no_more():
    """0.05^(1/1000) = e^ε / (1 + e^ε) at ε = 5.81, where nobody is lost to choosing a threshold."""
    chance = 0.05 ** (1 / 1000)
    assert one_run_epsilon(1000, 1000, 1000, 0.0) == pytest.approx(math.log(chance / (1 - chance)))
    assert one_run_epsilon(1000, 1000, 1000, 0.0) == pytest.approx(5.81, abs=0.01)
    present = np.arange(1000) % 2 == 0
    perfect = trials_bound(present.astype(float), present, 0.0)
    rate = 1 - 0.025 ** (1 / 375)  # of the 750 judged, half are there
    assert perfect.epsilon == perfect.most == pytest.approx(math.log((1 - rate) / rate))
    assert (perfect.correct, perfect.trials) == (750, 750)


def contradicted(claimed: float, real: float, rounds: int, seed: int, confidence: float) -> tuple[bool, bool]:
    """Does the noise show, and do the guesses, that a Gaussian of multiplier `claimed` has another one?"""
    scores, present = gaussian(real, rounds, seed)
    by_noise = noise_at_most(scores - present, confidence) < claimed
    return by_noise, trials_mu(scores, present, confidence) > 1 / claimed


def test_a_gaussian_at_half_its_noise_is_found_and_a_sound_one_is_not():
    """2,000 rounds of z = 1, where no bound on ε at δ = 1e-5 ever says anything."""
    for seed in range(20):
        assert contradicted(1.0, 0.5, 2000, seed, 0.999) == (True, True)
        assert contradicted(1.0, 1.0, 2000, seed, 0.999) == (False, False)
        assert trials_bound(*gaussian(0.5, 2000, seed), 1e-5).epsilon < proved(1.0, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("z", first_of([0.3, 1.0, 3.0, 10.0]))
def test_half_the_noise_is_found_in_99_of_100_audits_and_false_alarms_are_as_rare_as_they_say(z):
    """As an audit by rounds decides, at its confidence and at one where errors can be counted."""
    for confidence in (0.95, 0.999):
        each = 1 - (1 - confidence) / 3
        found = [any(contradicted(z, z / 2, 2000, seed, each)) for seed in range(400)]
        alarms = [any(contradicted(z, z, 2000, 1000 + seed, each)) for seed in range(400)]
        assert np.mean(found) >= 0.99
        assert np.sum(alarms) <= stats.binom.ppf(0.999, 400, (1 - confidence) * 2 / 3)


@pytest.mark.parametrize("confidence", [0.95, 0.999])
def test_what_would_have_been_noticed_is_noticed_as_often_as_it_says(confidence):
    part, repeats = would_notice(200, confidence), 2000
    draws = np.random.default_rng(3).normal(size=(repeats, 200))
    seen = sum(noise_at_most(part * noise, confidence) < 1 for noise in draws)
    assert abs(seen - 0.99 * repeats) < 4 * math.sqrt(0.99 * 0.01 * repeats)
    more = sum(noise_at_most(noise, confidence) < 1 for noise in draws)  # of their full scale: false alarms
    assert more <= stats.binom.ppf(0.999, repeats, 1 - confidence)
    assert would_notice(FEWEST, confidence) < would_notice(200, confidence) < would_notice(2000, confidence) < 1


def test_a_mu_of_guesses_holds_as_often_as_it_says_and_comes_near():
    found = np.array([trials_mu(*gaussian(2.0, 4000, seed)) for seed in range(REPEATS)])
    assert np.sum(found > 0.5) <= MOST_WRONG
    assert np.median(found) > 0.3
    assert mu_of_errors(250, 500, 250, 500, 0.95) == 0  # a coin
    assert mu_of_errors(500, 500, 0, 500, 0.95) == 0


def test_noise_that_is_mostly_missing_shows_in_guesses_though_its_spread_is_right():
    """Not a Gaussian: three of four draws are 0, and the fourth is twice as large."""
    generator = np.random.default_rng(4)
    present = generator.random(2000) < 0.5
    noise = np.where(generator.random(2000) < 0.25, 2.0, 0.0) * generator.normal(size=2000)
    assert noise_at_most(noise, 0.999) > 1
    assert trials_mu(present + noise, present, 0.999) > 1


@pytest.mark.slow
@pytest.mark.parametrize("z", first_of([0.7, 1.0]))
def test_a_bound_of_one_run_holds_as_often_as_it_says(z):
    delta, truth = 1e-5, proved(z, 1e-5)
    found = [one_run_bound(*gaussian(z, 1000, seed), 300, delta).epsilon for seed in range(REPEATS)]
    assert np.sum(np.array(found) > truth) <= MOST_WRONG
    assert np.median(found) > truth / 5
    assert np.median([one_run_bound(*gaussian(1e9, 1000, seed), 300, delta).epsilon for seed in range(50)]) == 0


@pytest.mark.slow
def test_the_best_of_some_numbers_of_guesses_holds_as_often_and_comes_within_a_factor_of_four():
    delta, truth = 1e-5, proved(0.7, 1e-5)
    found = [best_one_run_bound(*gaussian(0.7, 400, seed), delta).epsilon for seed in range(REPEATS)]
    assert np.sum(np.array(found) > truth) <= MOST_WRONG
    assert np.median(found) > truth / 4


def test_a_bound_of_one_run_is_wrong_as_seldom_where_it_has_no_room():
    """Randomised response, with all guesses made; and a δ that gives some of them away for nothing."""
    truth, wrong = 1.0, 0
    for seed in range(REPEATS):
        generator = np.random.default_rng(seed)
        present = generator.random(400) < 0.5
        told = np.where(generator.random(400) < 1 / (1 + math.exp(-truth)), present, ~present)
        wrong += one_run_epsilon(400, 400, int(np.sum(told == present)), 0.0) > truth
    assert 0 < wrong <= MOST_WRONG


def test_delta_is_paid_for():
    """The worst that (ε, δ) allows: with a chance of 2 m δ / i, i guesses more are right than ε alone would give."""
    assert one_run_p_value(100, 100, 60, 0.2, 0.0) == pytest.approx(stats.binom.sf(59, 100, 1 / (1 + math.exp(-0.2))))
    canaries, correct, delta, by = 100, 70, 1e-4, 10
    chance = 1 / (1 + math.exp(-0.5))
    least = stats.binom.sf(correct - 1, 100, chance) + (2 * canaries * delta / by) * (
        stats.binom.sf(correct - 1 - by, 100, chance) - stats.binom.sf(correct - 1, 100, chance)
    )
    assert one_run_p_value(canaries, 100, correct, 0.5, delta) >= least * (1 - 1e-9)
    assert one_run_epsilon(1000, 1000, 1000, 1e-3) < one_run_epsilon(1000, 1000, 1000, 1e-6) < 5.81


# (canaries, guesses, correct, ε, δ), the p-value of it and the bound at 95 %, as jax-privacy 2.0.0 has them
PUBLISHED = [
    ((1000, 1000, 1000, 5.0, 0.0), 0.0012121635125, 5.809068337),
    ((1000, 1000, 1000, 5.0, 1e-6), 0.0014040389408, 5.806396544),
    ((1000, 200, 180, 1.5, 1e-5), 0.0017015535524, 1.796285071),
    ((500, 100, 71, 0.4, 1e-4), 0.0191526717143, 0.503028110),
    ((5000, 600, 455, 1.0, 1e-6), 0.0711697973764, 0.983437930),
]


@pytest.mark.parametrize(("case", "p_value", "bound"), PUBLISHED)
def test_one_run_is_as_others_have_it(case, p_value, bound):
    canaries, guesses, correct, _, delta = case
    assert one_run_p_value(*case) == pytest.approx(p_value, rel=1e-6)
    assert one_run_epsilon(canaries, guesses, correct, delta) == pytest.approx(bound, abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_bounds_are_those_of_jax_privacy():
    """Where it is installed (the extra `audit`): the same numbers from another implementation."""
    auditing = pytest.importorskip("jax_privacy.auditing")
    generator = np.random.default_rng(0)
    for _ in range(20):
        canaries = int(generator.integers(50, 2000))
        guesses = int(generator.integers(20, canaries + 1))
        correct, delta = int(generator.integers(guesses // 2, guesses + 1)), float(10 ** generator.uniform(-7, -3))
        theirs = auditing._one_run_p_value(canaries, guesses, correct, 0.7, delta)
        assert one_run_p_value(canaries, guesses, correct, 0.7, delta) == pytest.approx(theirs, rel=1e-9)
        bound = auditing._epsilon_one_run(0, canaries, guesses, correct, 0.05, delta)
        assert one_run_epsilon(canaries, guesses, correct, delta) == pytest.approx(bound, abs=1e-5)
    scores, present = gaussian(0.7, 1000, 0)
    auditor = auditing.CanaryScoreAuditor(scores[present], scores[~present])
    explicit = auditor.epsilon_clopper_pearson(
        0.05, 1e-3, one_sided=False, threshold_strategy=auditing.Explicit(threshold=1.5)
    )
    said = scores >= 1.5
    counts = [int(np.sum(x)) for x in (present & ~said, present, ~present & said, ~present)]
    assert epsilon_of_errors(*counts, 1e-3, 0.95) == pytest.approx(explicit)


def test_trials_that_were_all_alike_show_nothing():
    assert trials_bound(np.zeros(100), np.arange(100) % 2 == 0, 1e-5).epsilon == 0
    assert trials_bound(np.arange(100.0), np.ones(100, bool), 1e-5).epsilon == 0
