"""What the accountants promise of compositions: unequal rounds, histograms, curves, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples, first_of
from sottovoce_evidence.accounting import (
    ACCOUNTANTS,
    GaussianRelease,
    NonPrivate,
    SampledGaussian,
    epsilon,
    epsilon_curve,
    epsilons,
)
from sottovoce_evidence.accounting.calibration import calibrate
from sottovoce_evidence.errors import SottoError


def poisson(z: float, q: float) -> SampledGaussian:
    return SampledGaussian(z, "poisson", q)


def fixed(z: float, cohort: int, users: int) -> SampledGaussian:
    return SampledGaussian(z, "fixed", cohort / users, cohort=cohort, users=users)


# Contracts


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@examples(8)
@given(
    z=st.floats(0.5, 5), q=st.floats(1e-4, 0.2), rounds=st.integers(1, 2000), more=st.floats(1.05, 3),
    delta=st.sampled_from([1e-5, 1e-9]),
)  # fmt: skip
def test_epsilon_grows_with_rounds_rate_and_less_noise(accountant, z, q, rounds, more, delta) -> None:
    def value(z: float = z, q: float = q, rounds: int = rounds) -> float:
        return epsilon([(poisson(z, q), rounds)], delta, accountant)

    here = value() * (1 - 2e-3)  # two figures on grids of their own may differ by their accuracy
    assert value(rounds=math.ceil(rounds * more)) >= here
    assert value(q=q * more) >= here
    assert value(z=z / more) >= here


@pytest.mark.parametrize("event", [poisson, lambda z, q: fixed(z, round(q * 10**6), 10**6)])
@pytest.mark.parametrize(("z", "q", "rounds"), first_of([(0.6, 1e-3, 1000), (3.0, 1e-4, 1), (1.0, 0.05, 200)]))
def test_rdp_is_never_below_pld(event, z, q, rounds) -> None:
    spent = [(event(z, q), rounds)]
    assert epsilon(spent, 1e-7, "rdp") >= epsilon(spent, 1e-7, "pld") > 0


@dataclass(frozen=True)
class Unheard:
    noise_multiplier: float = 1.0


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_unknown_event_is_an_error(accountant) -> None:
    with pytest.raises(SottoError, match="no kind that an accountant can charge"):
        epsilon([(cast("Any", Unheard()), 1)], 1e-6, accountant)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [0.0, -1e-6, 1.0, 1.5, math.nan])
def test_a_delta_that_is_no_chance_is_an_error(accountant, delta) -> None:
    spent = [(poisson(1.0, 0.01), 1)]
    for ask in (
        lambda: epsilons(spent, [1e-6, delta], accountant),
        lambda: epsilon_curve(spent, delta, accountant),
        lambda: calibrate(spent, 1.0, delta, accountant),
    ):
        with pytest.raises(SottoError, match=r"must be in \(0, 1\)"):
            ask()


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_several_deltas_at_once_are_one_by_one(accountant) -> None:
    spent = [(poisson(1.0, 0.01), 100), (poisson(2.0, 0.02), 50)]
    deltas = [1e-9, 1e-5, 1e-6]
    assert epsilons(spent, deltas, accountant) == [epsilon(spent, delta, accountant) for delta in deltas]
    assert epsilons(spent, [], accountant) == []
    assert epsilons([*spent, (NonPrivate(), 1)], deltas, accountant) == [math.inf] * 3


# Rounds that differ


@pytest.mark.parametrize(
    "rounds",
    first_of([[(0.7, 0.01, 500), (1.3, 0.01, 500)], [(0.6, 0.002, 100), (1.0, 0.02, 300), (4.0, 0.3, 30)]]),
)
def test_unequal_rounds_compose_as_dp_accounting_composes_them(rounds) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    theirs = PLDAccountant(value_discretization_interval=2e-4)
    for z, q, count in rounds:
        theirs.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), count)
    spent = [(poisson(z, q), count) for z, q, count in rounds]
    assert epsilon(spent, 1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=5e-3)
    assert epsilon(spent[::-1], 1e-6) == pytest.approx(epsilon(spent, 1e-6), rel=1e-9)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_curve_follows_the_rounds_in_their_order(accountant) -> None:
    quiet, loud = poisson(2.0, 0.01), poisson(0.8, 0.01)
    before = [(GaussianRelease(8.0, 1e-9), 1)]
    curve = epsilon_curve([(quiet, 100), (loud, 60)], 1e-6, accountant, before)
    for t, spent in {1: [(quiet, 1)], 100: [(quiet, 100)], 160: [(quiet, 100), (loud, 60)]}.items():
        exact = epsilon([*before, *spent], 1e-6, accountant)
        assert exact * (1 - 1e-3) <= curve(t) <= exact + 0.05 * curve(160)
    assert curve(160) == pytest.approx(epsilon([*before, (loud, 60), (quiet, 100)], 1e-6, accountant), rel=1e-9)
    assert curve(0) == pytest.approx(epsilon(before, 1e-6, accountant), rel=1e-3)
    turned = epsilon_curve([(loud, 60), (quiet, 100)], 1e-6, accountant, before)
    assert turned(60) > 1.2 * curve(60)
    assert turned(160) == pytest.approx(curve(160), rel=1e-9)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_curve_is_for_one_relation_from_its_beginning(accountant) -> None:
    """Of words that were paid for before rounds of a fixed cohort, and of rounds of both kinds."""
    words, first, then = GaussianRelease(5.0, 1e-9), poisson(1.0, 0.01), fixed(2.0, 10, 1000)
    curve = epsilon_curve([(first, 3), (then, 2)], 1e-6, accountant, [(words, 1)])
    assert curve(0) == epsilon([(words, 1)], 1e-6, accountant, replaced=True)
    assert curve(3) == pytest.approx(epsilon([(words, 1), (first, 3)], 1e-6, accountant, replaced=True), rel=0.01)
    assert curve(5) == epsilon([(words, 1), (first, 3), (then, 2)], 1e-6, accountant)


def test_a_curve_is_infinite_from_a_release_without_protection_on() -> None:
    curve = epsilon_curve([(poisson(1.0, 0.01), 5), (NonPrivate(), 1), (poisson(1.0, 0.01), 2)], 1e-6, "rdp")
    assert math.isfinite(curve(5))
    assert curve(6) == curve(8) == math.inf


# Histograms


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_histogram_is_a_gaussian_over_everyone_and_a_share_of_delta(accountant) -> None:
    names = GaussianRelease(5.0, 1e-7)
    rounds = (poisson(1.0, 0.01), 200)
    value = epsilon([rounds, (names, 2)], 1e-6, accountant)
    gaussians = epsilon([rounds, (poisson(5.0, 1.0), 2)], 1e-6 - 2e-7, accountant)
    assert gaussians < value == pytest.approx(gaussians + 2e-7, rel=1e-9)
    with pytest.raises(SottoError, match="must be above 2e-07"):
        epsilon([rounds, (names, 2)], 2e-7, accountant)


@pytest.mark.parametrize("accountant", ["rdp", "moments"])
def test_histograms_of_one_noise_and_rounds_that_everyone_joins_are_all_charged(accountant) -> None:
    """They are the same Gaussian to the accountants, and must be added up, not take each other's place."""
    names = [(GaussianRelease(5.0, 1e-7), 1), (GaussianRelease(5.0, 2e-7), 1)]
    value = epsilon([*names, (poisson(5.0, 1.0), 3)], 1e-6, accountant)
    assert value == pytest.approx(epsilon([(poisson(5.0, 1.0), 5)], 1e-6 - 3e-7, accountant) + 3e-7, rel=1e-9)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_histogram_beside_fixed_size_rounds_is_charged_for_replacing(accountant) -> None:
    rounds = (fixed(2.0, 100, 10_000), 200)
    value = epsilon([rounds, (GaussianRelease(5.0, 1e-7), 1)], 1e-6, accountant)
    assert value == pytest.approx(epsilon([rounds, (fixed(5.0, 50, 50), 1)], 9e-7, accountant), rel=1e-3)


@pytest.mark.parametrize("replaced", [False, True])
def test_what_a_shown_name_costs_is_exact(replaced) -> None:
    """Two populations on a line: the Gaussian part, and beside it a name that one (or each) shows with chance δ_h."""
    shown, z, ε = 0.01, 2.0, 0.7
    δ = _gaussian_delta(z, ε)
    # With the user: (Gaussian at 1) x (shown or not); without: (Gaussian at 0) x (not, or another name shown).
    kept = 1 - shown
    with_user = shown + kept * _gaussian_delta(z, ε if replaced else ε - math.log(kept))
    without = shown + kept * δ if replaced else _gaussian_delta(z, ε + math.log(kept))
    event = GaussianRelease(z * 2 if replaced else z, shown)
    charged = [(event, 1)] + ([(fixed(1e6, 1, 1), 1)] if replaced else [])
    for truth in (with_user, without):
        if truth > shown:
            assert epsilon(charged, truth, "pld") >= ε * (1 - 1e-9)
    assert epsilon(charged, δ + shown, "pld") == pytest.approx(ε - math.log(kept), rel=1e-2)


def _gaussian_delta(z: float, epsilon: float) -> float:
    def normal(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return normal(0.5 / z - epsilon * z) - math.exp(epsilon) * normal(-0.5 / z - epsilon * z)
