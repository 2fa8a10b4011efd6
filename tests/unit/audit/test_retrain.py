"""Models that are trained again share all randomness: they differ by the user who was left out."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.audit.retrain import Retraining, choose_users, train_shadow_models, train_without
from sottovoce.build.assembly import assemble, weights_of
from sottovoce.data.store import Store, made_up_names
from sottovoce.privacy.sampling import FixedSize
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

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


def training(store, rounds, **privacy):
    assembly = assembled(store, **privacy)
    return Retraining(assembly, assembly.model, store, rounds)


def weights(again, rows):
    models = train_without(again, np.array(rows), SECRETS)
    return [np.concatenate([leaf.ravel() for leaf in weights_of(model).values()]) for model in models]


def test_a_model_without_a_user_who_wrote_nothing_is_the_same_to_the_bit(store):
    again = training(store, 2, mode="none", estimator="true_average", cohort=13)
    everyone, without_empty, without_one = weights(again, [1, 0])
    assert len(store[1]) == 0
    assert np.array_equal(everyone, without_empty)
    assert not np.array_equal(everyone, without_one)


def test_noise_is_shared_so_that_models_differ_by_one_clipped_update_at_most(store):
    """In one round by S/(qW) at most, whatever the noise."""
    private = {"mode": "private", "clip_norm": 0.1, "noise_multiplier": 50.0, "delta": 1e-3}
    everyone, *others = weights(training(store, 1, **private), range(13))
    lengths = [float(np.linalg.norm(other - everyone)) for other in others]
    assert max(lengths) > 0  # at least one of them was in the cohort
    assert max(lengths) < 1.001 * 0.1 / 6


def test_users_left_out_are_different_and_follow_the_secrets(store):
    again = training(store, 9, mode="none")
    rows = choose_users(again, 5, SECRETS)
    assert len(set(rows.tolist())) == 5
    assert np.array_equal(rows, choose_users(again, 5, SECRETS))
    assert not np.array_equal(rows, choose_users(again, 5, Secrets.seeded(2, "a test")))


def test_only_who_takes_part_is_left_out(store):
    """One round of a third of the users: each who may be left out changes the model, and no other user does."""
    again = training(store, 1, mode="none", cohort=4)
    with pytest.raises(SottoError, match=r"leave_out=14 must be from 1 to \d+, the users who take part") as refusal:
        choose_users(again, 14, SECRETS)
    count = int(str(refusal.value).split(" to ")[1].split(",")[0])
    drawn = set(choose_users(again, count, SECRETS).tolist())
    everyone, *others = weights(again, range(13))
    changed = {row for row, other in enumerate(others) if not np.array_equal(everyone, other)}
    assert 1 <= len(changed) < 13
    assert changed == {row for row in drawn if len(store[row]) > 1}


def test_shadow_models_have_who_is_marked_and_those_who_always_are_and_rounds_of_the_same_size(store, monkeypatch):
    """The coins of a shadow model are of another rate, so that as many join as in the run."""
    seen = []

    def train(again, secrets):
        people = again.store
        seen.append((again.assembly.algorithm.mechanism, [people[row].tolist() for row in range(people.users)]))

    monkeypatch.setattr(Retraining, "train", train)
    again = training(store, 2, mode="none", cohort=6.0)
    audited = [np.array([5, 6]), np.array([7]), np.array([8, 9])]
    inside = np.array([[True, False, True], [False, True, False]])
    list(train_shadow_models(again, np.array([3, 4]), audited, inside, lambda number: SECRETS))
    always = [store[3].tolist(), store[4].tolist()]
    assert [people for _, people in seen] == [[*always, [5, 6], [8, 9]], [*always, [7]]]
    mechanism = again.assembly.algorithm.mechanism
    for other, _ in seen:
        assert other.sampler.user_rate == min(mechanism.sampler.user_rate * store.users / 3, 1)
        assert other.estimator == mechanism.estimator


@pytest.mark.parametrize(("users", "cohort"), [(9, 6), (4, 4)])
def test_a_fixed_cohort_is_as_large_as_before_where_there_are_as_many(store, monkeypatch, users, cohort):
    samplers = []
    monkeypatch.setattr(
        Retraining, "train", lambda again, secrets: samplers.append(again.assembly.algorithm.mechanism.sampler)
    )
    again = training(store, 2, mode="none", sampling="fixed")
    audited, always = [np.array([5, 6])], np.arange(users - 1)
    list(train_shadow_models(again, always, audited, np.array([[True]]), lambda number: SECRETS))
    assert samplers == [FixedSize(cohort=cohort, users=users)]


def test_shadow_models_have_the_correlated_noise_of_the_run(store, monkeypatch):
    """Their users come back sooner than those of the run: the noise is the same, and hides them less."""
    found = []
    monkeypatch.setattr(Retraining, "train", lambda again, secrets: found.append(again.assembly.algorithm.mechanism))
    private = {"mode": "private", "clip_norm": 0.1, "noise_multiplier": 2.0, "delta": 1e-3, "sampling": "in_turn"}
    blt = {"noise": "blt", "noise_coefficients": (0.3, 0.2), "noise_decays": (0.9, 0.4)}
    texts = [store[row] for row in range(store.users)]
    named = Store.from_users(texts, store.vocabulary, store.tokens_per_user, names=made_up_names(store.users))
    again = training(named, 2, **private, **blt)
    list(train_shadow_models(again, np.arange(5), [np.array([5, 6])], np.array([[True]]), lambda number: SECRETS))
    mechanism, (shadow,) = again.assembly.algorithm.mechanism, found
    assert shadow.matrix == mechanism.matrix
    assert shadow.participation.min_separation == 1 < mechanism.participation.min_separation
    norms = mechanism.clip_norms(1, None)
    assert shadow.noise_std(1, norms)[0] == pytest.approx(mechanism.noise_std(1, norms)[0], rel=1e-12)
    assert shadow.noise_multiplier < mechanism.noise_multiplier
