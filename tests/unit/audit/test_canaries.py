"""Canaries are planted on top of the people and change nothing for them; exposure is the rank of a secret."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from family import Bigrams
from free import Free
from sottovoce.audit import canaries
from sottovoce.audit.canaries import choose, curve, expose, insert
from sottovoce.audit.registry import Registry
from sottovoce.data.words import BOS, EOS
from sottovoce.local.update import FedAvg
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round, sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Audit

AUDIT = Audit(users=40, secrets=4, holders=(1, 3), prefix=2, words=2)
KEYS = Secrets.seeded(3).keys(1)


@pytest.fixture(scope="module")
def registry(vocabulary) -> Registry:
    return choose(AUDIT, vocabulary, 48)


@pytest.fixture(scope="module")
def table(vocabulary) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(vocabulary.size, vocabulary.size)).astype(np.float32)


def test_what_is_planted_follows_from_the_seed_and_can_be_read_back(vocabulary, registry):
    assert choose(AUDIT, vocabulary, 48) == registry
    assert choose(AUDIT, vocabulary, 48, seed=1).users != registry.users
    assert Registry.from_json(registry.to_json()) == registry
    assert registry.holders == (1, 3, 1, 3)
    assert registry.canaries == 40 + 8
    sequences = [*registry.users, *registry.secrets]
    assert len({words[:2] for words in sequences}) == len(sequences)  # who begins alike would share a secret
    assert registry.summary().registry != choose(AUDIT, vocabulary, 48, seed=1).digest()
    with pytest.raises(DamagedRun, match="damaged"):
        Registry.from_json({"registry": 1})


def test_a_canary_writes_its_words_over_and_over(vocabulary, registry):
    rows = registry.rows(vocabulary)
    line = [BOS, *registry.encode(registry.users[0], vocabulary), EOS]
    assert vocabulary.decode(line[1:-1]) == " ".join(registry.users[0])
    assert rows[0].tolist() == line * 8  # 48 tokens
    twice = choose(replace(AUDIT, copies=2), vocabulary, 48)
    assert [len(row) for row in twice.rows(vocabulary)] == [48] * 40 + [12] * 8
    assert rows[41].tolist() == rows[42].tolist() == rows[43].tolist() != rows[40].tolist()


def test_canaries_come_after_the_people_and_those_who_are_out_wrote_nothing(store, registry, vocabulary):
    present = np.arange(40) % 2 == 0
    planted = insert(store, registry, present)
    assert planted.users == store.users + 48
    assert planted.fingerprint == store.fingerprint  # it names the people
    for row in range(store.users):
        assert planted[row].tolist() == store[row].tolist()
    lengths = planted.lengths(store.users + np.arange(48))
    assert np.array_equal(lengths[:40] > 0, present)
    assert np.all(lengths[40:] > 0)


def algorithm(rate: float) -> Algorithm:
    clip = FlatClip(0.3)
    mechanism = Mechanism(Poisson(rate), clip, FixedDenominator(5.0), 1.0)
    return Algorithm(mechanism, FedAvg(clip, True, batch=2, unroll=6, learning_rate=1.0), Server(optax.sgd(1.0)))


def test_canaries_change_nobody_elses_chance(store, registry):
    for seed in range(50):
        key = Secrets.seeded(seed).keys(1).sampling
        drawn = Poisson(0.3).sample(insert(store, registry), key)
        assert np.array_equal(drawn[drawn < store.users], Poisson(0.3).sample(store, key))


def test_canaries_who_are_out_leave_a_round_as_it_is_to_the_bit(store, table, registry):
    """And those who are in add what they send to the sum, over the same declared denominator, and nothing else."""
    given = algorithm(0.6)
    start = given.server.start(Bigrams(jnp.asarray(table)))
    users = replace(registry, secrets=(), holders=())
    none, everyone = (insert(store, users, np.full(40, there)) for there in (False, True))
    seen = []

    def play(store):
        return play_round(given, start, store, Free(KEYS), sum_one_by_one, seen.append)

    alone, without = play(store)
    beside, with_silent = play(none)
    for one, other in zip(jax.tree.leaves(alone.params), jax.tree.leaves(beside.params), strict=True):
        assert np.array_equal(one, other)
    assert with_silent.weight == without.weight

    louder, summed = play(everyone)
    joined = seen[-1].task.cohort[seen[-1].task.cohort >= store.users]
    assert len(joined) > 10
    own = sum_one_by_one(given, seen[-1].task._replace(cohort=joined), everyone)
    for total, people, canary in zip(*map(jax.tree.leaves, (summed.total, without.total, own.total)), strict=True):
        assert np.array_equal(total, people + canary)
    moved = jax.tree.map(lambda one, other: np.asarray(one) - np.asarray(other), louder.params, alone.params)
    for step, canary in zip(jax.tree.leaves(moved), jax.tree.leaves(own.total), strict=True):
        np.testing.assert_allclose(step, canary / 5.0, atol=1e-6)


@pytest.mark.slow
def test_exposure_is_the_rank_among_all_that_could_stand_there(vocabulary, registry, table):
    words = np.flatnonzero(vocabulary.word_mask)
    chances = jax.nn.log_softmax(np.where(np.arange(vocabulary.size) == BOS, -np.inf, table), axis=1)
    for found, secret in zip(expose(Bigrams(table), registry, vocabulary), registry.secrets, strict=True):
        *_, last, first, second = registry.encode(secret, vocabulary)
        every = chances[last][words][:, None] + chances[words][:, words]
        rank = 1 + np.sum(every > chances[last, first] + chances[first, second] + 1e-5)
        assert found.whole_space
        assert (found.rank, found.references) == (rank, len(words) ** 2)
        assert found.bits == pytest.approx(math.log2(len(words) ** 2 / rank))


def test_a_secret_that_a_model_knows_is_exposed_in_full_and_found_by_beams(vocabulary, registry, table):
    known = np.zeros_like(table)
    tokens = registry.encode(registry.secrets[0], vocabulary)
    for one, next_ in itertools.pairwise(tokens[1:]):
        known[one, next_] += 20
    found = expose(Bigrams(known), registry, vocabulary)
    assert found[0].rank == 1
    assert found[0].bits == found[0].most
    assert found[0].extracted
    assert not any(one.extracted for one in found[1:])
    by_holders = curve(found)
    assert [(point.holders, point.secrets, point.extracted) for point in by_holders] == [(1, 2, 1), (3, 2, 0)]
    assert by_holders[0].largest == found[0].bits


def test_a_model_gone_to_nan_exposes_nothing(vocabulary, registry, table):
    assert all(one.bits == 0 for one in expose(Bigrams(np.full_like(table, np.nan)), registry, vocabulary))


@pytest.mark.slow
def test_a_sampled_space_gives_about_the_same_rank(vocabulary, registry, table, monkeypatch):
    longer = choose(Audit(secrets=3, words=3), vocabulary, 48)
    whole = expose(Bigrams(table), longer, vocabulary)
    monkeypatch.setattr(canaries, "HEADS", 200)  # of 21 * 21
    sampled = expose(Bigrams(table), longer, vocabulary)
    for one, other in zip(sampled, whole, strict=True):
        assert (one.whole_space, other.whole_space) == (False, True)
        assert 195 * 21 < one.references <= 200 * 21 + 1
        assert one.rank / one.references == pytest.approx(other.rank / other.references, abs=0.1)


def test_beams_are_the_likeliest_where_all_are_kept(vocabulary, table):
    """A search that is wide enough is an exhaustive one."""
    words = np.flatnonzero(vocabulary.word_mask)
    chances = np.asarray(jax.nn.log_softmax(np.where(np.arange(vocabulary.size) == BOS, -np.inf, table), axis=1))
    every = chances[words[0]][words][:, None] + chances[words][:, words]
    best = np.unravel_index(np.argsort(-every, axis=None)[:5], every.shape)
    allowed, specials = jnp.asarray(vocabulary.word_mask), vocabulary.specials
    found = canaries.search_beams(Bigrams(table), specials, jnp.array([words[3], words[0]]), 2, len(words), allowed)
    assert np.asarray(found)[:5].tolist() == np.stack([words[best[0]], words[best[1]]], axis=1).tolist()
