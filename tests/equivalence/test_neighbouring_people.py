"""Neighbour replay with real stores: a person is dropped, added, renamed, or writes something else.

Two corpora differ in one person and are prepared in full, so that everybody else's row may shift. In turn, the rounds
are played as they are: whose turn it is follows from names alone. Where cohorts are drawn by chance, the coins are
coupled by person, which is what the proofs do: everybody else has the same coin in both worlds.
"""

from __future__ import annotations

import json

import jax
import numpy as np
import optax
import pytest

from examples import first_of
from free import Free
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg
from sottovoce.models.lstm import LSTM
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import FixedSize, InTurn, MinSeparation, Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm, Task

WORDS = ["red", "green", "blue", "sky", "tree", "house"]
S, PEOPLE, DECLARED, COHORT, ROUNDS = 0.5, 13, 12, 3, 8  # four groups: everybody has two turns
GROUPS = DECLARED // COHORT
# Long, one word over and over: who writes it pulls far.
LOUD, OTHER = "sky " * 14, "house tree " * 7
WORLDS = {
    "dropped": {"p4": "red"},  # below min_tokens
    "gone": {"p4": None},
    "added": {"new": LOUD},
    "of another text": {"p4": OTHER},
    "renamed": {"p4": None, "somebody": LOUD},
    "renamed, of another text": {"p4": None, "someone": OTHER},
}
SUM = SumInBlocks(4)
SERVER = Server(optax.sgd(1.0))  # one for all: another would be compiled again


def write_store(folder, change) -> Store:
    texts = {f"p{number}": " ".join(np.random.default_rng(number).choice(WORDS, 12)) for number in range(PEOPLE)}
    texts |= {"p4": LOUD} | change
    lines = [json.dumps({"user": user, "text": text}) for user, text in texts.items() if text is not None]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    vocabulary = Vocabulary.from_words(WORDS)
    grouping = Grouping(tokens_per_user=16, min_tokens=6, test_users=0.0)
    prepare([folder / "corpus.jsonl"], folder / "store", vocabulary, grouping)
    return Store.open(folder / "store")


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, Store]:
    return {
        world: write_store(tmp_path_factory.mktemp("world"), change)
        for world, change in ({"base": {}} | WORLDS).items()
    }


@pytest.fixture(scope="module")
def network() -> LSTM:
    return LSTM(Vocabulary.from_words(WORDS).size, embedding=4, hidden=5, key=jax.random.key(1))


def make_algorithm(sampler) -> Algorithm:
    clip = FlatClip(S)
    update = FedAvg(clip, True, batch=2, unroll=4, learning_rate=30.0)
    return Algorithm(Mechanism(sampler, clip, FixedDenominator(1.0), 1.0), update, SERVER)


def sums_in_turn(network, store, sampler=None) -> list:
    """The sum of every round, each begun with the same model: whose turn it is, is for the round to find out."""
    algorithm, seen = make_algorithm(sampler or TURNS), []
    state = algorithm.server.start(network)
    for number in range(ROUNDS):
        keys = Secrets.seeded(4).keys(number + 1)
        play_round(algorithm, state._replace(round=number), store, Free(keys), SUM, seen.append)
    return [one.summed.total for one in seen]


def distance(one, other) -> float:
    """How far apart two sums are, in units of S."""
    parts = [np.ravel(a - b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    return float(np.linalg.norm(np.concatenate(parts))) / S


TURNS = InTurn(COHORT, DECLARED, seed=5)
IRREGULAR = MinSeparation(COHORT, DECLARED, 5, min_separation=2, most_participations=4)


def rounds_of(user: str, sampler=TURNS) -> set[int]:
    name = Grouping().name(user)
    number = int.from_bytes(name[:8], "big") ^ int.from_bytes(name[8:], "big")
    return set(sampler.rounds_of(np.array([number], np.uint64), ROUNDS)[0].tolist()) - {0}


@pytest.mark.parametrize("sampler", [TURNS, IRREGULAR], ids=["in_turn", "min_separation"])
@pytest.mark.parametrize("world", WORLDS)
def test_in_turn_one_person_moves_their_own_rounds_alone(stores, network, world, sampler):
    """Added or removed, by S in their turns; replaced, by 2 S in theirs, or by S in those of either name."""
    before, after = (sums_in_turn(network, stores[name], sampler) for name in ("base", world))
    moves = {number: distance(*pair) for number, pair in enumerate(zip(before, after, strict=True), 1)}
    moved = {number for number, move in moves.items() if move > 0}  # all other sums are the same to the bit
    turns = sampler.participations(ROUNDS)
    names = ({"p4"} if world != "added" else set()) | {user for user, text in WORLDS[world].items() if text}
    joined = [rounds_of(name, sampler) for name in names]
    unmoved = joined[0] & joined[1] if world == "renamed" else set()  # the same text under either name
    assert moved == set().union(*joined) - unmoved, f"turns of others moved: {moves}"
    assert len(moved) <= turns * len(names)
    replaced = world == "of another text" or (len(joined) == 2 and joined[0] & joined[1])
    assert max(moves.values()) <= (2 if replaced else 1) + 1e-6
    # What is charged for replacing a person: 2 S in each of `turns` rounds.
    assert sum(move**2 for move in moves.values()) <= 4 * turns * (1 + 1e-6)
    assert max(moves.values()) > 0.9, "the person hardly counts, so the test shows little"


def test_in_turn_the_worlds_hold_both_kinds_of_a_new_name():
    """In the group of the old name, and in another."""
    assert rounds_of("p4") != rounds_of("somebody")
    assert rounds_of("p4") == rounds_of("someone")


def total(network, store, sampler, numbers, sum_updates=SUM) -> list:
    """The sum over those of a store who have these numbers for names."""
    rows = np.flatnonzero(np.isin(store.names, list(numbers)))
    algorithm = make_algorithm(sampler)
    clip_norms = algorithm.mechanism.clip_norms(1, None)
    key = local_key(Secrets.seeded(4).keys(1).local)
    return sum_updates(algorithm, Task(network, rows, clip_norms, key), store).total


SAMPLERS = [Poisson(0.4), FixedSize(6, 40), TURNS, IRREGULAR]


@pytest.mark.parametrize("seats", [3, *(pytest.param(seats, marks=pytest.mark.slow) for seats in (1, 2, 4, 5, 6))])
@pytest.mark.parametrize("sampler", first_of(SAMPLERS), ids=lambda sampler: type(sampler).__name__)
def test_all_others_send_the_same_to_the_bit(stores, network, sampler, seats):
    """In every round, whatever the one person does: rows may shift, and so may seats, blocks and neighbours."""
    base, sum_updates = stores["base"], SumInBlocks(seats)
    mine = {int(base.names[_row_of(base, "p4")])}
    edges = set()
    for number in range(1, 7):
        drawn = set(base.names[sampler.sample(base, Secrets.seeded(4).keys(number).sampling, number)].tolist())
        others = drawn - mine
        edges.add(len(others) % seats)
        alone = total(network, base, sampler, others, sum_updates)
        for world, store in stores.items():
            new = set(store.names.tolist()) - set(base.names.tolist()) or mine
            both = total(network, store, sampler, others | new, sum_updates)
            own = total(network, store, sampler, new, sum_updates)
            for one, other, part in zip(*map(jax.tree.leaves, (alone, both, own)), strict=True):
                np.testing.assert_array_equal(np.asarray(other) - np.asarray(part), one, f"round {number}, {world}")
    assert seats == 1 or len(edges) > 1


@pytest.mark.parametrize("world", WORLDS)
def test_with_coins_one_person_moves_the_rounds_they_join_alone(stores, network, world):
    """A coin for each who is in either world: of those who are in both, it is the same one."""
    base, other, sampler = stores["base"], stores[world], Poisson(0.4)
    everybody = sorted(set(base.names.tolist()) | set(other.names.tolist()))
    differ = set(base.names.tolist()) ^ set(other.names.tolist()) or {int(base.names[_row_of(base, "p4")])}
    largest = 0.0
    for number in range(1, 13):
        rows = sampler.sample(everybody, Secrets.seeded(4).keys(number).sampling)
        drawn = {everybody[row] for row in rows}
        move = distance(*(total(network, store, sampler, drawn) for store in (base, other)))
        # A person replaced under another name is one removed and one added: the charge for replacing is for both.
        assert move <= (2 if world == "of another text" else len(differ & drawn)) + 1e-6
        assert move == 0 or differ & drawn
        largest = max(largest, move)
    assert largest > 0.9


@pytest.mark.parametrize("declared", [12, *(pytest.param(users, marks=pytest.mark.slow) for users in (13, 40))])
@pytest.mark.parametrize("world", WORLDS)
def test_with_a_fixed_number_of_places_one_person_moves_at_most_their_own(stores, network, world, declared):
    """Whoever comes has the place of whoever goes. Without anybody in it, it is empty if declared, else not there."""
    base, other, sampler = stores["base"], stores[world], FixedSize(6, declared)
    both = sorted(set(base.names.tolist()) & set(other.names.tolist()))
    stand = [[*both, *(set(store.names.tolist()) - set(both))] for store in (base, other)]  # who has which place
    most, changed = max(declared, *map(len, stand)), len(both)
    largest = 0.0
    for number in range(1, 13):
        drawn = set(sampler.sample(range(most), Secrets.seeded(4).keys(number).sampling).tolist())
        sums = []
        for store, here in zip((base, other), stand, strict=True):
            places = drawn
            if max(declared, len(here)) < most and changed in drawn:
                # One place fewer: somebody else is drawn instead, all that are left being equally likely.
                places = drawn - {changed} | {min(set(range(changed)) - drawn)}
            sums.append(total(network, store, sampler, {here[place] for place in places if place < len(here)}))
        move = distance(*sums)
        assert move <= 2 + 1e-6
        assert move == 0 or changed in drawn or world == "of another text"
        largest = max(largest, move)
    assert largest > 0.9 or world == "renamed"  # a name is nothing to a place


def _row_of(store: Store, user: str) -> int:
    name = Grouping().name(user)
    number = int.from_bytes(name[:8], "big") ^ int.from_bytes(name[8:], "big")
    return int(np.flatnonzero(store.names == np.uint64(number))[0])


@pytest.mark.parametrize("sampler", [Poisson(0.4), FixedSize(6, 40), InTurn(COHORT, 40, seed=5), IRREGULAR], ids=str)
def test_no_store_is_refused_for_how_many_its_people_are(stores, network, sampler):
    for store in stores.values():
        assert len(sums_in_turn(network, store, sampler)) == ROUNDS
