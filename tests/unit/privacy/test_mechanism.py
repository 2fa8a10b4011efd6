from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import rounded_gaussian
from sottovoce.privacy.sampling import FixedSize, Poisson
from sottovoce_evidence.accounting import NonPrivate, SampledGaussian
from sottovoce_evidence.accounting.matrices import Banded
from sottovoce_evidence.adaptive import QuantileTracking
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.schedule import Schedule


@pytest.mark.parametrize("clip", [FlatClip(15.0), PerLayerClip.even(15.0, 11)])
@pytest.mark.parametrize(
    ("estimator", "sensitivity"), [(FixedDenominator(100.0), 0.15), (ClippedDenominator(99.0), 0.3)]
)
def test_noise_is_the_multiplier_times_the_sensitivity(clip, estimator, sensitivity):
    mechanism = Mechanism(Poisson(0.01), clip, estimator, noise_multiplier=0.8)
    clip_norms = mechanism.clip_norms(1, mechanism.start())
    assert mechanism.sensitivity(clip_norms) == pytest.approx(sensitivity)
    assert mechanism.noise_std(1, clip_norms) == (pytest.approx(0.8 * sensitivity), None)


@pytest.mark.parametrize("estimator", [FixedDenominator(100.0), ClippedDenominator(99.0)])
def test_a_person_in_several_silos_moves_as_far_as_one_user(estimator):
    """Every silo clips to S/m: the sensitivity and the noise are those of S, also with the bits of every silo."""
    one = Mechanism(Poisson(0.01), FlatClip(15.0), estimator, noise_multiplier=0.8)
    many = Mechanism(Poisson(0.01, silos=3), FlatClip(5.0), estimator, noise_multiplier=0.8)
    assert many.sensitivity((5.0,)) == pytest.approx(one.sensitivity((15.0,)))
    assert many.noise_std(1, (5.0,))[0] == pytest.approx(one.noise_std(1, (15.0,))[0])
    bits = Mechanism(Poisson(0.01, silos=3), FlatClip(5.0), estimator, 0.8, tracking=QuantileTracking(0.5, 0.2, 6.0, 9))
    std, bit_std = bits.noise_std(1, (5.0,))
    # In units of the noise: three updates and three bits, all one way.
    moved = math.hypot(3 * estimator.sensitivity(5.0) / std, 3 * 0.5 / bit_std)
    assert moved == pytest.approx(1 / 0.8)


def test_the_sampler_chooses_what_is_charged():
    poisson = Mechanism(Poisson(0.01), FlatClip(1.0), FixedDenominator(10.0), 1.5)
    assert poisson.event(1) == SampledGaussian(1.5, "poisson", 0.01)
    fixed = Mechanism(FixedSize(10, 1000), FlatClip(1.0), FixedDenominator(10.0), 1.5)
    assert fixed.event(1) == SampledGaussian(1.5, "fixed", 0.01, cohort=10, users=1000)
    assert fixed.event(1).relation == "replace-one-user"


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 0.0),
        Mechanism(Poisson(0.1), NoClip(), FixedDenominator(10.0), 1.0),
        Mechanism(Poisson(0.1), FlatClip(1.0), TrueAverage(), 1.0),
        Mechanism(Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 1.0, experiment=True, experiment_noise_std=0.5),
    ],
    ids=["no noise", "no clip", "true average", "experiment"],
)
def test_without_a_part_of_the_proof_nothing_is_promised(mechanism):
    assert mechanism.event(1) == NonPrivate()


def test_an_experiment_adds_the_noise_it_was_given():
    mechanism = Mechanism(Poisson(0.1), NoClip(), TrueAverage(), 0.0, experiment=True, experiment_noise_std=0.25)
    assert mechanism.noise_std(1, (math.inf,)) == (0.25, None)
    assert math.isinf(mechanism.sensitivity((math.inf,)))


def test_noise_follows_the_clip_norm_at_constant_cost():
    schedule = Schedule(((1, 1.0), (10, 0.25)))
    mechanism = Mechanism(Poisson(0.1), FlatClip(8.0), FixedDenominator(10.0), 1.5, clip_schedule=schedule)
    for number, clip_norm in ((1, 8.0), (9, 8.0), (10, 2.0), (500, 2.0)):
        norms = mechanism.clip_norms(number, None)
        assert norms.tolist() == [clip_norm]
        assert mechanism.noise_std(number, norms)[0] == pytest.approx(1.5 * clip_norm / 10)
    assert mechanism.events(500) == [(SampledGaussian(1.5, "poisson", 0.1), 500)]


def test_a_noise_that_changes_is_charged_round_by_round():
    schedule = Schedule(((1, 2.0), (10, 1.0), (20, 0.5)))
    mechanism = Mechanism(Poisson(0.1), FlatClip(8.0), FixedDenominator(10.0), 1.5, noise_schedule=schedule)
    stds = [mechanism.noise_std(number, (8.0,))[0] for number in (1, 10, 20)]
    assert stds == pytest.approx([2.4, 1.2, 0.6])
    charged = mechanism.events(25)
    assert charged == [(SampledGaussian(z, "poisson", 0.1), n) for z, n in ((3.0, 9), (1.5, 10), (0.75, 6))]
    each = [mechanism.event(t) for t in range(1, 26)]
    assert each == [event for event, count in charged for _ in range(count)]


def test_the_lemma_does_not_hold_where_weighted_updates_are_clipped():
    """Lemma 1 as printed: n users of weight 1/n that send ±nS move the clipped denominator's average by about nS/2."""
    n, estimator = 100, ClippedDenominator(1.0)
    crowd, newcomer = jnp.full((1,), float(n)), jnp.array([-1.0])  # each of n sends w·Δ = S, at weight 1/n
    moved = estimator.estimate(crowd + newcomer, jnp.array(2.0)) - estimator.estimate(crowd, jnp.array(1.0))
    assert float(jnp.abs(moved)[0]) == pytest.approx(50.5)
    assert estimator.sensitivity(1.0) == 1.0


def test_a_private_round_cannot_be_given_a_sigma():
    with pytest.raises(SottoError, match="for experiments"):
        Mechanism(Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 1.0, experiment_noise_std=0.5)


def test_an_experiment_without_a_clip_scales_its_noise_by_the_nominal_one():
    mechanism = Mechanism(
        Poisson(0.1), NoClip(), FixedDenominator(10.0), 2.0, experiment=True, nominal_clip_norm=5.0
    )  # fmt: skip
    assert mechanism.noise_std(1, (math.inf,))[0] == pytest.approx(1.0)
    assert mechanism.event(1) == NonPrivate()


@pytest.mark.parametrize("estimator", [FixedDenominator(3.0), ClippedDenominator(3.0)], ids=["fixed", "clipped"])
def test_what_is_released_is_a_function_of_a_sum_of_whole_numbers(estimator, monkeypatch):
    """The estimate and its noise are whole steps of one public grid, and float32 comes after their sum."""
    mechanism = Mechanism(Poisson(1.0), FlatClip(4.0), estimator, 1.0)
    drawn = []
    real = rounded_gaussian

    def watched(*arguments):
        drawn.append((arguments, real(*arguments)))
        return drawn[-1][1]

    monkeypatch.setattr("sottovoce.privacy.mechanism.rounded_gaussian", watched)
    totals = np.random.default_rng(0).integers(-(2**45), 2**45, 3000) * mechanism.grid((4.0,))
    query = mechanism.estimate({"x": totals}, np.float64(5.0), np.zeros(1))
    noised = mechanism.add_noise(query, (), 1, (4.0,), bytes(32))[0].update["x"]
    (((_, size, scale, _), noise),) = drawn
    assert (size, noised.dtype) == (3000, np.float32)
    if isinstance(estimator, FixedDenominator):  # the sum itself, in steps of its grid
        step = mechanism.grid((4.0,)) / 3.0
        steps = totals / mechanism.grid((4.0,))
        assert scale == pytest.approx(4.0 / mechanism.grid((4.0,)))
    else:  # the average, rounded to a step that the noise alone decides
        sensitivity = mechanism.sensitivity((4.0,))
        step = 2.0 ** (math.floor(math.log2(sensitivity)) - 26)
        steps = np.rint(totals / 5.0 / step)
        # √d/2 steps for each of two worlds, and what dividing in float64 may hide.
        assert scale >= (sensitivity + math.sqrt(3000) * step) / step
        assert scale <= 1.001 * sensitivity / step
    np.testing.assert_array_equal(noised, ((steps + np.asarray(noise)) * step).astype(np.float32))
    assert np.all(steps == np.rint(steps))


def test_bits_that_leave_the_update_too_much_noise_are_refused():
    with pytest.raises(SottoError, match="adaptive_bit_noise"):
        Mechanism(
            Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 1.0,
            tracking=QuantileTracking(0.5, 0.2, bit_noise=0.5 * (1 + 1e-14), cohort=10.0),
        )  # fmt: skip


def test_a_matrix_without_its_participation_is_refused():
    """Its noise would be correlated, and its rounds charged one by one."""
    with pytest.raises(SottoError, match="needs the participation"):
        Mechanism(Poisson(0.1), FlatClip(1.0), FixedDenominator(10.0), 1.0, matrix=Banded((1.0, 0.5)))
