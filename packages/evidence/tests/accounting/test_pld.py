"""The "pld" accountant against tight references, and the proof for cohorts of fixed size against explicit mixtures."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest

from examples import first_of
from sottovoce_evidence.accounting import SampledGaussian, epsilon, pld
from sottovoce_evidence.accounting.pld import EXCHANGED, REPLACED, Grid, Round

# user_rate, noise_multiplier, rounds, delta = users^-1.1 for 10^4, 10^6, 10^9 users, the tight ε. For one round by
# solving δ(ε) with 40 digits; for more by an independent composition: masses of cells from the exact distribution
# function, moved so that the mean is exact, in FFTs of quadruple precision where 10^-16 a round would show.
TIGHT = [
    (0.01, 0.5, 1, 3.981e-05, 2.1901),
    (0.1, 1, 1, 3.981e-05, 1.37468),
    (0.001, 0.7, 1, 2.512e-07, 0.215811),
    (1e-06, 0.5, 1, 1.259e-10, 0.00633002),
    (1e-06, 5, 1, 1.259e-10, 8.00484e-07),
    (0.01, 1, 100, 3.981e-05, 0.595259),
    (0.1, 0.5, 100, 2.512e-07, 37.5994),
    (1e-06, 0.5, 100, 1.259e-10, 0.0528384),
    (1e-05, 1, 100, 1.259e-10, 0.00202967),
    (0.0001, 0.7, 100, 1.259e-10, 0.424807),
    (0.01, 0.5, 10_000, 3.981e-05, 40.7185),
    (0.1, 2, 10_000, 3.981e-05, 34.2563),
    (0.001, 0.7, 10_000, 2.512e-07, 1.91077),
    (0.01, 5, 10_000, 2.512e-07, 0.907548),
    (1e-06, 0.5, 10_000, 1.259e-10, 0.275631),
    (0.0001, 1, 10_000, 1.259e-10, 0.0784314),
    (1e-05, 0.7, 10_000, 1.259e-10, 0.0895006),
    (0.01, 1, 10_000, 1.259e-10, 9.26247),
    (0.01, 5, 1_000_000, 3.981e-05, 9.46228),
    (0.001, 0.5, 1_000_000, 2.512e-07, 58.4883),
    (0.001, 1, 1_000_000, 2.512e-07, 7.06557),
    (0.01, 1, 1_000_000, 2.512e-07, 149.1),
    (1e-06, 1, 1_000_000, 1.259e-10, 0.00644441),
    (1e-05, 0.5, 1_000_000, 1.259e-10, 3.43836),
]


def check_tight(q: float, z: float, rounds: int, delta: float, tight: float) -> None:
    value = epsilon([(SampledGaussian(z, "poisson", q), rounds)], delta)
    assert tight * (1 - 1e-5) <= value <= tight * 1.01


@pytest.mark.parametrize("row", TIGHT[::5], ids=str)
def test_epsilon_is_tight_and_never_below(row) -> None:
    check_tight(*row)


@pytest.mark.slow
@pytest.mark.parametrize("row", TIGHT, ids=str)
def test_epsilon_is_tight_and_never_below_from_one_round_to_a_million(row) -> None:
    check_tight(*row)


@pytest.mark.parametrize("z", [0.5, 1.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 50])
def test_without_sampling_it_is_the_gaussian_mechanism(z, rounds) -> None:
    from dp_accounting import get_epsilon_gaussian

    exact = get_epsilon_gaussian(z / math.sqrt(rounds), 1e-7)
    assert exact <= epsilon([(SampledGaussian(z, "poisson", 1.0), rounds)], 1e-7) <= exact * 1.005
    mixed = [(SampledGaussian(z, "poisson", 1.0), rounds), (SampledGaussian(2 * z, "poisson", 1.0), 4 * rounds)]
    exact = get_epsilon_gaussian(z / math.sqrt(2 * rounds), 1e-7)
    assert exact <= epsilon(mixed, 1e-7) <= exact * 1.005


# One round


@pytest.mark.parametrize(("q", "z"), [(1.0, 1.0), (0.3, 0.5), (0.01, 0.7), (1e-4, 3.0)])
def test_one_round_is_what_dp_accounting_says(q, z) -> None:
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.pld import privacy_loss_mechanism as mechanism

    theirs = mechanism.GaussianPrivacyLoss(z, sampling_prob=q, adjacency_type=mechanism.AdjacencyType.REMOVE)
    losses = np.linspace(max(-3.0, 0.999 * math.log1p(-q)) if q < 1 else -3.0, 3.0, 61)
    values = pld.profile(Round(q, z), losses)
    np.testing.assert_allclose(
        np.where(losses < 0, values - np.expm1(losses), values),
        theirs.get_delta_for_epsilon(losses),  # pyrefly: ignore[bad-argument-type]
        atol=1e-15,
    )
    # The masses on a grid, in both directions.
    whole = privacy_loss_distribution.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=0.01)
    ours = pld._one_round(Round(q, z), Grid(0.01, 1e-20))
    for mine, other in zip(ours, (whole._pmf_remove, whole._pmf_add), strict=True):
        dense = other.to_dense_pmf()
        at = {dense._lower_loss + index: mass for index, mass in enumerate(dense._probs)}
        for index, log in enumerate(mine.logs):
            assert math.exp(log) == pytest.approx(at.get(mine.first + index, 0.0), abs=1e-11)


@pytest.mark.parametrize(
    "kind",
    [Round(1e-6, 0.5), Round(0.01, 1.0), Round(0.3, 4.0), Round(0.01, 0.5, EXCHANGED), Round(0.01, 1.0, REPLACED),
     Round(0.3, 4.0, REPLACED)],
)  # fmt: skip
@pytest.mark.parametrize("grid", [Grid(1e-4, 1e-18), Grid(1e-2, 1e-4)], ids=["fine", "cut where it shows"])
def test_the_masses_of_one_round_add_up(kind, grid) -> None:
    """To one for each population, also after a million rounds; what is cut off is a certain giveaway."""
    for one in pld._one_round(kind, grid):
        masses = np.exp(one.logs)
        assert masses.sum() + one.infinite == pytest.approx(1, abs=1e-14)
        assert (masses * np.exp(-one.losses)).sum() <= 1 + 1e-14


# Cohorts of fixed size, under replacing one user. Updates are numbers in [-1, 1]; noise_multiplier is the noise.


def outputs(users: list[float], cohort: int, noise: float, at: np.ndarray) -> np.ndarray:
    """The density of one round's noised sum: a mixture over every cohort."""
    sums = [sum(chosen) for chosen in combinations(users, cohort)]
    density = sum(np.exp(-0.5 * ((at - mean) / noise) ** 2) for mean in sums)
    return density / (len(sums) * noise * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("noise", first_of([0.7, 1.5]))
def test_no_pair_of_populations_passes_the_profile_and_one_attains_it(noise) -> None:
    cohort, at = 2, np.linspace(-20, 20, 40_001)
    bound = pld.profile(Round(cohort / 6, noise / 2, EXCHANGED), np.array([0.0, 0.3, 1.0, 2.0]))
    rng = np.random.default_rng(0)
    largest = np.zeros(4)
    for trial in range(60):
        others = [-1.0] * 5 if trial == 0 else rng.uniform(-1, 1, 5).tolist()
        ends = (1.0, -1.0) if trial % 2 == 0 else rng.uniform(-1, 1, 2).tolist()
        one, other = (outputs([*others, end], cohort, noise, at) for end in ends)
        for p, q in ((one, other), (other, one)):
            deltas = [np.maximum(p - math.exp(e) * q, 0).sum() * (at[1] - at[0]) for e in (0.0, 0.3, 1.0, 2.0)]
            assert np.all(deltas <= bound + 1e-6)
            largest = np.maximum(largest, deltas)
    np.testing.assert_allclose(largest, bound, rtol=1e-3)  # all others at -1, and 1 replaced by -1


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("target", first_of([1.0, 2.0, 3.0]))
def test_two_rounds_of_the_worst_populations_stay_below(turned, target) -> None:
    """Also when the second round's updates are such that the populations change parts: rounds may adapt to what was."""
    users, cohort, z = 10, 3, 1.2
    at = np.linspace(-9, 11, 2001)
    without = np.exp(-0.5 * (at / z) ** 2) / (z * math.sqrt(2 * math.pi))
    joined = np.exp(-0.5 * ((at - 2) / z) ** 2) / (z * math.sqrt(2 * math.pi))
    mixture = (1 - cohort / users) * without + cohort / users * joined
    second = (without, mixture) if turned else (mixture, without)
    p, q = np.outer(mixture, second[0]), np.outer(without, second[1])
    delta = float(np.maximum(p - math.exp(target) * q, 0).sum() * (at[1] - at[0]) ** 2)
    event = SampledGaussian(z, "fixed", cohort / users, cohort=cohort, users=users)
    assert epsilon([(event, 2)], delta, "pld") >= target * (1 - 1e-4)


def test_many_rounds_of_fixed_size_lie_between_what_is_attained_and_renyi() -> None:
    """28.42 is attained by the worst fixed pair of populations, a Poisson sample with half the noise."""
    paper = SampledGaussian(1.0, "fixed", 5000 / 763_430, cohort=5000, users=763_430)
    attained = epsilon([(SampledGaussian(0.5, "poisson", 5000 / 763_430), 5000)], 1e-9)
    value = epsilon([(paper, 5000)], 1e-9)
    assert attained == pytest.approx(28.42, abs=0.02)
    assert attained < value == pytest.approx(32.21, abs=0.03)
    assert epsilon([(paper, 5000)], 1e-9, "rdp") == pytest.approx(42.7, abs=0.1)


# Poisson sampling, under replacing one user.


def sampled_outputs(users: list[float], rate: float, noise: float, at: np.ndarray) -> np.ndarray:
    """The density of one round's noised sum: a mixture over everybody's coins."""
    density = np.zeros_like(at)
    for coins in product((0, 1), repeat=len(users)):
        mean, joined = sum(user for user, coin in zip(users, coins, strict=True) if coin), sum(coins)
        chance = rate**joined * (1 - rate) ** (len(users) - joined)
        density += chance * np.exp(-0.5 * ((at - mean) / noise) ** 2)
    return density / (noise * math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("rate", "noise"), first_of([(0.3, 0.7), (0.05, 1.0), (0.8, 2.0)]))
def test_no_pair_of_sampled_populations_passes_the_profile_and_one_attains_it(rate, noise) -> None:
    at, epsilons = np.linspace(-25, 25, 20_001), (0.0, 0.2, 0.5, 1.0)
    bound = pld.profile(Round(rate, noise, REPLACED), np.array(epsilons))
    rng = np.random.default_rng(0)
    largest = np.zeros(len(epsilons))
    for trial in range(60):
        others = [0.0] * 4 if trial == 0 else rng.uniform(-1, 1, 4).tolist()
        ends = (1.0, -1.0) if trial % 2 == 0 else rng.uniform(-1, 1, 2).tolist()
        one, other = (sampled_outputs([*others, end], rate, noise, at) for end in ends)
        for p, q in ((one, other), (other, one)):
            deltas = [np.maximum(p - math.exp(e) * q, 0).sum() * (at[1] - at[0]) for e in epsilons]
            assert np.all(deltas <= bound + 1e-6)
            largest = np.maximum(largest, deltas)
    np.testing.assert_allclose(largest, bound, rtol=1e-3)  # nobody else sends anything, and 1 is replaced by -1


@pytest.mark.parametrize("target", first_of([0.5, 1.5, 2.5]))
def test_two_rounds_of_a_user_who_turns_round_are_charged_as_they_are(target) -> None:
    rate, z, at = 0.3, 1.2, np.linspace(-9, 9, 2001)
    one, other = (sampled_outputs([end], rate, z, at) for end in (1.0, -1.0))
    given_away = np.outer(one, one) - math.exp(target) * np.outer(other, other)
    delta = float(np.maximum(given_away, 0).sum() * (at[1] - at[0]) ** 2)
    hardly_anything = SampledGaussian(1e6, "fixed", 0.01, cohort=10, users=1000)
    value = epsilon([(SampledGaussian(z, "poisson", rate), 2), (hardly_anything, 1)], delta)
    assert target * (1 - 1e-4) <= value <= 1.01 * target


@pytest.mark.parametrize(("q", "z", "order"), [(1.0, 2.0, 5.0), (0.1, 1.0, 3.0), (0.01, 0.6, 1.5), (0.3, 4.0, 64.0)])
def test_the_divergence_of_replacing_is_that_of_a_finer_sum(q, z, order) -> None:
    from scipy.integrate import quad

    from sottovoce_evidence.accounting.rdp import _of_replacing

    def log_density(x: float, mean: float) -> float:
        parts = [(1 - q, 0.0), (q, mean)]
        logs = [math.log(share) - 0.5 * ((x - m) / z) ** 2 for share, m in parts if share]
        return float(np.logaddexp.reduce(logs)) - math.log(z * math.sqrt(2 * math.pi))

    top = 2 * order
    whole = quad(
        lambda x: math.exp(order * log_density(x, 1.0) + (1 - order) * log_density(x, -1.0)),
        -40 * z, top + 40 * z, points=[0.0, 1.0, top - 1], limit=2000,
    )[0]  # fmt: skip
    assert _of_replacing(q, z, order, math.inf) == pytest.approx(math.log(whole) / (order - 1), rel=1e-7)
    if q == 1:
        assert _of_replacing(q, z, order, math.inf) == pytest.approx(order * 2 / z**2)


@pytest.mark.parametrize(
    ("q", "z", "rounds", "factor"),
    first_of(
        [(0.01, 0.3, 1, 1.01), (0.3, 1.0, 10, 1.9), (0.9, 0.5, 1, 1.6), (1 - 1e-6, 2.0, 3, 1.001), (1.0, 0.5, 2, 1.001)]
    ),
)
def test_a_divergence_that_would_take_too_many_points_is_bounded_from_above(q, z, rounds, factor, monkeypatch) -> None:
    """With hardly any noise all orders would take minutes, and none of them would matter."""
    from sottovoce_evidence.accounting import rdp

    spent = {SampledGaussian(z, "poisson", q): rounds}
    exact = rdp.renyi_epsilon(spent, 1e-6, True)
    rdp._divergences.cache_clear()
    monkeypatch.setattr(rdp, "_MOST_POINTS", 0)
    bound = rdp.renyi_epsilon(spent, 1e-6, True)
    rdp._divergences.cache_clear()
    assert exact * (1 - 1e-12) <= bound <= factor * exact


def test_the_points_of_a_divergence_have_an_end(monkeypatch) -> None:
    from sottovoce_evidence.accounting import rdp

    points, linspace = [], np.linspace
    monkeypatch.setattr(np, "linspace", lambda *range_: points.append(range_[2]) or linspace(*range_))
    rdp._divergences.__wrapped__(SampledGaussian(0.04, "poisson", 0.01), True)
    assert max(points, default=0) <= 100_000
