"""The noise that reaches the model, tested by distribution: accepted at the true scale, refused at 0.8 of it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from free import AllFree
from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Estimate, Mechanism
from sottovoce.privacy.noise import rounded_gaussian
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.server import Server
from sottovoce.training.strategy import FederatedAveraging, Work, play_rounds
from sottovoce.training.types import Algorithm
from sottovoce_evidence.adaptive import QuantileTracking
from sottovoce_evidence.schedule import Schedule

Z, S = 0.7, 1.3
MANY = 344_064  # draws: 300,000 to 344,064 are one program
SERVER = Server(optax.sgd(1.0))  # one for all: another would be compiled again
LOCAL = partial(FedAvg, clip_every_step=True, batch=3, unroll=4, learning_rate=2.0)  # as in test_two_rounds.py


def changes(model, store, estimator, count, secrets, **options) -> list[np.ndarray]:
    """What each of `count` rounds adds to the model, as one vector, through the whole loop."""
    clip = FlatClip(S)
    mechanism = Mechanism(Poisson(0.5), clip, estimator, noise_multiplier=Z, **options)
    algorithm = Algorithm(mechanism, LOCAL(clip), SERVER)
    state = algorithm.server.start(model, mechanism.start())
    flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])]
    keys = lambda number: secrets.keys(number)  # noqa: E731
    play = partial(FederatedAveraging().play, algorithm, Work(store, SumInBlocks(4)))
    for after, _ in play_rounds(play, state, count, AllFree(keys, secrets)):
        flat.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(after.params)]))
    return [after - before for before, after in pairwise(flat)]


def assert_scale(moved: np.ndarray, sigma: float) -> None:
    """Gaussian with this standard deviation, and not with 0.8 or 1.25 of it."""
    assert stats.kstest(moved / sigma, "norm").pvalue > 1e-3
    chi = stats.chi2(len(moved))
    assert chi.cdf(np.sum((moved / sigma) ** 2)) == pytest.approx(0.5, abs=0.4995)
    assert chi.sf(np.sum((moved / (0.8 * sigma)) ** 2)) < 1e-9
    assert chi.cdf(np.sum((moved / (1.25 * sigma)) ** 2)) < 1e-9


@pytest.fixture(scope="module")
def silent_store(vocabulary) -> Store:
    """Users without a word: every update is zero, and only noise moves the model."""
    return Store.from_users([[] for _ in range(6)], vocabulary, tokens_per_user=48)


@pytest.mark.parametrize(
    ("estimator", "sensitivity"), [(FixedDenominator(3.0), S / 3), (ClippedDenominator(3.0), 2 * S / 4)]
)
def test_noise_through_the_whole_loop_has_the_declared_scale(model, silent_store, estimator, sensitivity):
    moved = np.concatenate(changes(model, silent_store, estimator, 6, Secrets.seeded(1)))
    assert_scale(moved, Z * sensitivity)


def test_an_empty_cohort_gets_the_same_noise(model, vocabulary):
    nobody = Store.from_users([], vocabulary, tokens_per_user=48)
    moved = np.concatenate(changes(model, nobody, FixedDenominator(3.0), 4, Secrets.seeded(2)))
    assert stats.kstest(moved / (Z * S / 3), "norm").pvalue > 1e-3


def test_noise_follows_its_schedules_round_by_round(model, silent_store):
    clip_schedule, noise_schedule = Schedule(((1, 1.0), (3, 0.25))), Schedule(((1, 2.0), (2, 1.0)))
    moved = changes(
        model, silent_store, FixedDenominator(3.0), 4, Secrets.seeded(5), clip_schedule=clip_schedule,
        noise_schedule=noise_schedule,
    )  # fmt: skip
    for row, factor in zip(moved, (2.0, 1.0, 0.25, 0.25), strict=True):
        assert_scale(row, factor * Z * S / 3)


def test_bits_and_update_are_noised_independently_at_their_own_scales():
    """The noise of an adaptive round, of many coordinates: the count of bits has σ_b, the update what is left of z."""
    tracking = QuantileTracking(0.5, 0.2, bit_noise=2.0, cohort=10.0)
    mechanism = Mechanism(Poisson(0.5), FlatClip(S), FixedDenominator(3.0), Z, tracking=tracking)
    silence = Estimate((jnp.zeros(1800),), jnp.zeros(600))
    noised, _ = mechanism.add_noise(silence, (), 1, (S,), Secrets.seeded(9).noise_key(1))
    bits, update = np.asarray(noised.bits), np.asarray(noised.update[0])
    sigma = (Z**-2 - 4.0**-2) ** -0.5 * S / 3
    # Counts go in halves, and so does their noise.
    assert np.all(bits * 2 == np.rint(bits * 2))
    assert_scale(bits + np.random.default_rng(0).uniform(-0.25, 0.25, len(bits)), 2.0)
    assert_scale(update, sigma)
    assert abs(np.corrcoef(bits, update[:600])[0, 1]) < 0.17  # the same coordinates of the two


def test_noise_never_repeats(model, silent_store):
    """Not over rounds, parameter vectors, rounds that are done again, or runs."""
    estimator = FixedDenominator(3.0)
    one = changes(model, silent_store, estimator, 5, Secrets.seeded(1))
    other = changes(model, silent_store, estimator, 5, Secrets.fresh())
    rows = [*one, *other]
    for index, row in enumerate(rows):
        # A model's own float32 rounding hides the last bits, so compare by correlation.
        for later in rows[index + 1 :]:
            assert abs(np.corrcoef(row, later)[0, 1]) < 0.2
    mechanism = Mechanism(Poisson(0.5), FlatClip(S), FixedDenominator(3.0), Z)
    silence = Estimate(jax.tree.map(jnp.zeros_like, model))
    leaves = jax.tree.leaves(mechanism.add_noise(silence, (), 1, (S,), bytes(range(32)))[0].update)
    leaves = [np.ravel(leaf) for leaf in leaves]
    same_size = [leaf for leaf in leaves if leaf.size == leaves[1].size]
    assert len(same_size) == 4
    for index, leaf in enumerate(same_size):
        for later in same_size[index + 1 :]:
            assert not np.any(leaf == later)


@pytest.mark.parametrize(
    "std", [pytest.param(0.4, marks=pytest.mark.slow), 1.0, pytest.param(3.3, marks=pytest.mark.slow)]
)
def test_every_whole_number_has_the_chance_of_its_gaussian(std):
    drawn = np.asarray(rounded_gaussian(b"k" * 32, MANY, std))
    most = int(3 * std) + 1
    values = np.arange(-most, most + 1)
    seen = np.array([np.sum(drawn == value) for value in values])
    seen = np.append(seen, len(drawn) - seen.sum())

    def p_value(std):
        chances = np.diff(stats.norm.cdf(np.append(values - 0.5, most + 0.5), scale=std))
        return stats.chisquare(seen, np.append(chances, 1 - chances.sum()) * len(drawn)).pvalue

    assert p_value(std) > 1e-4
    assert p_value(0.98 * std) < 1e-4


def test_the_noise_has_the_tails_of_a_gaussian():
    """A float32 normal of JAX never passes 5.42: what lies beyond would betray a user with certainty."""
    far = np.asarray(rounded_gaussian(b"t" * 32, MANY, 2.0**30)) / 2.0**30
    for bound in (3.0, 4.0, 4.5):
        assert stats.binomtest(int(np.sum(np.abs(far) > bound)), len(far), 2 * stats.norm.sf(bound)).pvalue > 1e-4
    assert np.all(np.abs(far) < 7)


def test_every_bit_of_a_noise_key_counts():
    known = np.asarray(rounded_gaussian(bytes(32), 8, 1e6))
    for bit in range(256):
        other = np.asarray(rounded_gaussian((1 << bit).to_bytes(32, "little"), 8, 1e6))
        assert not np.any(known == other)


def test_keys_of_local_randomness_keep_all_64_bits():
    low, high = bytes([5, 0, 0, 0, 0, 0, 0, 0]), bytes([5, 0, 0, 0, 2, 0, 0, 0])
    assert not jnp.array_equal(jax.random.normal(local_key(low), (8,)), jax.random.normal(local_key(high), (8,)))
