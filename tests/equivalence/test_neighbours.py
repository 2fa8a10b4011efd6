"""Neighbour replay: one real round on two populations that differ in one user, under the same randomness.

The un-noised estimates differ by no more than the declared sensitivity, whoever the user is.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
import optax
import pytest

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import BOS, EOS
from sottovoce.local.objective import plain
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy.clipping import FlatClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import noise_key
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import Algorithm
from sottovoce.training.server import Server
from sottovoce.training.simulation import SumInBlocks

LENGTH, S, POISON = 24, 0.5, 59
NEWCOMERS = {
    "ordinary": [BOS, 45, 46, 47, EOS, BOS, 48, 49, EOS],
    "of maximal length": list(range(39, 58)) + [50] * 5,
    "one word over and over": [50] * LENGTH,
    "of a single token": [44],
    "without tokens": [],
    "without targets": [BOS] * 5,
    "whose loss is not finite": [BOS, POISON, POISON, EOS],
}


def poisoned(model, received, batch, state):
    """A loss that is not finite wherever the poisonous word stands: what an adversary's text may do to a model."""
    losses, state = plain(model, received, batch, state)
    return losses * jax.numpy.where(batch.targets == POISON, jax.numpy.inf, 1.0), state


# A rate at which every step leaves the ball of radius S.
LOCAL = {"batch": 2, "unroll": 4, "learning_rate": 30.0, "objective": poisoned}
UPDATES = {
    "fedavg, every step": lambda clip: FedAvg(clip, True, **LOCAL),
    "fedavg, at the end": lambda clip: FedAvg(clip, False, **LOCAL),
    "fedsgd": lambda clip: FedSGD(clip, **LOCAL),
}
CLIPS = {"flat": FlatClip(S), "per layer": PerLayerClip(S, 11)}
ESTIMATORS = {
    "fixed": FixedDenominator(2.0),
    "clipped": ClippedDenominator(2.0),
    "clipped low": ClippedDenominator(0.4),
}
CROWD = [[BOS, 45 + i, 46, 47 + i, EOS, 50] for i in range(3)]


def estimate(model, vocabulary, users, mechanism, update, weight_cap):
    store = Store.from_users(users, vocabulary, tokens_per_user=LENGTH)
    algorithm = Algorithm(mechanism, update, Server(optax.sgd(1.0)), weight_cap)
    keys = Secrets.seeded(4).keys(1, "a")
    cohort = mechanism.sampler.sample(store.users, keys.sampling)
    summed = SumInBlocks(4)(algorithm, model, store, cohort, noise_key(keys.local))
    found = mechanism.estimator.estimate(summed.total, summed.weight)
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(found)])


@pytest.mark.parametrize("clip", ["flat", pytest.param("per layer", marks=pytest.mark.slow)])
@pytest.mark.parametrize("update", UPDATES)
def test_one_user_moves_a_round_by_at_most_the_sensitivity(model, vocabulary, update, clip):
    largest = 0.0
    for estimator, weight_cap, crowd in itertools.product(ESTIMATORS.values(), (1.0, 10.0), (0, 1, 3)):
        # Everybody joins: the newcomer too, which is the worst case for them.
        mechanism = Mechanism(Poisson(1.0), CLIPS[clip], estimator, noise_multiplier=1.0)
        parts = (mechanism, UPDATES[update](CLIPS[clip]), weight_cap)
        without = estimate(model, vocabulary, CROWD[:crowd], *parts)
        assert np.all(np.isfinite(without))
        for name, newcomer in NEWCOMERS.items():
            with_them = estimate(model, vocabulary, [*CROWD[:crowd], newcomer], *parts)
            moved = np.linalg.norm(with_them - without)
            assert moved <= mechanism.sensitivity() * (1 + 1e-6), f"a user {name} moves the estimate too far"
            largest = max(largest, moved / mechanism.sensitivity())
            if name in ("without tokens", "without targets", "whose loss is not finite"):
                # They add nothing; with unequal weights they may still count in a denominator.
                assert moved <= mechanism.sensitivity() / 2
    assert largest > 0.9, "no user came near the bound, so the test shows little"


def test_a_user_who_is_not_drawn_changes_nothing(model, vocabulary):
    mechanism = Mechanism(Poisson(0.5), CLIPS["flat"], ESTIMATORS["clipped"], noise_multiplier=1.0)
    parts = (mechanism, UPDATES["fedavg, every step"](CLIPS["flat"]), 1.0)
    keys = Secrets.seeded(4).keys(1, "a")
    drawn = set(mechanism.sampler.sample(40, keys.sampling).tolist())
    absent = next(row for row in range(1, 40) if row not in drawn)
    users = (CROWD * 14)[:absent]
    np.testing.assert_array_equal(
        estimate(model, vocabulary, users, *parts),
        estimate(model, vocabulary, [*users, NEWCOMERS["of maximal length"]], *parts),
    )
