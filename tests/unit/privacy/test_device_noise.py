"""Noise of devices: shares of it suffice without those who collude, the server tops up, and both are charged."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import jax
import numpy as np
import pytest
from scipy import stats

from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Estimate, Mechanism
from sottovoce.privacy.noise import Scale, rounded_gaussian
from sottovoce.privacy.sampling import InTurn, MinSeparation, Poisson
from sottovoce_evidence.accounting import SampledExamples, SampledGaussian, epsilon
from sottovoce_evidence.accounting.events import Covered
from sottovoce_evidence.accounting.matrices import Participation
from sottovoce_evidence.adaptive import QuantileTracking
from sottovoce_evidence.bounds import grid_of
from sottovoce_evidence.device_noise import LEAST_STD, STEPS, WRAPS, DeviceNoise, how_often
from sottovoce_evidence.errors import SottoError

DEVICES = DeviceNoise(0.8, survivors=12, colluding=3, participations=7)
S, QW, SIZE, KEY = 1.3, 4.0, 3000, bytes(range(32))


def mechanism(devices: DeviceNoise = DEVICES, z: float = 1.0) -> Mechanism:
    return Mechanism(Poisson(0.01), FlatClip(S), FixedDenominator(QW), z, devices=devices)


def test_the_grid_has_as_many_steps_as_are_declared():
    for norm in (1.0, 1.3, 1.999, 15.0):
        assert STEPS <= norm / grid_of(norm) <= 2 * STEPS


@pytest.mark.parametrize(("survivors", "colluding"), list(product([2, 9, 50, 2000], [0, 1])))
@pytest.mark.parametrize("z", [0.8, 0.8 + 1e-7, 1.0, 300.0])
def test_the_noise_of_the_honest_survivors_and_the_server_is_what_is_charged(survivors, colluding, z):
    """As it is drawn: scales are rounded up, by little. No share of anyone else is counted on."""
    found = DeviceNoise(0.8, survivors, colluding, 1)
    honest = survivors - colluding
    ((seen, _),) = found.against_server
    share, top_up = drawn(found.share * STEPS), drawn(found.multiplier(z, 0) * STEPS) if z > 0.8 else 0.0
    for variance, charged in (
        (honest * share**2, seen.noise_multiplier),
        (honest * share**2 + top_up**2, mechanism(found, z).event(1).noise_multiplier),
    ):
        assert 1 - 1e-14 <= variance / (charged * STEPS) ** 2 <= 1 + 1e-8
    assert seen.noise_multiplier == 0.8


def drawn(std: float) -> float:
    """The standard deviation that is drawn for one, in steps."""
    scale = Scale.at_least(std)
    return scale.mantissa * 2.0**scale.exponent


def test_shares_of_honest_devices_have_the_declared_variance_as_they_are_drawn():
    """Nine of twelve: their sum has the variance (z_s · S)², and not 0.9 of it, which forgets one that colludes."""
    keys = [bytes([number]) * 32 for number in range(DEVICES.honest)]
    total = sum(np.asarray(rounded_gaussian(key, SIZE, DEVICES.share * STEPS)) for key in keys)
    squares, chi = np.sum((total / (0.8 * STEPS)) ** 2), stats.chi2(SIZE)
    assert 1e-3 < chi.cdf(squares) < 1 - 1e-3
    assert chi.cdf(squares * 9 / 12) < 1e-6


def test_the_server_tops_up_to_the_noise_of_the_model():
    assert DEVICES.multiplier(1.0, 0) == pytest.approx(0.6, rel=1e-12)
    assert DEVICES.multiplier(0.8, 0) == 0


@pytest.mark.parametrize("z", [2.0, 0.8])
def test_a_share_of_fewer_steps_than_the_proof_needs_is_refused(z):
    """It is the share of one device that counts: many honest ones leave each little."""
    most = int((0.8 * STEPS / LEAST_STD) ** 2)
    enough = DeviceNoise(0.8, most + 3, colluding=3, participations=1)
    assert enough.share * STEPS >= LEAST_STD
    mechanism(enough, z)
    with pytest.raises(SottoError, match="honest devices; raise it to 0"):
        mechanism(replace(enough, survivors=most + 4), z)


def test_a_top_up_of_fewer_steps_than_the_proof_needs_is_refused():
    """Also where it would hardly matter. Without any there is nothing to prove."""
    least = math.hypot(0.8, LEAST_STD / STEPS)
    mechanism(z=least * (1 + 1e-12))
    with pytest.raises(SottoError, match="too little noise to add up to noise_multiplier"):
        mechanism(z=least * (1 - 1e-9))
    mechanism(z=0.8)


def noised(made: Mechanism, seed: int = 0) -> np.ndarray:
    """What a round of zeros releases, in multiples of the sensitivity."""
    key = bytes([seed]) * 32
    zeros = Estimate({"w": np.zeros(SIZE)})
    released, _ = made.add_noise(zeros, (), 1, made.clip_norms(1, None), key)
    return np.asarray(released.update["w"], np.float64) / made.sensitivity(made.clip_norms(1, None))


def test_a_simulation_has_the_noise_of_all_survivors_and_a_server_its_own():
    chi = stats.chi2(SIZE)
    for made, variance in (
        (mechanism(), 0.64 * 12 / 9 + 0.36),
        (mechanism().across_devices(), 0.36),
    ):
        squares = np.sum(noised(made) ** 2)
        assert 1e-3 < chi.cdf(squares / variance) < 1 - 1e-3
        assert not 1e-3 < chi.cdf(squares / (0.85 * variance)) < 1 - 1e-3
    assert not np.any(noised(mechanism(z=0.8).across_devices()))
    made = mechanism()
    assert made.noise_std(1, [S])[0] == pytest.approx(math.sqrt(0.64 * 12 / 9 + 0.36) * S / QW)
    # What devices and the server add up to at the least, whatever part of it the server draws.
    assert made.across_devices().noise_std(1, [S])[0] == pytest.approx(S / QW)
    assert made.across_devices().drawn_std(1, [S])[0] == pytest.approx(0.6 * S / QW)


def test_what_is_released_is_a_function_of_a_sum_of_whole_numbers():
    """Noise moves the released numbers by whole steps of the grid, whatever the sum is."""
    made = mechanism()
    step = made.estimator.step(made.grid([S]))
    exact = np.arange(SIZE) * step * 1000
    released, _ = made.add_noise(Estimate({"w": exact}), (), 1, np.array([S], np.float32), KEY)
    alone, _ = made.add_noise(Estimate({"w": exact * 0}), (), 1, np.array([S], np.float32), KEY)
    with jax.enable_x64(True):
        std = DEVICES.multiplier(1.0, DEVICES.survivors) * made.steps([np.float32(S)])
        moved = np.asarray(rounded_gaussian(KEY, SIZE, std))
    np.testing.assert_array_equal(np.asarray(alone.update["w"]), (moved * step).astype(np.float32))
    np.testing.assert_array_equal(
        np.asarray(released.update["w"]), ((np.arange(SIZE) * 1000 + moved) * step).astype(np.float32)
    )


def test_what_is_released_is_a_function_of_a_sum_that_is_known_up_to_its_modulus():
    """The server's noise does not show whether the sum wrapped round before: where it did, nothing else changes."""
    modulus, clip_norms = 2**32, np.array([S], np.float32)
    made = mechanism().across_devices(modulus)
    step = made.estimator.step(made.grid(clip_norms))
    near = np.concatenate([np.full(SIZE // 2, 2**31 - 1), np.full(SIZE // 2, -(2**31))]).astype(np.float64)
    sums = near, near + modulus, near - np.sign(near) * modulus
    found = [made.add_noise(Estimate({"w": one * step}), (), 1, clip_norms, KEY)[0].update["w"] for one in sums]
    for one in found[1:]:
        np.testing.assert_array_equal(found[0], one)
    steps = np.asarray(found[0], np.float64) / step
    assert np.all(np.abs(steps) <= modulus / 2)
    assert 0.3 < np.mean(steps[: SIZE // 2] > 0) < 0.7  # half of them are beyond the end of the range
    # Far from the ends it is as without.
    middle = Estimate({"w": np.arange(SIZE) * step * 1000})
    plain, same = (one.add_noise(middle, (), 1, clip_norms, KEY)[0] for one in (mechanism().across_devices(), made))
    np.testing.assert_array_equal(plain.update["w"], same.update["w"])


@pytest.mark.parametrize(
    "sampler",
    [
        Poisson(0.01),
        Poisson(0.01, silos=2),
        InTurn(cohort=2, users=20, seed=0),
        MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2),
    ],
)
def test_a_round_is_charged_as_without_devices(sampler):
    made = replace(mechanism(), sampler=sampler)
    plain = replace(made, devices=None)
    assert made.events(10) == plain.events(10)
    assert [made.event(number) for number in (3, 9)] == [plain.event(number) for number in (3, 9)]


def test_rounds_are_charged_as_gaussian_noise():
    made = mechanism()
    expected = SampledGaussian(1.0, "poisson", 0.01)
    assert made.event(3) == expected
    assert made.events(10) == [(expected, 10)]
    apart = MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2)
    assert isinstance(replace(made, sampler=apart).event(9), Covered)


def test_the_server_is_charged_every_round_of_a_user_without_sampling():
    ((event, count),) = DEVICES.against_server
    assert (event.noise_multiplier, event.user_rate, count) == (0.8, 1.0, 7)
    fewer = replace(DEVICES, colluding=0)  # the share is smaller, and what is claimed is the same
    assert fewer.against_server == DEVICES.against_server
    assert epsilon(DEVICES.against_server, 1e-6, "rdp") > epsilon(mechanism().events(7), 1e-6, "rdp")


def test_a_user_joins_no_more_rounds_than_coins_draw_but_for_a_small_chance():
    for rounds, rate in ((1000, 0.01), (100, 0.5), (50, 0.9), (3000, 1e-6), (10**6, 1e-4)):
        most = how_often(Poisson(rate), rounds)
        assert stats.binom.sf(most, rounds, rate) <= 2.0**-40 < stats.binom.sf(most - 1, rounds, rate)
    assert [how_often(Poisson(0.01), 1000, declared) for declared in (20, 2000)] == [20, 1000]
    assert how_often(Poisson(1.0), 5) == 5
    apart = MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2)
    assert how_often(apart, 10) == 2


def test_a_device_lets_a_user_join_as_often_as_is_charged():
    assert mechanism().joining(1000) == Participation(1000, 1, DEVICES.participations)
    assert replace(mechanism(), devices=None).joining(1000) is None
    apart = MinSeparation(cohort=2, users=20, seed=0, min_separation=5, most_participations=2)
    assert replace(mechanism(), sampler=apart).joining(10) == apart.participation(10)


@pytest.mark.parametrize("devices", [1, 20, 2000])
def test_noise_stays_within_its_largest_but_for_the_declared_chance(devices):
    """The bound is that of all devices together, for all coordinates, and within a tenth of the exact quantile."""
    largest = DEVICES.largest(STEPS, devices, size=1_000_000)
    std = math.sqrt(devices) * drawn(DEVICES.share * STEPS)
    assert 2e6 * stats.norm.sf((largest - devices / 2) / std) <= WRAPS
    assert 2e6 * stats.norm.sf(0.9 * largest / std) > WRAPS


def test_roundings_of_many_devices_count_in_the_largest_noise():
    """Where a share is hardly a step, half a step for each is what counts: by the exact mass of their sum."""
    few, most = DeviceNoise(0.01, survivors=4, colluding=0, participations=1), 40
    one = np.diff(stats.norm.cdf(np.arange(-3, 5) - 0.5, scale=few.share * 64))
    assert few.share * 64 == pytest.approx(0.32)
    total = one
    for _ in range(most - 1):
        total = np.convolve(total, one)
    beyond = np.abs(np.arange(len(total)) - len(total) // 2) > few.largest(64, most, size=1)
    assert total[beyond].sum() <= WRAPS


@pytest.mark.parametrize(
    "changed",
    [
        {"estimator": ClippedDenominator(QW)},
        {"experiment": True},
        {"devices": replace(DEVICES, colluding=12)},
        {"noise_multiplier": 0.7},
        {"devices": replace(DEVICES, noise_multiplier=0.0)},
        {"tracking": QuantileTracking(0.5, 0.2, bit_noise=2.0, cohort=10.0)},
    ],
)
def test_what_has_no_accounting_is_refused(changed):
    with pytest.raises(SottoError, match=r"federation\.noise='devices' needs"):
        replace(mechanism(), **changed)


@pytest.mark.parametrize("silos", [2, 3])
def test_noise_is_over_all_that_a_person_moves_in_several_silos(silos):
    """Each silo clips to S/m. The longest whole vector of a person is S, in steps."""
    made = replace(mechanism(), sampler=Poisson(0.01, silos=silos), clipping=FlatClip(S / silos))
    clip_norms = made.clip_norms(1, None)
    steps, grid = made.steps(clip_norms), made.grid(clip_norms)
    person = silos * np.floor(np.full(4, float(clip_norms[0]) / grid / 2))  # all silos pull one way
    assert 0.999 * steps < np.linalg.norm(person) <= steps
    assert DEVICES.honest * (DEVICES.share * steps) ** 2 >= (0.8 * np.linalg.norm(person)) ** 2 * (1 - 1e-12)
    # Charged for the coins of all silos, over a grid that is no finer than it is.
    assert made.event(1) == SampledExamples(silos * 1.0, 0.01, silos)
    assert steps >= silos * STEPS
