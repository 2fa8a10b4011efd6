"""Bands and groups: parts that make up the whole, and what is lost between two models."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.words import BOS, EOS, UNK
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.breakdown import (
    FEWEST,
    Breakdown,
    Part,
    bands_of,
    count_parts,
    lost,
    quarters,
    share_of,
)
from sottovoce.evaluation.prediction import Counts, count_hits, summarise
from sottovoce.models.lstm import LSTM

RANKS = (2, 5)
FIRST = 45  # ids of words in the tests' vocabulary


@pytest.fixture(scope="module")
def people(vocabulary) -> Store:
    """Fifty users of all lengths; some write words outside the vocabulary."""
    generator = np.random.default_rng(0)
    users = []
    for number in range(50):
        words = FIRST + generator.zipf(1.5, size=3 + number) % (vocabulary.size - FIRST)
        words[generator.random(len(words)) < number / 200] = UNK
        users.append([BOS, *words, 10, EOS])
    return Store.from_users(users, vocabulary)


@pytest.fixture(scope="module")
def counted(model: LSTM, people: Store) -> tuple[Counts, Breakdown]:
    return count_parts(model, people, bands_of(people, RANKS))


@pytest.mark.slow
def test_the_pass_that_takes_apart_counts_as_the_one_that_does_not(model, people, counted):
    for column, expected in zip(counted[0], count_hits(model, people), strict=True):
        assert column == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_bands_add_up_to_the_whole(counted, people):
    counts, found = counted
    assert [part.name for part in found.bands] == [
        "the 2 most frequent words", "the next 3", "all other words", "marks and ends of texts",
        "outside the vocabulary",
    ]  # fmt: skip
    for name in ("targets", "top1", "top3", "loss"):
        whole = sum(getattr(part, name) for part in found.bands)
        assert whole == pytest.approx(getattr(counts, name), rel=1e-5), name
    rows = found.to_json()["by_band"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert sum(row["share"] * row["top1"] for row in rows) == pytest.approx(summarise(counts, Text.of(people)).top1)
    assert rows[-1]["share"] == pytest.approx(summarise(counts, Text.of(people)).oov_rate)
    assert rows[-1]["top1"] == 0  # always a mistake


def test_bands_follow_the_users_own_frequencies(vocabulary):
    rare, usual, often = FIRST, FIRST + 1, FIRST + 2
    store = Store.from_users([[BOS, often, often, often, usual, usual, rare, EOS, UNK]], vocabulary)
    bands = bands_of(store, (1, 2))
    names = [bands.names[bands.of_token[token]] for token in (often, usual, rare, EOS, UNK)]
    assert names == [
        "the 1 most frequent words", "the next 1", "all other words", "marks and ends of texts",
        "outside the vocabulary",
    ]  # fmt: skip


def test_groups_have_everybody_once_and_nobody_nearly_alone(counted):
    counts, found = counted
    assert set(found.groups) == {"amount of text, in targets", "words outside the vocabulary"}
    for parts in found.groups.values():
        assert sum(part.targets for part in parts) == pytest.approx(counts.targets)
        assert all(np.sum(part.targets > 0) >= FEWEST for part in parts)
    longest = found.groups["amount of text, in targets"][-1]
    assert longest.targets.nonzero()[0].min() > found.groups["amount of text, in targets"][0].targets.nonzero()[0].max()


def test_who_is_alike_stays_together():
    values = np.array([1.0] * 30 + [2.0] * 12 + [3.0] * 4)
    groups = quarters(values, np.ones(46, bool))
    assert [sorted(set(values[group])) for group in groups] == [[1.0], [2.0, 3.0]]
    some = np.arange(46) % 2 == 0  # 15 and 8: too few for two groups
    assert [group.sum() for group in quarters(values, some)] == [23]


def test_a_share_and_its_interval_by_hand():
    """1 and 3 hits of 4 targets each: one below the mean, one above; a user without text is no user."""
    share, within = share_of(np.array([1.0, 3.0, 0.0]), np.array([4.0, 4.0, 0.0]))
    assert share == 0.5
    assert within == pytest.approx(1.959964 * np.sqrt(2 * 2) / 8)


def test_what_is_lost_by_hand():
    """Two users of 10 targets: 8 and 6 hits against 4 and 4: 6 of 20 lost."""
    ten, none = np.array([10.0, 10.0]), np.zeros(2)
    worse, better = (Part("", ten, np.array(hits), none, none) for hits in ([4.0, 4.0], [8.0, 6.0]))
    difference, within = lost(worse, better)
    assert difference == pytest.approx(6 / 20)
    # By user 0.4 and 0.2: the error of their mean is the spread over the root of 2.
    assert within == pytest.approx(1.96 * np.std([0.4, 0.2], ddof=1) / np.sqrt(2), rel=1e-3)
    assert lost(worse, worse) == (0, 0)


def test_two_models_side_by_side(model, people, counted, vocabulary):
    other = LSTM(vocabulary.size, embedding=6, hidden=8, key=jax.random.key(8))
    theirs = count_parts(other, people, bands_of(people, RANKS))[1]
    for row, alone in zip(counted[1].to_json(theirs)["by_band"], theirs.to_json()["by_band"], strict=True):
        assert row["beside"] == {name: alone[name] for name in ("top1", "top3", "perplexity")}
        assert row["lost"] == pytest.approx(alone["top1"] - row["top1"])
