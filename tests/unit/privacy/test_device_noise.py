"""Noise of devices: shares of it suffice without those who collude, the server tops up, and both are charged."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import jax
import numpy as np
import pytest
from scipy import stats

from sottovoce.privacy import skellam
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Estimate, Mechanism
from sottovoce.privacy.sampling import MinSeparation, Poisson
from sottovoce_evidence import device_noise
from sottovoce_evidence.accounting import SampledSkellam, epsilon
from sottovoce_evidence.accounting.events import MOST_COORDINATES, Covered
from sottovoce_evidence.accounting.matrices import Participation
from sottovoce_evidence.accounting.skellam import divergences, skellam_divergence
from sottovoce_evidence.bounds import grid_of
from sottovoce_evidence.device_noise import STEPS, DeviceNoise, how_often
from sottovoce_evidence.errors import SottoError

DEVICES = DeviceNoise(0.8, survivors=12, colluding=3, participations=7)
S, QW, SIZE, KEY = 1.3, 4.0, 3000, bytes(range(32))


def mechanism(devices: DeviceNoise = DEVICES, z: float = 1.0) -> Mechanism:
    return Mechanism(Poisson(0.01), FlatClip(S), FixedDenominator(QW), z, devices=devices)


def test_constants_are_those_of_the_grid_and_of_the_sampler():
    for norm in (1.0, 1.3, 1.999, 15.0):
        assert STEPS <= norm / grid_of(norm) <= 2 * STEPS
    assert device_noise.LEAST_STD == skellam.LEAST_STD


@pytest.mark.parametrize(("survivors", "colluding"), list(product([2, 9, 50], [0, 1])))
def test_the_noise_of_the_honest_survivors_suffices(survivors, colluding):
    """Any so many of them have z_s · S, whatever the others send."""
    found = DeviceNoise(0.8, survivors, colluding, 1)
    honest = survivors - colluding
    assert honest * found.share(STEPS) ** 2 >= (0.8 * STEPS) ** 2 * (1 - 1e-12)
    assert honest * found.share(STEPS) ** 2 <= (0.8 * STEPS) ** 2 * (1 + 1e-12)


def test_shares_of_honest_devices_have_the_declared_variance_as_they_are_drawn():
    """Nine of twelve: their sum has the variance (z_s · S)², and not 0.9 of it, which forgets one that colludes."""
    keys = [bytes([number]) * 32 for number in range(DEVICES.honest)]
    total = sum(np.asarray(skellam.skellam(key, SIZE, DEVICES.share(STEPS))) for key in keys)
    squares, chi = np.sum((total / (0.8 * STEPS)) ** 2), stats.chi2(SIZE)
    assert 1e-3 < chi.cdf(squares) < 1 - 1e-3
    assert chi.cdf(squares * 9 / 12) < 1e-6


def test_the_server_tops_up_to_the_noise_of_the_model():
    top_up = DEVICES.top_up(1.0, STEPS)
    assert top_up**2 + (0.8 * STEPS) ** 2 == pytest.approx(STEPS**2, rel=1e-9)
    assert top_up**2 + (0.8 * STEPS) ** 2 >= STEPS**2
    assert DEVICES.top_up(0.8, STEPS) == 0


def noised(made: Mechanism, seed: int = 0) -> np.ndarray:
    """What a round of zeros releases, in multiples of the sensitivity."""
    key = bytes([seed]) * 32
    zeros = Estimate({"w": np.zeros(SIZE)})
    released, _ = made.add_noise(zeros, (), 1, made.clip_norms(1, None), key)
    return np.asarray(released.update["w"], np.float64) / made.sensitivity(made.clip_norms(1, None))


def test_a_simulation_has_the_noise_of_all_survivors_and_a_server_its_own():
    chi = stats.chi2(SIZE)
    for devices, variance in (
        (DEVICES, 0.64 * 12 / 9 + 0.36),
        (replace(DEVICES, simulated=False), 0.36),
    ):
        squares = np.sum(noised(mechanism(devices)) ** 2)
        assert 1e-3 < chi.cdf(squares / variance) < 1 - 1e-3
        assert not 1e-3 < chi.cdf(squares / (0.85 * variance)) < 1 - 1e-3
    assert not np.any(noised(mechanism(replace(DEVICES, simulated=False), z=0.8)))
    std, _ = mechanism().noise_std(1, [S])
    assert std == pytest.approx(math.sqrt(0.64 * 12 / 9 + 0.36) * S / QW)


def test_what_is_released_is_a_function_of_a_sum_of_whole_numbers():
    """Noise moves the released numbers by whole steps of the grid, whatever the sum is."""
    made = mechanism()
    step = made.estimator.step(made.grid([S]))
    exact = np.arange(SIZE) * step * 1000
    released, _ = made.add_noise(Estimate({"w": exact}), (), 1, np.array([S], np.float32), KEY)
    alone, _ = made.add_noise(Estimate({"w": exact * 0}), (), 1, np.array([S], np.float32), KEY)
    with jax.enable_x64(True):
        moved = np.asarray(skellam.skellam(KEY, SIZE, DEVICES.drawn_at_once(1.0, made.steps([np.float32(S)]))))
    np.testing.assert_array_equal(np.asarray(alone.update["w"]), (moved * step).astype(np.float32))
    np.testing.assert_array_equal(
        np.asarray(released.update["w"]), ((np.arange(SIZE) * 1000 + moved) * step).astype(np.float32)
    )


def test_rounds_are_charged_as_skellam_noise():
    made = mechanism()
    expected = SampledSkellam(1.0, "poisson", 0.01, STEPS)
    assert made.event(3) == made.event(3, again=True) == expected
    assert made.events(10) == [(expected, 10)]
    apart = MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2)
    made = replace(made, sampler=apart)
    assert made.events(10) == [(SampledSkellam(1.0, "fixed", 1.0, STEPS), 2)]
    assert isinstance(made.event(9), Covered)


def test_the_server_is_charged_every_round_of_a_user_without_sampling():
    ((event, count),) = DEVICES.against_server
    assert (event.noise_multiplier, event.user_rate, count) == (0.8, 1.0, 7)
    fewer = replace(DEVICES, colluding=0)  # the share is smaller, and what is claimed is the same
    assert fewer.against_server == DEVICES.against_server
    assert epsilon(DEVICES.against_server, 1e-6, "rdp") > epsilon(mechanism().events(7), 1e-6, "rdp")


def test_a_user_joins_no_more_rounds_than_coins_draw_but_for_a_small_chance():
    most = how_often(Poisson(0.01), 1000)
    assert stats.binom.sf(most, 1000, 0.01) <= 2.0**-40 < stats.binom.sf(most - 1, 1000, 0.01)
    assert [how_often(Poisson(0.01), 1000, declared) for declared in (20, 2000)] == [20, 1000]
    assert how_often(Poisson(1.0), 5) == 5
    apart = MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2)
    assert how_often(apart, 10) == 2


def test_a_device_lets_a_user_join_as_often_as_is_charged():
    assert mechanism().joining(1000) == Participation(1000, 1, DEVICES.participations)
    assert replace(mechanism(), devices=None).joining(1000) is None
    apart = MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2)
    assert replace(mechanism(), sampler=apart).joining(10) == apart.participation(10)


def test_noise_stays_within_its_largest_but_for_the_declared_chance():
    """The bound is that of all devices together, for all coordinates, and within a quarter of the exact quantile."""
    largest = DEVICES.largest(STEPS, devices=20, size=1_000_000)
    std = math.sqrt(20) * DEVICES.share(STEPS)
    assert 2e6 * stats.norm.sf(largest / std) <= 2.0**-40
    assert 2e6 * stats.norm.sf(0.9 * largest / std) > 2.0**-40


@pytest.mark.parametrize(
    "changed",
    [
        {"estimator": ClippedDenominator(QW)},
        {"experiment": True},
        {"devices": replace(DEVICES, colluding=12)},
        {"noise_multiplier": 0.7},
    ],
)
def test_what_has_no_accounting_is_refused(changed):
    with pytest.raises(SottoError, match="noise of devices needs"):
        replace(mechanism(), **changed)


@pytest.mark.parametrize("silos", [2, 3])
def test_noise_is_over_all_that_a_person_moves_in_several_silos(silos):
    """Each silo clips to S/m. The longest whole vector of a person is S, in L2, and in L1 no longer than is charged."""
    made = replace(mechanism(), sampler=Poisson(0.01, silos=silos), clipping=FlatClip(S / silos))
    clip_norms = made.clip_norms(1, None)
    steps, grid = made.steps(clip_norms), made.grid(clip_norms)
    person = silos * np.floor(np.full(4, float(clip_norms[0]) / grid / 2))  # all silos pull one way
    assert 0.999 * steps < np.linalg.norm(person) <= steps
    assert np.abs(person).sum() <= SampledSkellam(1.0, "poisson", 1.0, steps).l1
    assert DEVICES.honest * DEVICES.share(steps) ** 2 >= (0.8 * np.linalg.norm(person)) ** 2 * (1 - 1e-12)
    # Charged for the coins of all silos, over a grid that is no finer than it is.
    assert made.event(1) == SampledSkellam(1.0, "poisson", 0.01, STEPS, silos)
    assert steps >= silos * STEPS


def test_silos_that_let_a_person_join_in_different_rounds_give_the_server_no_more():
    """Shares of S in more rounds cost less than whole ones in fewer; the noise of all rounds touched is charged."""
    ((event, count),) = DEVICES.against_server
    m, orders = 3, np.arange(2, 40)
    variance = (event.noise_multiplier * m * STEPS) ** 2
    whole = count * skellam_divergence(orders, (m * STEPS) ** 2, m * STEPS, variance)
    apart = m * count * skellam_divergence(orders, STEPS**2, STEPS, variance)
    assert np.all(apart < whole)
    np.testing.assert_allclose(divergences(event, tuple(orders), False) * count, whole, rtol=1e-9)
    assert count * event.apart >= m * count * MOST_COORDINATES / variance**2
