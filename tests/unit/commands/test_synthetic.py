"""`benchmarks/synthetic.py`: the same people from the same seed, and the language of `demo.py`."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmark_modules import load_benchmark
from sottovoce.data.demo import demo_texts, demo_vocabulary
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import UNK

WORDS = demo_vocabulary()
TOKENS = 60


def made(folder: Path, users: int, vocabulary: Vocabulary = WORDS, **more) -> Store:
    synthetic = load_benchmark("synthetic")
    synthetic.write_population(synthetic.Population(users, TOKENS, **more), folder, vocabulary)
    return Store.open(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made(tmp_path_factory.mktemp("synthetic") / "store", 4200)


def test_what_a_person_writes_follows_from_the_seed_and_the_number_alone(store: Store, tmp_path: Path):
    """4,200 people are two chunks, and 4,100 end within the second."""
    few = made(tmp_path / "few", 4100)
    for row in (0, 4095, 4096, 4099):
        assert (few[row] == store[row]).all()
    assert (few.names == store.names[:4100]).all()
    assert len(set(store.names.tolist())) == 4200
    other = made(tmp_path / "other", 3, seed=1)
    assert not (other[0] == few[0]).all()


def test_everybody_writes_as_much_as_asked_and_the_held_out_are_others(store: Store):
    assert store.users == 4200
    assert set(store.lengths(range(4200)).tolist()) == {TOKENS}
    held_out = Store.open(store.path, "test")
    assert held_out.users == 467  # a tenth of all
    assert not (held_out[0] == store[0]).all()
    assert store.practice
    assert store.people


def test_people_write_as_those_of_the_demo_do(store: Store):
    """The slow twin: text of the same grammar. Pairs of words are as frequent."""
    texts = ([WORDS.encode(text) for text in demo_texts(3, user, (9 * TOKENS, 9 * TOKENS))] for user in range(100))
    slow = [[token for text in person for token in text] for person in texts]
    counts = []
    for people in (slow, *([store[first + row].tolist() for row in range(1000)] for first in (0, 1000))):
        pairs = Counter(pair for tokens in people for pair in pairwise(tokens))
        total = sum(pairs.values())
        counts.append({pair: count / total for pair, count in pairs.items()})
    twin, ours, others = counts
    assert UNK not in {token for pair in ours for token in pair}
    assert distance(ours, twin) < 1.6 * distance(ours, others) + 0.01


def test_people_have_habits(store: Store):
    """A person's words come again in what the person writes later, more than in what another writes."""
    halves = [tuple(set(half.tolist()) for half in np.split(store[row], 2)) for row in range(800)]
    own = np.mean([len(first & later) for first, later in halves])
    other = np.mean([len(first & later) for (first, _), (_, later) in pairwise(halves)])
    assert own > 1.15 * other


def distance(one: dict, other: dict) -> float:
    return sum(abs(one.get(pair, 0) - other.get(pair, 0)) for pair in {**one, **other}) / 2


def test_words_outside_the_vocabulary_keep_their_letters(tmp_path: Path):
    words = Vocabulary.from_words(WORDS.words[:200])
    store = made(tmp_path / "store", 20, words)
    letters = store.unknown_letters(7)
    assert letters is not None
    assert len(letters) == np.sum(store[7] == UNK) > 0
    assert letters.min() > 0
