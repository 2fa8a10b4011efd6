"""Who joins a round: tested by distribution, both ways."""

from __future__ import annotations

import hashlib
from functools import cache, partial

import jax
import numpy as np
import optax
import pytest
from scipy import stats

from examples import first_of
from free import AllFree
from sottovoce.data.store import Store
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy import sampling
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Examples, FixedSize, Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.server import Server
from sottovoce.training.strategy import FederatedAveraging, Work, play_rounds
from sottovoce.training.types import Algorithm, CohortSum
from sottovoce.training.variants.example_level import ExampleLevel
from sottovoce_evidence.errors import SottoError

USERS, ROUNDS = 40, 4000


def key(index: int) -> bytes:
    return hashlib.blake2b(index.to_bytes(8, "little"), digest_size=32).digest()


@cache
def joined(sampler, rounds=ROUNDS, users=USERS) -> np.ndarray:
    """[rounds, users]: who was in."""
    table = np.zeros((rounds, users), bool)
    for index in range(rounds):
        table[index, sampler.sample(range(users), key(index))] = True
    return table


@pytest.mark.parametrize("rate", first_of([0.3, 0.02, 0.9]))
def test_every_user_joins_at_the_declared_rate(rate):
    table = joined(Poisson(rate))

    def p_value(claimed):
        expected = ROUNDS * claimed
        chi = np.sum((table.sum(0) - expected) ** 2 / (expected * (1 - claimed)))
        return stats.chi2.sf(chi, USERS)

    assert p_value(rate) > 1e-3
    assert p_value(rate * 0.8) < 1e-6


def test_users_join_rounds_as_often_as_the_ledger_is_charged_for(vocabulary):
    """Whoever trains is who was drawn, once: a second draw somewhere on the way would join about twice as many."""
    clip = FlatClip(1.0)
    mechanism = Mechanism(Poisson(0.1), clip, FixedDenominator(4.0), 1.0)
    algorithm = Algorithm(mechanism, FedAvg(clip, True, batch=1, unroll=2, learning_rate=1.0), Server(optax.sgd(1.0)))
    store = Store.from_users([[3]] * USERS, vocabulary, tokens_per_user=2)
    cohorts, charged = [], []

    class Payments:
        def begin(self, round_number):
            self.keys = Secrets.seeded(6).keys(round_number)
            return self

        def charge(self, event):
            charged.append(event.user_rate)
            return bytes(32)

    def note(algorithm, task, store):
        cohorts.append(task.cohort)
        total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), task.params)
        return CohortSum(total, np.float64(len(task.cohort)), np.zeros(1), [], [])

    start = algorithm.server.start({"weight": np.zeros(3, np.float32)}, mechanism.start())
    play = partial(FederatedAveraging().play, algorithm, Work(store, note))
    for _ in play_rounds(play, start, 300, Payments()):
        pass
    (rate,) = set(charged)
    assert len(cohorts) == len(charged) == 300
    assert all(len(np.unique(cohort)) == len(cohort) for cohort in cohorts)

    def p_value(claimed):
        return stats.binomtest(sum(map(len, cohorts)), 300 * USERS, claimed).pvalue

    assert p_value(rate) > 1e-9
    assert p_value(rate * 1.5) < 1e-9


def test_users_join_independently_of_one_another():
    table = joined(Poisson(0.3)).astype(float)
    correlation = np.corrcoef(table.T)[np.triu_indices(USERS, 1)] * np.sqrt(ROUNDS)
    # Independent coins give standard normal values; a fixed-size cohort is visibly negative.
    assert abs(correlation.mean()) * np.sqrt(len(correlation)) < 4
    assert correlation.std() == pytest.approx(1.0, abs=0.1)
    fixed = joined(FixedSize(12, USERS)).astype(float)
    negative = np.corrcoef(fixed.T)[np.triu_indices(USERS, 1)] * np.sqrt(ROUNDS)
    assert negative.mean() * np.sqrt(len(negative)) < -4


def test_neighbours_in_the_store_are_independent_too():
    # Gaps between joining users are what is drawn: a fault there shows between neighbours first.
    table = joined(Poisson(0.3))
    together = (table[:, 1:] & table[:, :-1]).sum()
    trials = ROUNDS * (USERS - 1)
    assert stats.binomtest(int(together), trials, 0.09).pvalue > 1e-3


def test_the_size_of_a_poisson_cohort_varies_as_it_must():
    sizes = joined(Poisson(0.3)).sum(1)
    expected = stats.binom(USERS, 0.3)
    observed = np.bincount(sizes, minlength=USERS + 1)
    wanted = expected.pmf(np.arange(USERS + 1)) * ROUNDS
    large = wanted > 20
    chi = np.sum((observed[large] - wanted[large]) ** 2 / wanted[large])
    assert stats.chi2.sf(chi, large.sum()) > 1e-3


def test_rounds_are_independent_of_one_another():
    table = joined(Poisson(0.3))
    again = (table[1:] & table[:-1]).sum()
    assert stats.binomtest(int(again), (ROUNDS - 1) * USERS, 0.09).pvalue > 1e-3


def test_a_user_added_at_the_end_changes_nobody_elses_coin():
    for index in range(50):
        few = Poisson(0.2).sample(range(USERS), key(index))
        more = Poisson(0.2).sample(range(USERS + 7), key(index))
        assert few.tolist() == [row for row in more if row < USERS]


def test_a_rate_of_one_takes_everybody():
    assert Poisson(1.0).sample(range(9), key(0)).tolist() == list(range(9))


def test_an_empty_cohort_is_possible_and_an_empty_store_is_no_crash():
    assert any(len(Poisson(0.01).sample(range(20), key(index))) == 0 for index in range(20))
    assert Poisson(0.5).sample(range(0), key(0)).tolist() == []


def test_the_cost_depends_on_the_cohort_not_on_the_users(monkeypatch):
    drawn = []

    class Counting:
        def __init__(self, generator):
            self.generator = generator

        def geometric(self, rate, size):
            drawn.append(size)
            return self.generator.geometric(rate, size=size)

    original = sampling.chacha20
    monkeypatch.setattr(sampling, "chacha20", lambda key: Counting(original(key)))
    rows = Poisson(1e-6).sample(range(10**9), key(1))
    assert 800 < len(rows) < 1200
    assert len(np.unique(rows)) == len(rows)
    assert sum(drawn) < 3000  # not a coin for each of 10^9 users


def test_fixed_size_draws_exactly_that_many_different_users_evenly():
    table = joined(FixedSize(12, USERS))
    assert set(table.sum(1)) == {12}
    expected = ROUNDS * 12 / USERS
    chi = np.sum((table.sum(0) - expected) ** 2 / (expected * (1 - 12 / USERS)))
    assert stats.chi2.sf(chi, USERS - 1) > 1e-3


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.4, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(SottoError, match="chance to join a round"):
        Poisson(rate)


def test_where_users_are_missing_places_are_empty_and_nobody_joins_more_often_than_is_charged():
    """30 of 40 declared: a user joins at the declared rate, and so many of a cohort's places have somebody in them."""
    table = joined(FixedSize(12, 40), users=30)
    expected = ROUNDS * 12 / 40
    chi = np.sum((table.sum(0) - expected) ** 2 / (expected * (1 - 12 / 40)))
    assert stats.chi2.sf(chi, 30) > 1e-3
    observed = np.bincount(table.sum(1), minlength=13)
    wanted = stats.hypergeom(40, 30, 12).pmf(np.arange(13)) * ROUNDS
    large = wanted > 20
    chi = np.sum((observed[large] - wanted[large]) ** 2 / wanted[large])
    assert stats.chi2.sf(chi, large.sum()) > 1e-3
    with pytest.raises(SottoError, match="cohort=11"):
        FixedSize(11, 10)


def test_a_missing_user_changes_nobody_elses_place():
    for index in range(50):
        few, more = (FixedSize(12, 40).sample(range(users), key(index)) for users in (USERS - 1, USERS))
        assert few.tolist() == [row for row in more if row < USERS - 1]


@pytest.mark.parametrize(("rate", "most"), first_of([(0.15, 4), (0.02, 4)]))
def test_a_user_joins_with_a_binomial_number_of_examples(rate, most, vocabulary):
    """As the event charges: by the cohorts of real rounds, over all users and rounds."""
    clip, people, rounds = FlatClip(1.0), 200, 50
    mechanism = Mechanism(Examples(rate, most), clip, FixedDenominator(4.0), 1.0)
    algorithm = Algorithm(mechanism, FedSGD(clip, batch=1, unroll=2, tokens=2), Server(optax.sgd(1.0)))
    store = Store.from_users([[3] * 20] * people, vocabulary, tokens_per_user=20)
    joined = []

    def note(algorithm, task, store):
        joined.append(np.bincount(task.cohort // most, minlength=people))
        total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), task.params)
        return CohortSum(total, np.float64(len(task.cohort)), np.zeros(1), [], [])

    start = algorithm.server.start({"weight": np.zeros(3, np.float32)}, mechanism.start())
    payments = AllFree(lambda number: Secrets.seeded(6).keys(number))
    for _ in play_rounds(partial(ExampleLevel(2, most).play, algorithm, Work(store, note)), start, rounds, payments):
        pass
    (event, _), *others = mechanism.events(rounds)
    assert not others
    counts = np.bincount(np.concatenate(joined), minlength=most + 1)
    assert len(counts) == most + 1, "a user joined with more examples than are charged"

    def p_value(claimed):
        wanted = stats.binom(event.examples_per_user, claimed).pmf(np.arange(most + 1)) * people * rounds
        last = int(np.flatnonzero(wanted > 5)[-1])  # what is rarer is in one cell with it
        cells = [np.append(each[:last], each[last:].sum()) for each in (counts, wanted)]
        return stats.chi2.sf(np.sum((cells[0] - cells[1]) ** 2 / cells[1]), last)

    assert p_value(event.example_rate) > 1e-4
    assert p_value(event.example_rate * 0.7) < 1e-6
