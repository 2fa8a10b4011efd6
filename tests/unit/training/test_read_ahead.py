"""Rounds that are read ahead are the rounds that are not."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from sottovoce.build.assembly import assemble
from sottovoce.papers.popov2018.stale_updates import StaleUpdates
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.read_ahead import ReadAhead, draw_now
from sottovoce.training.strategy import Work, play_rounds
from sottovoce.training.types import Task
from sottovoce_evidence.errors import AnotherSum, SottoError
from sottovoce_evidence.recipe import Recipe

ROUNDS = 5
PAYMENTS = Unpaid(Secrets.seeded(5), "a", hash_sums=True)


def assembled(store, **privacy):
    settings = {"users": 13, "cohort": 6, "clip_norm": 0.3, "noise_multiplier": 1.2, "delta": 1e-3}
    return assemble(
        Recipe.from_dict({
            "model": {"embedding": 4, "hidden": 5},
            "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
            "privacy": {"accountant": "rdp", **settings, **privacy},
            "run": {"block": 4, "rounds": ROUNDS},
        }),
        store,
    )  # fmt: skip


def played(assembly, store, sum_updates, payments=PAYMENTS, strategy=None):
    """The parameters after each round, and what was drawn."""
    play = partial((strategy or assembly.strategy).play, assembly.algorithm)
    traces, params = [], []
    state = assembly.start(assembly.model)
    state = state if strategy is None else strategy.start(state)
    for after, _ in play_rounds(partial(play, Work(store, sum_updates, traces.append)), state, ROUNDS, payments):
        params.append(jax.tree.map(np.asarray, after.params))
    return params, [
        (trace.round, trace.task.cohort, np.asarray(jax.random.key_data(trace.task.key))) for trace in traces
    ]


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture
def gone_on(monkeypatch):
    """The cohorts of the sums that went on from what was read ahead."""
    seen, real = [], ReadAhead.__call__

    def call(self, algorithm, task, store):
        guess = self._guess
        if guess is not None and guess.is_task(algorithm, task, store):
            seen.append(task.cohort)
        return real(self, algorithm, task, store)

    monkeypatch.setattr(ReadAhead, "__call__", call)
    return seen


KINDS = {
    "poisson": {},
    "fixed size": {"sampling": "fixed"},
    "adaptive clip": {"adaptive_quantile": 0.5, "adaptive_bit_noise": 3.0},
    "no clip": {"mode": "none"},
    "empty cohorts": {"cohort": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_are_the_same_to_the_bit_read_ahead_or_not(store, gone_on, kind):
    assembly = assembled(store, **KINDS[kind])
    plain = played(assembly, store, assembly.sum_updates)
    ahead = played(assembly, store, ReadAhead(assembly.sum_updates))
    assert_same(plain, ahead)
    assert len(gone_on) == ROUNDS - 1  # all but the first
    if kind == "empty cohorts":
        assert any(len(cohort) == 0 for cohort in gone_on)
    else:
        assert len({cohort.tobytes() for _, cohort, _ in plain[1]}) == ROUNDS


class PaidForWithAnotherSum:
    """Payments whose third round was paid for with another sum. Keys follow from the attempts so far."""

    def __init__(self):
        self.name, self.attempt = "", 0

    def begin(self, number):
        return Attempt(self, number, f"{self.name}{self.attempt}")


class Attempt:
    def __init__(self, payments, number, name):
        self.payments, self.number, self.name = payments, number, name
        self.unpaid = Unpaid(Secrets.seeded(5), name).begin(number)
        self.keys = self.unpaid.keys
        self.following = Unpaid(Secrets.seeded(5), f"{name}0").begin(number + 1).keys

    def charge(self, event, total):
        if self.number == 3 and not self.payments.attempt:
            self.payments.attempt = 1
            raise AnotherSum
        self.payments.name, self.payments.attempt = self.name, 0
        return self.unpaid.charge(event, total)


def test_another_attempt_does_not_get_what_was_read_ahead(store, gone_on):
    """Its cohort is its own: two releases of one cohort cost more than two releases."""
    assembly = assembled(store)
    plain = played(assembly, store, assembly.sum_updates, PaidForWithAnotherSum())
    ahead = played(assembly, store, ReadAhead(assembly.sum_updates), PaidForWithAnotherSum())
    assert_same(plain, ahead)
    assert [number for number, *_ in ahead[1]] == [1, 2, 3, 4, 5]
    assert len(gone_on) == ROUNDS - 1  # rounds 2 and 3, then not 3 again, then 4 and 5
    again = draw_now(assembly.algorithm, store, 3, Unpaid(Secrets.seeded(5), "001").begin(3).keys)
    np.testing.assert_array_equal(ahead[1][2][1], again.cohort)


KEYS, OTHERS = (PAYMENTS.begin(number).keys for number in (2, 3))


@pytest.mark.parametrize("other", ["number", "sampling", "local", "algorithm", "store"])
def test_a_round_gets_what_was_read_ahead_of_that_round_alone(store, other):
    assembly = assembled(store)
    algorithm, ahead = assembly.algorithm, ReadAhead(assembly.sum_updates)
    norms = algorithm.mechanism.clip_norms(1, None)
    ahead.read(algorithm, Task(assembly.params, None, norms, None), store, 2, KEYS)
    held = ahead._guess.draw
    asked = {"algorithm": algorithm, "store": store, "number": 2, "keys": KEYS}
    assert ahead.draw(**asked).cohort is held.cohort
    changed = {
        "number": {"number": 3},
        "sampling": {"keys": KEYS._replace(sampling=OTHERS.sampling)},
        "local": {"keys": KEYS._replace(local=OTHERS.local)},
        "algorithm": {"algorithm": assembled(store).algorithm},
        "store": {"store": store.without(0)},
    }[other]
    drawn, fresh = ahead.draw(**asked | changed), draw_now(**asked | changed)
    assert_same((drawn.cohort, jax.random.key_data(drawn.key)), (fresh.cohort, jax.random.key_data(fresh.key)))
    assert drawn.cohort is not held.cohort
    assert ahead._guess is None
    assert ahead.draw(**asked).cohort is not held.cohort  # it is gone for good


def test_the_sum_over_another_cohort_begins_anew(store):
    """A variant may sum over a part of a cohort."""
    assembly = assembled(store)
    algorithm, ahead = assembly.algorithm, ReadAhead(assembly.sum_updates)
    norms = algorithm.mechanism.clip_norms(1, None)
    ahead.read(algorithm, Task(assembly.params, None, norms, None), store, 2, KEYS)
    cohort, key = ahead.draw(algorithm, store, 2, KEYS)
    task = Task(assembly.params, cohort[:-1], norms, key)
    sums = [sum_updates(algorithm, task, store) for sum_updates in (ahead, assembly.sum_updates)]
    assert_same(*((summed.total, summed.weight, summed.bits) for summed in sums))
    assert ahead._guess is None


def test_variants_that_sum_otherwise_are_not_read_ahead(store, gone_on, monkeypatch):
    assembly, strategy = assembled(store), StaleUpdates(2, (0.5, 0.5))
    plain = played(assembly, store, assembly.sum_updates, strategy=strategy)
    read = []
    monkeypatch.setattr(ReadAhead, "read", lambda *given: read.append(given))
    assert_same(plain, played(assembly, store, ReadAhead(assembly.sum_updates), strategy=strategy))
    assert gone_on == read == []


def test_nothing_is_read_ahead_where_no_round_is_known_to_follow(store, monkeypatch):
    drawn, real = [], Poisson.sample
    monkeypatch.setattr(Poisson, "sample", lambda *given: drawn.append(given[-1]) or real(*given))
    monkeypatch.setattr(Unpaid, "following", property(lambda self: None if self.round in (2, 5) else KEYS))
    played(assembly := assembled(store), store, ReadAhead(assembly.sum_updates))
    assert drawn == [1, 2, 3, 4, 4, 5, 5]  # rounds 4 and 5 have other keys than those that were guessed


@pytest.mark.parametrize(
    ("part", "error"), [("blocks", SottoError("too many")), ("begin", OSError("rows that cannot be read"))]
)
def test_what_goes_wrong_goes_wrong_in_its_own_round(store, monkeypatch, part, error):
    """The round before goes through."""

    def refuse(*_):
        raise error

    assembly = assembled(store)
    ahead = ReadAhead(assembly.sum_updates)
    task = Task(assembly.params, np.arange(2), assembly.algorithm.mechanism.clip_norms(1, None), None)
    monkeypatch.setattr(SumInBlocks, part, refuse)
    ahead.read(assembly.algorithm, task, store, 2, KEYS)
    with pytest.raises(type(error), match=str(error)):
        ahead(assembly.algorithm, task, store)


def test_what_is_read_ahead_is_not_shown(store):
    assembly = assembled(store)
    ahead = ReadAhead(assembly.sum_updates)
    norms = assembly.algorithm.mechanism.clip_norms(1, None)
    ahead.read(assembly.algorithm, Task(assembly.params, None, norms, None), store, 2, KEYS)
    assert repr(ahead) == repr(ReadAhead(assembly.sum_updates))
