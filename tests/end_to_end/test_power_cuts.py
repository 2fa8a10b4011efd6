"""After a power cut, what people paid for is there: nothing counts that was not flushed to disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_run import make_recipe, make_store

import sottovoce
from power_cut import Disk
from sottovoce.commands.prepare import PrivateVocabulary, prepare_privately
from sottovoce.commands.private_evaluation import evaluate_privately
from sottovoce.data.grouping import Grouping
from sottovoce.data.store import Store
from sottovoce.runs.ledger import PREPARATION, StoreLedger

ROUNDS = 1


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk with a store on it."""
    root = tmp_path / "disk"
    root.mkdir()
    make_store(root)
    disk = Disk(root, monkeypatch)
    yield disk
    disk.close()


def train(root: Path) -> None:
    recipe = make_recipe(root / "store")
    changes = {"privacy": {"secrets": "entropy"}, "run": {"rounds": ROUNDS, "checkpoint_every": 1}}
    sottovoce.train(recipe.replace(**changes), root / "run")


def test_a_store_with_the_words_that_were_paid_for_is_whole(disk):
    words = PrivateVocabulary(8.0, 1e-3, words_per_user=6, size=60)
    grouping = Grouping(tokens_per_user=16, test_users=0.1)
    prepare_privately([disk.root / "corpus.jsonl"], disk.root / "new/private", words, grouping)
    disk.cut()
    store = Store.open(disk.root / "new/private")
    assert store.users
    assert StoreLedger(disk.root / "new/private/ledger.jsonl").spent(PREPARATION)


def test_an_answer_that_was_shown_is_kept(disk):
    train(disk.root)
    shown = evaluate_privately(disk.root / "run", epsilon=2.0)
    disk.cut()
    again = evaluate_privately(disk.root / "run", epsilon=2.0)
    assert (again.accuracy, again.kept, again.evaluations) == (shown.accuracy, True, 1)
