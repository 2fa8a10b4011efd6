"""The synthetic population is deterministic, extends itself, stays in its vocabulary and can be learnt."""

import json
from pathlib import Path

import pytest

from sottovoce.data.corpus import records
from sottovoce.data.demo import demo_texts, demo_vocabulary, write_demo
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.words import UNK


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


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_demo(tmp_path / "d.jsonl", 3, 0)
    assert list(tmp_path.iterdir()) == []
