from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.privacy.clipping import FlatClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.adaptive import QuantileTracking
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.schedule import Schedule

TRACKING = QuantileTracking(quantile=0.5, learning_rate=0.2, bit_noise=5.0, cohort=100.0)


@pytest.mark.parametrize("estimator", [FixedDenominator(100.0), ClippedDenominator(60.0)])
@pytest.mark.parametrize("clip", [FlatClip(3.0), PerLayerClip((1.0, 2.0, 0.5)), PerLayerClip.even(2.0, 11)])
def test_update_and_bits_together_are_charged_z(clip, estimator):
    """The joint move of a user, in units of the noise, is 1/z: all of what the accountant assumes, and no more."""
    mechanism = Mechanism(Poisson(0.1), clip, estimator, 0.8, tracking=TRACKING)
    norms = mechanism.clip_norms(1, mechanism.start())
    update_std, bit_std = mechanism.noise_std(1, norms)
    moves = [mechanism.sensitivity(norms) / update_std] + [0.5 / bit_std] * len(clip.clip_norms)
    assert math.hypot(*moves) == pytest.approx(1 / 0.8, rel=1e-9)
    assert mechanism.event(1) == SampledGaussian(0.8, "poisson", 0.1)


def test_the_update_gets_more_noise_to_make_room_for_the_bits():
    plain = Mechanism(Poisson(0.1), FlatClip(3.0), FixedDenominator(100.0), 1.0)
    adaptive = Mechanism(Poisson(0.1), FlatClip(3.0), FixedDenominator(100.0), 1.0, tracking=TRACKING)
    assert adaptive.noise_std(1, (3.0,))[0] == pytest.approx(plain.noise_std(1, (3.0,))[0] / math.sqrt(1 - 0.01))


@pytest.mark.parametrize(("bit_noise", "parts"), [(0.0, 1), (0.5, 1), (1.6, 11)])
def test_bits_that_cost_more_than_the_round_are_refused(bit_noise, parts):
    tracking = QuantileTracking(0.5, 0.2, bit_noise, 100.0)
    with pytest.raises(SottoError, match="the bits cost more than the round"):
        Mechanism(Poisson(0.1), PerLayerClip.even(1.0, parts), FixedDenominator(9.0), 1.0, tracking=tracking)


def test_a_schedule_of_noise_is_checked_at_its_worst_round():
    with pytest.raises(SottoError, match="the bits cost more than the round"):
        Mechanism(
            Poisson(0.1), FlatClip(1.0), FixedDenominator(9.0), 1.0, tracking=TRACKING,
            noise_schedule=Schedule(((1, 1.0), (50, 11.0))),
        )  # fmt: skip


@given(bits=st.floats(-1e6, 1e6), norm=st.floats(1e-3, 1e3))
def test_the_clip_norm_moves_towards_the_quantile(bits, norm):
    """Too many unclipped: down. Too few: up. Never by more than e^±η_C, whatever the noise says."""
    before = np.array([norm], np.float32)
    after = TRACKING.next_clip_norms(before, np.array([bits]))
    if bits > 1:
        assert after < before
    if bits < -1:
        assert after > before
    assert math.exp(-0.11) < after / before < math.exp(0.11)


def test_it_settles_where_the_quantile_is():
    generator = np.random.default_rng(0)
    norms = np.array([10.0], np.float32)
    tracking = QuantileTracking(0.8, 0.2, 5.0, 100.0)
    settled = []
    for round_number in range(400):
        lengths = generator.lognormal(0.0, 0.5, size=100)
        bits = np.sum(np.where(lengths <= norms[0], 0.5, -0.5)) + generator.normal(0, 5.0)
        norms = tracking.next_clip_norms(norms, np.array([bits]))
        if round_number > 100:
            settled.append(norms[0])
    assert np.mean(settled) == pytest.approx(np.exp(0.5 * 0.8416), rel=0.05)


def test_the_tracked_norms_are_those_the_noise_follows():
    mechanism = Mechanism(Poisson(0.1), FlatClip(3.0), FixedDenominator(100.0), 1.0, tracking=TRACKING)
    assert joint_norm(mechanism.clip_norms(7, np.array([0.5], np.float32))) == 0.5
    ratio = mechanism.noise_std(7, (0.5,))[0] / mechanism.noise_std(7, (3.0,))[0]
    assert ratio == pytest.approx(0.5 / 3.0)


@pytest.mark.parametrize(("bits", "limit"), [(1e6, 1e-9), (-1e6, 1e9)], ids=["downwards", "upwards"])
def test_the_clip_norm_stays_where_float32_has_room_for_its_square(bits, limit):
    tracking, norms = QuantileTracking(0.5, 20.0, 5.0, 100.0), np.array([3.0], np.float32)
    for _ in range(50):
        norms = tracking.next_clip_norms(norms, np.array([bits]))
    assert norms[0] == np.float32(limit)


@pytest.mark.parametrize("bit_noise", [1e16, 1e-7, -1.0, float("nan"), float("inf")])
def test_noise_that_cannot_be_drawn_is_refused_before_a_round_is_paid_for(bit_noise):
    with pytest.raises(SottoError, match="bit_noise"):
        QuantileTracking(0.5, 0.2, bit_noise, 100.0)
