"""The synthetic population is deterministic, extends itself, stays in its vocabulary and can be learnt."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from sottovoce.data.corpus import records
from sottovoce.data.demo import demo_texts, demo_vocabulary, write_demo
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.words import UNK
from sottovoce_evidence.errors import SottoError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo.jsonl"
    write_demo(path, users=600, seed=1)
    return path


@pytest.fixture(scope="module")
def population(corpus: Path) -> Store:
    return collect(corpus, demo_vocabulary())


@pytest.mark.slow
def test_the_same_seed_gives_the_same_corpus_and_another_does_not(corpus: Path, tmp_path: Path) -> None:
    write_demo(tmp_path / "again.jsonl", users=600, seed=1)
    write_demo(tmp_path / "other.jsonl", users=600, seed=2)
    assert (tmp_path / "again.jsonl").read_bytes() == corpus.read_bytes()
    assert (tmp_path / "other.jsonl").read_bytes() != corpus.read_bytes()


def test_a_larger_population_extends_a_smaller_one(corpus: Path, tmp_path: Path) -> None:
    write_demo(tmp_path / "small.jsonl", users=50, seed=1)
    assert corpus.read_bytes().startswith((tmp_path / "small.jsonl").read_bytes())


def test_users_differ(corpus: Path) -> None:
    assert len({tuple(demo_texts(1, user)) for user in range(200)}) == 200


def test_no_id_is_in_a_text(corpus: Path) -> None:
    assert not [text for _, text in records([corpus]) if "person" in text.lower() or "0000" in text]


def test_the_vocabulary_holds_every_word_and_is_of_the_size_promised(population: Store) -> None:
    assert 400 <= population.vocabulary.size <= 800
    assert not any((population[row] == UNK).any() for row in range(population.users))


def test_the_vocabulary_has_few_words_that_nobody_says(population: Store) -> None:
    said = {token for row in range(population.users) for token in population[row].tolist()}
    words = [token for token in range(population.vocabulary.size) if population.vocabulary.is_word(token)]
    assert sum(token in said for token in words) > 0.95 * len(words)


def test_users_have_the_length_promised(population: Store) -> None:
    lengths = population.lengths(range(population.users))
    assert lengths.min() >= 120
    assert 170 < lengths.mean() < 210
    # The last message may pass the drawn length, by no more than one long message.
    assert lengths.max() < 240 + 40


@pytest.mark.slow
def test_two_words_of_context_tell_most_of_the_next(population: Store) -> None:
    """Held-out users: a smoothed trigram needs less than a third of the bits of a unigram."""
    rows = [population[row].tolist() for row in range(population.users)]
    counts: Counter[tuple[int, ...]] = Counter()
    for row in rows[:500]:
        for place in range(2, len(row)):
            for order in range(4):
                counts[tuple(row[place - order + 1 : place + 1]) if order else ()] += 1
            counts[(-1, *row[place - 1 : place])] += 1
            counts[(-1, *row[place - 2 : place])] += 1

    def chance(gram: tuple[int, ...]) -> float:
        if not gram:
            return 1 / population.vocabulary.size
        seen = counts[(-1, *gram[:-1])] if len(gram) > 1 else counts[()]
        return (counts[gram] + 3 * chance(gram[1:])) / (seen + 3)

    bits = {
        order: -sum(
            math.log2(chance(tuple(row[place - order + 1 : place + 1])))
            for row in rows[500:]
            for place in range(2, len(row))
        )
        for order in (1, 3)
    }
    assert bits[3] < bits[1] / 3


def test_users_have_habits(population: Store) -> None:
    """A user's first and second half share more words than two users do."""

    def shared(a: list[int], b: list[int]) -> float:
        left, right = ({t for t in part if population.vocabulary.is_word(t)} for part in (a, b))
        return len(left & right) / min(len(left), len(right))

    rows = [population[row].tolist() for row in range(200)]
    own = sum(shared(row[: len(row) // 2], row[len(row) // 2 :]) for row in rows)
    other = sum(shared(a[: len(a) // 2], b[len(b) // 2 :]) for a, b in zip(rows, rows[1:] + rows[:1], strict=True))
    assert own > 1.2 * other


@pytest.mark.parametrize(
    ("name", "users", "tokens", "message"),
    [
        ("d.jsonl", 0, (120, 240), "users=0 must be at least 1"),
        ("d.csv", 1, (120, 240), r"must end in \.jsonl"),
        ("d.jsonl", 1, (0, 240), "must be a range"),
        ("d.jsonl", 1, (9, 8), "must be a range"),
        ("taken.jsonl", 1, (120, 240), "exists already"),
    ],
)
def test_bad_arguments_leave_nothing(
    tmp_path: Path, name: str, users: int, tokens: tuple[int, int], message: str
) -> None:
    taken = tmp_path / "taken.jsonl"
    taken.write_text("mine")
    with pytest.raises(SottoError, match=message):
        write_demo(tmp_path / name, users, 0, tokens)
    assert list(tmp_path.iterdir()) == [taken]
    assert taken.read_text() == "mine"


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_demo(tmp_path / "d.jsonl", 3, 0)
    assert list(tmp_path.iterdir()) == []
