"""A store with some of the users of another."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.some_users import copy_users, user_names
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words(["one", "two", "three"])


@pytest.fixture
def folder(tmp_path):
    records = [{"user": f"u{number}", "text": "one two unheard three " * (1 + number % 3)} for number in range(20)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, records)))
    prepare(tmp_path / "c.jsonl", tmp_path / "store", WORDS, Grouping(tokens_per_user=9, test_users=0.2))
    return tmp_path / "store"


def test_the_chosen_users_keep_their_text_and_their_names_and_take_their_charges_along(folder, tmp_path):
    (folder / "ledger.jsonl").write_text("charges")
    before, held_out = Store.open(folder), Store.open(folder, "test")
    names = user_names(before)
    after = copy_users(folder, tmp_path / "some", [5, 1])
    assert user_names(after) == [names[1], names[5]]
    for row, old in enumerate((1, 5)):
        assert np.array_equal(after[row], before[old])
        assert np.array_equal(after.unknown_letters(row), before.unknown_letters(old))
    assert (after.tokens_per_user, after.vocabulary.fingerprint) == (9, before.vocabulary.fingerprint)
    assert user_names(Store.open(tmp_path / "some", "test")) == user_names(held_out)
    assert (tmp_path / "some" / "ledger.jsonl").read_text() == "charges"


def test_a_store_of_nobody_is_refused(folder, tmp_path):
    with pytest.raises(SottoError, match="none of the users"):
        copy_users(folder, tmp_path / "some", [])
    assert not (tmp_path / "some").exists()
