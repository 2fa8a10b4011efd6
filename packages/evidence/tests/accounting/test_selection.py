"""The best of a random number of runs costs no more than is charged: against all outcomes of small mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sottovoce_evidence.accounting import (
    BestOfRuns,
    GaussianRelease,
    SampledExamples,
    SampledGaussian,
    epsilon,
    relation_of,
    selection,
)
from sottovoce_evidence.accounting.events import ADDED, REPLACED
from sottovoce_evidence.accounting.selection import SHAPES, best_of, draw_runs, numbers_of_runs, runs_at_most
from sottovoce_evidence.errors import SottoError

ORDERS = np.concatenate([np.linspace(1.05, 12, 30), np.geomspace(12.5, 1e4, 20)])
ROUND = SampledGaussian(1.0, "poisson", 0.01)
RUN = ((ROUND, 1000),)


def chances(runs: float, distribution: str, most: int) -> np.ndarray:
    """The chance of each number of runs from 0 to `most`."""
    return numbers_of_runs(runs, distribution).pmf(np.arange(most + 1))


def divergences(here: np.ndarray, there: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Rényi's, of two distributions over the same outcomes, at each order: the larger of both directions."""
    one, other, at = np.log(here), np.log(there), orders[:, None]
    ways = [np.logaddexp.reduce(at * a + (1 - at) * b, axis=1) for a, b in ((one, other), (other, one))]
    return np.maximum(*ways) / (orders - 1)


def best(outcomes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """How the best of K outcomes is distributed, the last being best; before them: no run at all."""
    below = np.cumsum(outcomes)
    # P[best <= x] = Σ_k P[K = k] P[one <= x]^k, by all k that are not vanishing.
    reached = np.polynomial.polynomial.polyval(np.minimum(below, 1.0), numbers)
    return np.diff(np.concatenate([[0.0, numbers[0]], reached]))


def randomised_response(budget: float, outcomes: int, likely: float) -> tuple[np.ndarray, np.ndarray]:
    """A pure mechanism: the best outcome, which is seldom, is e^ε times as likely for one of the two populations."""
    here = np.full(outcomes, (1 - likely) / (outcomes - 1))
    there = here.copy()
    here[-1], there[-1] = likely, likely * math.exp(-budget)
    there[:-1] += (here[-1] - there[-1]) / (outcomes - 1)
    return here, there


def gaussian(noise: float, seen: int) -> tuple[np.ndarray, np.ndarray]:
    """A rounded Gaussian of which the highest outcomes are the best."""
    from scipy.stats import norm

    edges = np.linspace(-7 * noise, 7 * noise + 1, seen)
    found = [
        np.diff(norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]), loc=moved, scale=noise)) for moved in (0, 1)
    ]
    return found[0], found[1]


@pytest.mark.parametrize("distribution", SHAPES)
@pytest.mark.parametrize("runs", [1.5, 30.0])
@pytest.mark.parametrize(
    "pair",
    [
        randomised_response(0.5, 2, 0.01),
        randomised_response(2.0, 5, 0.2),
        gaussian(1.0, 30),
        gaussian(3.0, 30),
        (gaussian(1.5, 40)[1][::-1], gaussian(1.5, 40)[0][::-1]),
    ],
    ids=["seldom", "often", "gaussian", "quiet", "downwards"],
)
def test_the_bound_holds_for_every_outcome_of_small_mechanisms(distribution, runs, pair):
    one = divergences(*pair, ORDERS)
    bound = best_of(ORDERS, one, runs, distribution)
    numbers = chances(runs, distribution, 1500)
    here, there = (best(each, numbers) for each in pair)
    keep = (here > 1e-14) & (there > 1e-14)  # what rounding leaves of sums is no chance
    assert (divergences(here[keep], there[keep], ORDERS) <= bound + 1e-9).all()


@pytest.mark.parametrize("distribution", ["logarithmic", "geometric"])
def test_the_bound_is_reached_to_5_percent(distribution):
    """By a seldom outcome that is more likely here, where better ones are less likely: at a high order."""
    budget, order, runs = 1.0, 1000.0, 2000.0
    here, there = (np.array([0.0, seldom, better]) for seldom, better in ((1e-6, 0.05), (1e-6 / math.e, 0.05 * math.e)))
    here[0], there[0] = 1 - here.sum(), 1 - there.sum()
    orders = np.append(ORDERS, [order, 1e6, 1e9])
    one = divergences(here, there, orders)
    assert one.max() <= budget + 1e-9
    bound = best_of(orders, one, runs, distribution)[-3]
    numbers = chances(runs, distribution, 15_000)
    (true,) = divergences(best(here, numbers)[1:], best(there, numbers)[1:], np.array([order]))
    assert 0.95 * bound <= true <= bound


def test_a_pure_run_of_epsilon_costs_two_or_three_epsilon_as_published():
    """Corollary 3 of Papernot and Steinke: (2 + η)·ε, which is Liu and Talwar's 3ε for a geometric number."""
    orders, one = np.array([2.0, 1e10]), np.array([0.7, 0.7])
    for distribution, factor in (("logarithmic", 2), ("geometric", 3)):
        assert best_of(orders, one, 1000.0, distribution)[-1] == pytest.approx(factor * 0.7, rel=1e-6)


@pytest.mark.parametrize("distribution", SHAPES)
@pytest.mark.parametrize("runs", [20.0])
def test_dp_accounting_has_the_same_figures(distribution, runs):
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    training = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)), 1000
    )
    theirs.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(training, runs, SHAPES[distribution]))
    ours = epsilon([(BestOfRuns(runs, distribution, RUN), 1)], 1e-6, "rdp")
    assert theirs.get_epsilon(1e-6) <= ours <= theirs.get_epsilon(1e-6) * (1 + 1e-7)


def test_choosing_costs_more_than_one_run_and_composes_with_others():
    chosen, one = BestOfRuns(10.0, "logarithmic", RUN), epsilon(RUN, 1e-6, "rdp")
    alone = epsilon([(chosen, 1)], 1e-6, "rdp")
    assert one * 1.2 < alone < epsilon([(ROUND, 10_000)], 1e-6, "rdp")
    assert alone < epsilon([(chosen, 1), (ROUND, 100)], 1e-6, "rdp") < epsilon([(chosen, 2)], 1e-6, "rdp")
    assert alone < epsilon([(chosen, 1)], 1e-6, "rdp", replaced=True)
    with pytest.raises(SottoError, match="has no accounting for best of runs"):
        epsilon([(chosen, 1)], 1e-6, "pld")


@pytest.mark.parametrize("distribution", SHAPES)
@pytest.mark.parametrize("runs", [1.2, 10.0, 200.0])
def test_the_numbers_of_runs_have_the_mean_that_is_charged(distribution, runs):
    found = chances(runs, distribution, 50_000)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert found @ np.arange(len(found)) == pytest.approx(runs, rel=1e-6)
    assert (found[0] > 0) == (distribution == "poisson")
    most = runs_at_most(runs, distribution)
    assert found[: most + 1].sum() >= 0.95 > found[:most].sum()


def test_an_event_says_what_a_run_costs():
    chosen = BestOfRuns(5.0, "geometric", ((SampledGaussian(0.8, "fixed", 0.01, cohort=10, users=1000), 3), (ROUND, 4)))
    assert (chosen.noise_multiplier, chosen.relation) == (0.8, REPLACED)
    assert BestOfRuns(5.0, "poisson", RUN).relation == ADDED
    silent = BestOfRuns(5.0, "poisson", ((SampledGaussian(0.0, "poisson", 0.1), 1),))
    assert relation_of([silent]) is None
    assert math.isinf(epsilon([(silent, 1)], 1e-6, "rdp"))


@pytest.mark.parametrize(
    ("runs", "distribution", "run", "words"),
    [
        (1.0, "poisson", RUN, "must be above 1"),
        (20_000.0, "poisson", RUN, "at most 10000"),
        (5.0, "gometric", RUN, "did you mean"),
        (5.0, "poisson", (), "cost nothing"),
        (5.0, "poisson", (*RUN, (SampledGaussian(0.81, "poisson", 0.01), -30)), "charged -30 times"),
        (5.0, "poisson", (*RUN, (SampledGaussian(0.81, "poisson", 0.01), 0)), "charged 0 times"),
        (5.0, "poisson", ((SampledExamples(2.5, 0.01, 8), 1),), "no accounting for sampled examples"),
        (5.0, "poisson", ((GaussianRelease(2.0, 1e-7), 1),), "no accounting for gaussian release"),
        (5.0, "poisson", ((BestOfRuns(5.0, "poisson", RUN), 1),), "no accounting for best of runs"),
    ],
    ids=str,
)
def test_a_choice_without_accounting_is_refused(runs, distribution, run, words):
    with pytest.raises(SottoError, match=words):
        BestOfRuns(runs, distribution, run)


@pytest.mark.parametrize("distribution", SHAPES)
def test_a_number_of_runs_is_drawn_with_its_chances(monkeypatch, distribution):
    """Even steps of the uniform number that decides it give every number as often as it is likely."""
    steps = iter((2 * np.arange(2000) + 1) / 4000)
    monkeypatch.setattr(selection.os_entropy, "randbelow", lambda most: int(next(steps) * most))
    drawn = np.bincount([draw_runs(3.0, distribution) for _ in range(2000)], minlength=200)[:200]
    assert np.abs(np.cumsum(drawn) / 2000 - np.cumsum(chances(3.0, distribution, 199))).max() < 1 / 2000


def test_the_last_of_the_chances_end_a_draw(monkeypatch):
    monkeypatch.setattr(selection.os_entropy, "randbelow", lambda most: most - 1)
    assert draw_runs(1.1, "geometric") > 10
    monkeypatch.setattr(selection.os_entropy, "randbelow", lambda most: 0)
    assert [draw_runs(5.0, name) for name in SHAPES] == [1, 1, 0]
