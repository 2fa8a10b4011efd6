"""Sentences of made-up files in the layouts of TensorFlow Federated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sottovoce.data.census import Census
from sottovoce.data.grouping import Grouping
from sottovoce.data.languages import SPACES
from sottovoce.data.prepare import prepare
from sottovoce.data.stackoverflow import StackOverflow
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SettingError, SottoError

SCHEMA = "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def example(**features: bytes | int) -> bytes:
    """A tf.train.Example as tensorflow serialises it."""
    entries = b""
    for name, value in features.items():
        kind = field(1, field(1, value)) if isinstance(value, bytes) else field(3, field(1, varint(value)))
        entries += field(1, field(1, name.encode()) + field(2, kind))
    return field(1, entries)


def sentence(tokens: str) -> bytes:
    return example(creation_date=b"2010-01-08 09:34:05 UTC", score=172, tags=b"a|b", tokens=tokens.encode(), type=b"q")


def write(path: Path, rows: list[tuple[str, str, bytes]]) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(SCHEMA)
        database.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    return path


def read(path: Path, **settings: object) -> list[tuple[str, str]]:
    grouping = Grouping(dump=StackOverflow(**settings))
    return list(grouping.records(grouping.sources([path])))


ROWS = [
    ("train", "7", sentence("the first of seven .")),
    ("train", "8", sentence("eight says " + "so " * 40)),
    ("test", "7", sentence("a later post")),
    ("heldout", "10", sentence("another person")),
    *(("train", "7", sentence(f"number {number} .")) for number in range(300)),
]


def test_sentences_are_cut_and_counted_as_published(tmp_path: Path) -> None:
    """Guarantee of StackOverflow.records: 256 sentences of a user, and 20 words of a sentence, at most."""
    path = write(tmp_path / "stackoverflow.sqlite", ROWS)
    found = read(path)
    assert sum(user == "7" for user, _ in found) == 256
    assert found[0] == ("7", "the first of seven .")
    assert found[-1] == ("7", "number 254 .")
    assert [len(text.split()) for user, text in found if user == "8"] == [20]
    assert read(path, split="heldout") == [("10", "another person")]
    assert read(path, split="test", sentence_tokens=2) == [("7", "a later")]
    census, grouping = Census(), Grouping(dump=StackOverflow(sentences_per_user=1))
    assert len(list(grouping.records(grouping.sources(str(tmp_path)), census=census))) == 2
    assert census.filtered == 300


def test_a_store_has_the_words_of_a_list_as_they_stand_there(tmp_path: Path) -> None:
    """A word is what stands between spaces: "front-end" and "css3" are one word each, and marks are words."""
    counts = tmp_path / "stackoverflow.word_count"
    counts.write_text("the\t9\n.\t8\n<URL>\t7\nfront-end\t6\ncss3\t5\nyou're\t4\n", encoding="utf-8")
    words = Vocabulary.from_file(counts, language=SPACES)
    rows = [("train", str(user), sentence("the front-end css3 <URL> Unknown .")) for user in range(3)]
    prepare(write(tmp_path / "a.sqlite", rows), tmp_path / "store", words, Grouping(test_users=0, dump=StackOverflow()))
    store = Store.open(tmp_path / "store", "train")
    assert store.vocabulary == words
    tokens = store[0]
    assert words.decode(tokens) == "<bos> the front-end css3 <URL> <unk> . <eos>"
    assert words.encode_measured("the Unknown")[2] == words.size + 7
    assert words.page_rules == Vocabulary.public(100).page_rules, "what a person types is cut as English is"


def test_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    raw = write(tmp_path / "a.sqlite", ROWS).read_bytes()
    for name, contents, text in (
        ("half.sqlite", raw[: len(raw) // 2], "cannot be read as TensorFlow Federated's file"),
        ("empty.sqlite", b"", "is neither an SQLite nor an HDF5 file"),
        ("packed.sqlite", b"\xfd7zXZ\x00rest", "unpack what TensorFlow Federated publishes"),
    ):
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(SottoError, match=text) as error:
            read(tmp_path / name)
        assert "\n" not in str(error.value)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE other (a)")
    with pytest.raises(SottoError, match="no such table: examples"):
        read(tmp_path / "other.sqlite")
    with pytest.raises(SettingError, match=r"has no sentence of split=.?test"):
        read(write(tmp_path / "b.sqlite", ROWS[:1]), split="test")
    assert not list(tmp_path.glob("*-journal")), "reading writes nothing"


def test_hdf5_has_a_group_for_each_user(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "stackoverflow_train.h5"
    with h5py.File(path, "w") as file:
        for user in ("8", "7"):
            group = file.create_group(f"examples/{user}")
            texts = [f"number {number} of {user}" for number in range(300)]
            group.create_dataset("tokens", data=[text.encode() for text in texts], dtype=h5py.string_dtype())
            group.create_dataset("score", data=[1] * 300)
    found = read(path)
    assert len(found) == 512
    assert found[0] == ("7", "number 0 of 7")
    with h5py.File(path, "a") as file:
        del file["examples/8/tokens"]
    with pytest.raises(SottoError, match=r"KeyError after sentence 300\); it has examples/USER/tokens"):
        read(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SottoError, match="or not whole"):
        read(path)
