"""From two stores that share people to two that do not."""

from __future__ import annotations

import json

import pytest

from sottovoce.commands.federate_homes import choose_homes, write_pseudonyms
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.some_users import user_names
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words(["one", "two", "three"])


@pytest.fixture
def silos(tmp_path):
    for name, users in {"north": range(30), "south": range(20, 45)}.items():
        records = [{"user": f"u{number}", "text": f"one two three {name}"} for number in users]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
        grouping = Grouping(tokens_per_user=9, test_users=0.0)
        prepare(tmp_path / f"{name}.jsonl", tmp_path / name, WORDS, grouping)
    return tmp_path


def test_a_person_in_two_silos_is_in_one_store_afterwards(silos):
    key = silos / "key"
    assert write_pseudonyms(silos / "north", key, silos / "n.txt", "north", new_key=True) == 30
    assert write_pseudonyms(silos / "south", key, silos / "s.txt", "south") == 25
    north = choose_homes(silos / "north", key, [silos / "s.txt"], silos / "north-home", "north")
    south = choose_homes(silos / "south", key, [silos / "n.txt"], silos / "south-home", "south")
    assert (north.users, north.shared, south.users, south.shared) == (30, 10, 25, 10)
    assert north.fingerprint == south.fingerprint
    assert north.at_home + south.at_home == 45
    at_home = [set(user_names(Store.open(silos / f"{name}-home"))) for name in ("north", "south")]
    assert not at_home[0] & at_home[1]
    assert (silos / "n.txt").stat().st_mode & 0o077 == 0


def test_what_is_missing_or_in_the_way_is_said_in_one_line(silos):
    key = silos / "key"
    with pytest.raises(SottoError, match="there is no key"):
        write_pseudonyms(silos / "north", key, silos / "n.txt", "north")
    with pytest.raises(SottoError, match="is not a folder"):
        write_pseudonyms(silos / "nowhere", key, silos / "n.txt", "north", new_key=True)
    assert not key.exists()
    write_pseudonyms(silos / "north", key, silos / "n.txt", "north", new_key=True)
    with pytest.raises(SottoError, match="exists"):
        write_pseudonyms(silos / "north", key, silos / "n.txt", "north")
    with pytest.raises(SottoError, match="the files of pseudonyms of the other silos"):
        choose_homes(silos / "north", key, [], silos / "home", "north")
    with pytest.raises(SottoError, match="two files are those of a silo 'north'"):
        choose_homes(silos / "south", key, [silos / "n.txt"], silos / "home", "north")
