"""Twins share all their randomness: what sets them apart is the user who was left out."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.assembly import assemble, weights_of
from sottovoce.audit.twins import choose_users, twins
from sottovoce.errors import SottoError
from sottovoce.recipe import Recipe
from sottovoce.runs.secrets import Secrets

SECRETS = Secrets.seeded(1, "a test")


def weights(store, rows, rounds=2, **privacy):
    recipe = Recipe.from_dict({
        "data": {"store": "in memory"},
        "model": {"embedding": 4, "hidden": 5},
        "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
        "privacy": {"users": 13, "cohort": 6, **privacy},
        "run": {"rounds": 9, "block": 4, "devices": 1},
    })  # fmt: skip
    assembly = assemble(recipe, store)
    models = twins(assembly, assembly.model, store, np.array(rows), rounds, SECRETS)
    return [np.concatenate([leaf.ravel() for leaf in weights_of(model).values()]) for model in models]


def test_a_twin_without_somebody_who_wrote_nothing_is_the_same_to_the_bit(store):
    everybody, without_nobody, without_somebody = weights(store, [1, 0], mode="none", estimator="true_average")
    assert len(store[1]) == 0
    assert np.array_equal(everybody, without_nobody)
    assert not np.array_equal(everybody, without_somebody)


def test_noise_is_shared_so_that_twins_differ_by_one_clipped_update_at_most(store):
    """In one round by S/(qW) at most, whatever the noise."""
    private = {"mode": "private", "clip_norm": 0.1, "noise_multiplier": 50.0, "delta": 1e-3}
    everybody, *others = weights(store, [0, 4, 7], rounds=1, **private)
    lengths = [float(np.linalg.norm(other - everybody)) for other in others]
    assert max(lengths) > 0  # at least one of them was in the cohort
    assert max(lengths) < 1.001 * 0.1 / 6


def test_users_left_out_are_different_and_follow_the_key(store):
    rows = choose_users(store, 5, b"k" * 32)
    assert len(set(rows.tolist())) == 5
    assert np.array_equal(rows, choose_users(store, 5, b"k" * 32))
    assert not np.array_equal(rows, choose_users(store, 5, b"l" * 32))
    assert sorted(choose_users(store, 13, b"k" * 32)) == list(range(13))


@pytest.mark.parametrize("count", [0, 14])
def test_more_users_than_there_are_cannot_be_left_out(store, count):
    with pytest.raises(SottoError, match=rf"leave_out={count} must be from 1 to 13"):
        choose_users(store, count, b"k" * 32)
