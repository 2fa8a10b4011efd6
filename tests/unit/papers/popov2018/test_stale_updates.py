"""Stale updates: whose turn it is, which model a device has, and that a queue of nothing late is Algorithm 1."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
import pytest

from free import AllFree
from sottovoce.data.store import Store, made_up_names
from sottovoce.local.update import FedAvg
from sottovoce.papers.popov2018.stale_updates import StaleRound, StaleUpdates, SumByAge
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import InTurn, Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.strategy import FederatedAveraging, Work, play_rounds
from sottovoce.training.types import Algorithm, CohortSum, Task
from sottovoce_evidence.errors import SottoError

CLIP = 0.5


def make_algorithm(sampler=None) -> Algorithm:
    return Algorithm(
        Mechanism(sampler or Poisson(0.5), FlatClip(CLIP), FixedDenominator(6.0), noise_multiplier=1.0),
        FedAvg(FlatClip(CLIP), True, batch=2, unroll=5, learning_rate=1.0),
        Server(optax.sgd(1.0)),
    )


def rounds(strategy, algorithm, state, store, last, sum_updates):
    payments = AllFree(lambda number: Secrets.seeded(5).keys(number))
    return play_rounds(partial(strategy.play, algorithm, Work(store, sum_updates)), state, last, payments)


def fake_sum(seen):
    """A sum that says which model it was of, and computes nothing."""

    def sum_updates(algorithm, task, store):
        seen.append((float(np.ravel(task.params.projection)[0]), task.cohort.tolist()))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape), task.params)
        return CohortSum(zeros, np.float64(len(task.cohort)), np.zeros(1), [], [])

    return sum_updates


def test_in_turn_nobody_is_asked_again_before_everybody_was(store):
    sampler = InTurn(2, 7, seed=3)
    people = Store.from_users([store[row] for row in range(6)], store.vocabulary, names=made_up_names(6))
    asked = [sampler.sample(people, b"", number).tolist() for number in range(1, 10)]
    for begun in range(6):
        assert sorted(row for rows in asked[begun : begun + 3] for row in rows) == [*range(6)]
    assert asked[:3] == asked[3:6] == asked[6:]
    with pytest.raises(SottoError, match="does not know its users by name"):
        sampler.sample(Store.from_users([store[0]], store.vocabulary), b"", 1)


def test_devices_get_a_model_every_so_many_rounds_and_late_ones_an_older(store, model, monkeypatch):
    """Six rounds, a deployment every two: round r trains the model of round 2⌊(r-1)/2⌋, late users an older one."""
    seen: list = []
    plan, algorithm = StaleUpdates(2, (0.5, 0.5)), make_algorithm(Poisson(1.0))
    monkeypatch.setattr(StaleUpdates, "ages", lambda self, rows, key: rows % 2)
    state = algorithm.server.start(model)
    state = plan.start(state)
    names = [float(np.ravel(state.params.projection)[0])]
    behind = []
    for after, played in rounds(plan, algorithm, state, store, 6, fake_sum(seen)):
        names.append(float(np.ravel(after.params.projection)[0]))  # noise alone moves it: every round has a name
        behind.append(sorted(set(played.staleness.tolist())))
        assert len(after.kept) == 2
    assert len(set(names)) == 7
    even, odd = ([row for row in range(store.users) if row % 2 == side] for side in (0, 1))
    newest, older = [0, 0, 2, 2, 4, 4], [0, 0, 0, 0, 2, 2]
    pairs = [((names[new], even), (names[old], odd)) for new, old in zip(newest, older, strict=True)]
    assert seen == [each for pair in pairs for each in pair]
    assert behind == [[0], [1], [0, 2], [1, 3], [0, 2], [1, 3]]


@pytest.mark.slow
def test_a_queue_of_nothing_late_is_algorithm_1(store, model):
    algorithm, plan = make_algorithm(), StaleUpdates(1)
    start = algorithm.server.start(model)
    plain = list(rounds(FederatedAveraging(), algorithm, start, store, 2, sum_one_by_one))[-1][0]
    state, played = list(rounds(plan, algorithm, plan.start(start), store, 2, sum_one_by_one))[-1]
    for one, other in zip(jax.tree.leaves(plain.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert set(played.staleness.tolist()) == {0}
    assert played.diagnostics()["most_rounds_behind"] == 0


def test_ages_come_in_their_shares():
    ages = StaleUpdates(1, (0.5, 0.0, 1.5)).ages(np.arange(4000), jax.random.key(1))
    assert np.mean(ages == 0) == pytest.approx(0.25, abs=0.03)
    assert not np.any(ages == 1)
    assert np.any(ages != StaleUpdates(1, (0.5, 0.0, 1.5)).ages(np.arange(4000), jax.random.key(2)))


def test_one_user_moves_a_sum_of_ages_by_at_most_the_clip_norm(store, model):
    """Whoever else is there trains the model they would have trained anyway."""
    algorithm, plan, key = make_algorithm(), StaleUpdates(1, (0.5, 0.5)), jax.random.key(4)
    older = jax.tree.map(lambda leaf: leaf * 0.5, model)  # far from the newest: the wrong model shows
    summed = SumByAge(plan, (model, older), sum_one_by_one)
    rows, norms = np.array([0, 3, 4, 5, 6, 7]), np.array([CLIP], np.float32)
    assert 0 < np.sum(plan.ages(rows, key)) < len(rows)
    whole = summed(algorithm, Task(model, rows, norms, key), store)
    np.testing.assert_array_equal(np.concatenate(whole.places)[np.argsort(np.concatenate(whole.places))], np.arange(6))
    for place in range(len(rows)):
        fewer = summed(algorithm, Task(model, np.delete(rows, place), norms, key), store)
        parts = zip(jax.tree.leaves(whole.total), jax.tree.leaves(fewer.total), strict=True)
        moved = np.sqrt(sum(np.sum(np.square(one - other)) for one, other in parts))
        assert 0 < moved <= CLIP * (1 + 1e-6)
        assert float(whole.weight - fewer.weight) == pytest.approx(1)


def test_nobody_at_all_is_a_sum_too(store, model):
    algorithm, plan = make_algorithm(), StaleUpdates(3, (0.5, 0.5))
    summed = SumByAge(plan, (model, model), sum_one_by_one)
    none = summed(algorithm, Task(model, np.zeros(0, np.int64), np.array([CLIP], np.float32), jax.random.key(1)), store)
    assert none.users == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(none.total))
    assert "rounds_behind" not in StaleRound(none, summed.ages).diagnostics()
