"""Twins share all their randomness: what sets them apart is the user who was left out."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.audit.retrain import _of_so_many, choose_users, references, twins
from sottovoce.build.assembly import assemble, weights_of
from sottovoce.errors import SottoError
from sottovoce.privacy.sampling import FixedSize
from sottovoce.recipe import Recipe
from sottovoce.runs.secrets import Secrets

SECRETS = Secrets.seeded(1, "a test")


def assembled(store, **privacy):
    recipe = Recipe.from_dict({
        "data": {"store": "in memory"},
        "model": {"embedding": 4, "hidden": 5},
        "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
        "privacy": {"users": 13, "cohort": 6, **privacy},
        "run": {"rounds": 9, "block": 4, "devices": 1},
    })  # fmt: skip
    return assemble(recipe, store)


def weights(assembly, store, rows, rounds):
    models = twins(assembly, assembly.model, store, np.array(rows), rounds, SECRETS)
    return [np.concatenate([leaf.ravel() for leaf in weights_of(model).values()]) for model in models]


def test_a_twin_without_somebody_who_wrote_nothing_is_the_same_to_the_bit(store):
    assembly = assembled(store, mode="none", estimator="true_average")
    everybody, without_nobody, without_somebody = weights(assembly, store, [1, 0], rounds=2)
    assert len(store[1]) == 0
    assert np.array_equal(everybody, without_nobody)
    assert not np.array_equal(everybody, without_somebody)


def test_noise_is_shared_so_that_twins_differ_by_one_clipped_update_at_most(store):
    """In one round by S/(qW) at most, whatever the noise."""
    private = {"mode": "private", "clip_norm": 0.1, "noise_multiplier": 50.0, "delta": 1e-3}
    everybody, *others = weights(assembled(store, **private), store, [0, 4, 7], rounds=1)
    lengths = [float(np.linalg.norm(other - everybody)) for other in others]
    assert max(lengths) > 0  # at least one of them was in the cohort
    assert max(lengths) < 1.001 * 0.1 / 6


def test_users_left_out_are_different_and_follow_the_secrets(store):
    assembly = assembled(store, mode="none")
    rows = choose_users(assembly, store, 5, 9, SECRETS)
    assert len(set(rows.tolist())) == 5
    assert np.array_equal(rows, choose_users(assembly, store, 5, 9, SECRETS))
    assert not np.array_equal(rows, choose_users(assembly, store, 5, 9, Secrets.seeded(2, "a test")))


def test_only_who_takes_part_is_left_out(store):
    """One round of a third of the users: each who may be left out changes the model, and nobody else does."""
    assembly = assembled(store, mode="none", cohort=4)
    with pytest.raises(SottoError, match=r"leave_out=14 must be from 1 to \d+, the users who take part") as refusal:
        choose_users(assembly, store, 14, 1, SECRETS)
    count = int(str(refusal.value).split(" to ")[1].split(",")[0])
    drawn = set(choose_users(assembly, store, count, 1, SECRETS).tolist())
    everybody, *others = weights(assembly, store, range(13), rounds=1)
    changed = {row for row, other in enumerate(others) if not np.array_equal(everybody, other)}
    assert 1 <= len(changed) < 13
    assert changed == {row for row in drawn if len(store[row]) > 1}


def test_leaving_out_nobody_is_refused(store):
    with pytest.raises(SottoError, match="leave_out=0 must be from 1 to"):
        choose_users(assembled(store, mode="none"), store, 0, 9, SECRETS)


def test_references_have_who_is_marked_and_those_who_always_are_and_rounds_of_the_same_size(store, monkeypatch):
    """The coins of a reference are of another rate, so that as many join as in the run."""
    seen = []

    def train(assembly, start, people, rounds, secrets, after_round):
        seen.append((assembly.algorithm.mechanism, [people[row].tolist() for row in range(people.users)]))

    monkeypatch.setattr("sottovoce.audit.retrain.train_twin", train)
    assembly = assembled(store, mode="none", cohort=6.0)
    audited = [np.array([5, 6]), np.array([7]), np.array([8, 9])]
    inside = np.array([[True, False, True], [False, True, False]])
    list(references(assembly, assembly.model, store, np.array([3, 4]), audited, inside, 2, lambda number: SECRETS))
    always = [store[3].tolist(), store[4].tolist()]
    assert [people for _, people in seen] == [[*always, [5, 6], [8, 9]], [*always, [7]]]
    mechanism = assembly.algorithm.mechanism
    for other, _ in seen:
        assert other.sampler.user_rate == min(mechanism.sampler.user_rate * store.users / 3, 1)
        assert other.estimator == mechanism.estimator


@pytest.mark.parametrize(("users", "cohort"), [(20, 6), (4, 4)])
def test_a_fixed_cohort_is_as_large_as_before_where_there_are_as_many(users, cohort):
    assert _of_so_many(FixedSize(cohort=6, users=13), 13, users) == FixedSize(cohort=cohort, users=users)
