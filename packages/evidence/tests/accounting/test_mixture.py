"""Sampled examples, accounted per user: against integrals, explicit vectors, dp-accounting and simpler bounds."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from sottovoce_evidence.accounting import SampledExamples, SampledGaussian, epsilon, pld
from sottovoce_evidence.accounting.mixture import LEAST, Mixture, components
from sottovoce_evidence.accounting.pld import REMOVED, REPLACED, Round

CASES = [(0.1, 1.0, 3), (0.3, 0.6, 2), (0.01, 2.5, 8), (0.7, 3.0, 5), (0.002, 0.8, 40)]
LOSSES = np.array([-1.2, -0.3, -0.01, 0.0, 0.004, 0.2, 1.0, 3.0])


def chances(p: float, most: int) -> np.ndarray:
    return stats.binom.pmf(np.arange(most + 1), most, p)


def densities(case, way: int, outcomes: np.ndarray) -> np.ndarray:
    """Of the output with a user whose examples all pull one way, at each outcome."""
    p, z, most = case
    return sum(chance * stats.norm.pdf(outcomes, way * k, z) for k, chance in enumerate(chances(p, most)))


def integral(values: np.ndarray, outcomes: np.ndarray) -> float:
    return float(np.sum(values) * (outcomes[1] - outcomes[0]))


@pytest.mark.parametrize("change", [REMOVED, REPLACED])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_delta_of_one_round_is_the_integral_of_what_is_likelier(case, change):
    p, z, most = case
    outcomes = np.linspace(-most - 12 * z, most + 12 * z, 40_001)
    here = densities(case, 1, outcomes)
    there = stats.norm.pdf(outcomes, 0, z) if change == REMOVED else densities(case, -1, outcomes)
    found = pld.profile(Round(p, z, change, most), LOSSES)
    for loss, value in zip(LOSSES, found, strict=True):
        delta = integral(np.maximum(here - np.exp(loss) * there, 0), outcomes)
        wanted = delta if loss >= 0 else delta - (1 - math.exp(loss))
        assert value == pytest.approx(wanted, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_one_round_is_what_dp_accounting_says_in_both_directions(case):
    from dp_accounting.pld import privacy_loss_mechanism as mechanism

    p, z, most = case
    found = pld.profile(Round(p, z, REMOVED, most), LOSSES)
    for direction in mechanism.AdjacencyType.REMOVE, mechanism.AdjacencyType.ADD:
        theirs = mechanism.MixtureGaussianPrivacyLoss(z, range(most + 1), chances(p, most), adjacency_type=direction)
        removing = np.where(LOSSES >= 0, found, found + 1 - np.exp(LOSSES))
        if direction == mechanism.AdjacencyType.REMOVE:
            assert removing == pytest.approx(theirs.get_delta_for_epsilon(LOSSES), rel=1e-6, abs=1e-12)
        else:  # H_α of the other direction is 1 - α + α·H_(1/α)
            adding = 1 - np.exp(-LOSSES) + np.exp(-LOSSES) * removing
            assert adding == pytest.approx(theirs.get_delta_for_epsilon(-LOSSES[::-1])[::-1], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("change", [REMOVED, REPLACED])
@pytest.mark.parametrize("seed", range(4))
def test_no_directions_of_a_users_examples_are_worse_than_one_direction(seed, change):
    """The theorem: gradients in the plane, of any length up to 1 and any angle, and sums over all that may join."""
    random, (p, z, most) = np.random.default_rng(seed), (0.35, 0.9, 3)
    axis = np.linspace(-7, 7, 281)
    plane = np.stack(np.meshgrid(axis, axis), -1)

    def output(examples: np.ndarray) -> np.ndarray:
        total = np.zeros(plane.shape[:2])
        for joined in product([0, 1], repeat=len(examples)):
            chance = p ** sum(joined) * (1 - p) ** (len(joined) - sum(joined))
            away = plane - np.array(joined) @ examples
            total += chance * np.exp(-np.sum(away**2, -1) / (2 * z * z)) / (2 * np.pi * z * z)
        return total

    def user() -> np.ndarray:
        angles, lengths = random.uniform(0, 2 * np.pi, most), random.uniform(0.3, 1, most)
        return lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)

    here, there = output(user()), output(np.zeros((1, 2)) if change == REMOVED else user())
    losses, cell = np.array([-1.5, -0.4, -0.1, 0.0, 0.1, 0.5, 1.5]), (axis[1] - axis[0]) ** 2
    bounds = pld.profile(Round(p, z, change, most), losses) + np.maximum(0, 1 - np.exp(losses))
    for loss, bound in zip(losses, bounds, strict=True):  # those below 0 are of the other direction, too
        assert np.sum(np.maximum(here - math.exp(loss) * there, 0)) * cell <= bound + 1e-9


@pytest.mark.parametrize("replaced", [False, True])
def test_one_example_of_a_user_is_a_sampled_user_and_all_for_certain_are_a_gaussian(replaced):
    one, user = SampledExamples(1.3, 0.02, 1), SampledGaussian(1.3, "poisson", 0.02)
    assert epsilon([(one, 30)], 1e-6, replaced=replaced) == epsilon([(user, 30)], 1e-6, replaced=replaced)
    sure, gaussian = SampledExamples(12.0, 1.0, 4), SampledGaussian(3.0, "poisson", 1.0)
    assert epsilon([(sure, 9)], 1e-6, replaced=replaced) == epsilon([(gaussian, 9)], 1e-6, replaced=replaced)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("p", "z", "most", "rounds"), [(0.01, 4.0, 8, 200), (0.05, 3.0, 3, 20)])
def test_it_costs_more_than_one_example_and_less_than_all_at_once(p, z, most, rounds, replaced):
    """Who joins does so with one example at least, and with all of them at most."""
    event = SampledExamples(z, p, most)
    found = epsilon([(event, rounds)], 1e-6, replaced=replaced)
    one = epsilon([(SampledGaussian(z, "poisson", event.user_rate), rounds)], 1e-6, replaced=replaced)
    everything = epsilon([(SampledGaussian(z / most, "poisson", event.user_rate), rounds)], 1e-6, replaced=replaced)
    assert one < found < everything
    # Group privacy: what holds for one example at a smaller δ holds for all of them, at so many times ε.
    alone = [(SampledGaussian(z, "poisson", p), rounds)]
    each = epsilon(alone, 1e-6 / (most * math.exp(8 * (most - 1))), replaced=replaced)
    assert each > 8 or found < most * each


def test_more_examples_a_higher_rate_and_less_noise_cost_more():
    def cost(z=3.0, p=0.02, most=4):
        return epsilon([(SampledExamples(z, p, most), 40)], 1e-6)

    assert cost() < cost(most=5) < cost(most=8)
    assert cost() < cost(p=0.03)
    assert cost() < cost(z=2.5)


def test_chances_are_binomial_and_what_is_left_out_is_counted():
    for p, most in [(0.3, 5), (0.01, 400), (0.9, 30)]:
        parts = components(p, most)
        kept = np.arange(len(parts.logs))
        assert parts.logs == pytest.approx(stats.binom.logpmf(kept, most, p), rel=1e-9)
        assert np.exp(parts.logs).sum() + parts.left_out == pytest.approx(1, abs=1e-12)
        assert parts.left_out <= LEAST
    cut = components(1e-4, 400)
    assert cut.left_out > 0
    assert len(cut.logs) < 40
    shown = Mixture(1e-4, 1.0, 400).profile_of_joining(np.array([60.0]))
    assert shown == pytest.approx(cut.left_out, rel=1e-6), "beyond all losses, what was left out is certain loss"


def test_rounds_of_examples_compose_with_other_releases_in_any_order():
    examples, users = (SampledExamples(3.0, 0.05, 3), 6), (SampledGaussian(1.5, "poisson", 0.1), 10)
    fixed = (SampledGaussian(6.0, "fixed", 0.5, cohort=10, users=20), 2)
    for spent in ([examples, users], [examples, users, fixed]):
        both = epsilon(spent, 1e-5)
        assert both == epsilon(spent[::-1], 1e-5)
        assert both > max(epsilon([each], 1e-5) for each in (examples, users))


def test_components_that_dp_accounting_would_take_minutes_for_take_no_time():
    event = SampledExamples(20.0, 0.01, 2_000)
    assert 0.5 < epsilon([(event, 100)], 1e-6) < epsilon([(SampledExamples(20.0, 0.01, 3_000), 100)], 1e-6)
