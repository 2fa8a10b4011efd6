"""Users are whole, cut exactly, split stably; a failure leaves nothing behind."""

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from examples import examples
from sentences import SENTENCES
from sottovoce.data import blocks as blocks_module
from sottovoce.data import grouping as grouping_module
from sottovoce.data import prepare as prepare_module
from sottovoce.data import rows as rows_module
from sottovoce.data.blocks import OwnedTexts
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import PreparationSummary, collect, prepare
from sottovoce.data.rows import SplitWriter
from sottovoce.data.store import Store, write_store
from sottovoce.data.subwords import Subwords
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError
from tokenizer_examples import byte_level

LETTERS = Vocabulary.from_words("abcdefgh")
Records = list[tuple[str, str]]


SINGLE = Grouping(every_record_is_a_user=True)


def write(path: Path, rows: Records) -> Path:
    path.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in rows))
    return path


def streams(folder: Path) -> dict[str, dict[str, list[int]]]:
    """split -> user's name in the store -> tokens, in the order of the store."""
    found = {}
    for split in ("train", "test"):
        store = Store.open(folder, split)
        with pa.ipc.open_file(folder / f"{split}.arrow") as reader:
            names = reader.read_all().column("user").to_pylist()
        found[split] = {name: store[row].tolist() for row, name in enumerate(names)}
    return found


def expected(rows: Records) -> dict[str, list[int]]:
    users: dict[str, list[int]] = {}
    for user, text in rows:
        if text.strip():
            users.setdefault(user, []).extend(LETTERS.encode(text))
    return users


def population(users: int) -> Records:
    return [(f"user {n}", "abcdefgh"[n % 8] + " b" * (n % 3)) for n in range(users)]


def test_counts_include_begin_and_end(tmp_path: Path) -> None:
    """Five tokens with BOS and EOS: kept at min_tokens=5, and cut in the middle of the second record at 7."""
    rows = [("five", "a b c"), ("four", "a b"), ("more", "a b c"), ("more", "d e zzz")]
    summary = prepare(
        write(tmp_path / "c.jsonl", rows),
        tmp_path / "store",
        LETTERS,
        Grouping(min_tokens=5, tokens_per_user=7, test_users=0),
    )
    kept = streams(tmp_path / "store")["train"].values()
    assert sorted(kept) == sorted([LETTERS.encode("a b c"), [*LETTERS.encode("a b c"), *LETTERS.encode("d")[:2]]])
    assert summary == PreparationSummary(
        records=4,
        users_seen=3,
        users_kept=2,
        users_dropped=1,
        users_cut=1,
        tokens_seen=19,
        tokens_kept=12,
        tokens_cut=3,
        unknown_rate=0.0,
        train_users=2,
        train_tokens=12,
        test_users=0,
        test_tokens=0,
        single_record_users=2,
    )


def test_summary_is_written_for_the_owner_only(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", population(9))
    summary = prepare(corpus, tmp_path / "store", LETTERS)
    written = tmp_path / "store" / "preparation.json"
    assert json.loads(written.read_text()) == summary.to_json()
    assert summary.to_json()["records"] == 9
    assert written.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_user_ids_are_not_in_the_store(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", [("zacharias", "a"), ("yolanda", "b")])
    prepare(corpus, tmp_path / "store", LETTERS, Grouping(test_users=0))
    names = streams(tmp_path / "store")["train"]
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)
    for file in (tmp_path / "store").iterdir():
        assert b"zacharias" not in file.read_bytes()


def test_one_person_joining_moves_nobody_else(tmp_path: Path) -> None:
    rows = population(300)
    before = tmp_path / "before"
    grouping = Grouping(test_users=0.3, every_record_is_a_user=True)
    prepare(write(tmp_path / "1.jsonl", rows), before, LETTERS, grouping)
    after = tmp_path / "after"
    prepare(write(tmp_path / "2.jsonl", [("newcomer", "a"), *rows]), after, LETTERS, grouping)
    old, new = streams(before), streams(after)
    for split in ("train", "test"):
        assert old[split].items() <= new[split].items()
        assert [name for name in new[split] if name in old[split]] == list(old[split])
    assert sum(map(len, new.values())) == 301


def test_the_order_between_users_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffled users, other files, other parts, other buffers: the same bytes and so the same fingerprint."""
    rows = [(user, text) for user, text in population(120) for text in (text, "c d")]
    prepare(write(tmp_path / "1.jsonl", rows), tmp_path / "one", LETTERS)
    users = list(expected(rows))
    random.Random(0).shuffle(users)
    shuffled = [row for user in users for row in rows if row[0] == user]
    monkeypatch.setattr(grouping_module, "PART_BYTES", 100)
    monkeypatch.setattr(grouping_module, "BUFFER_TOKENS", 64)
    files = [write(tmp_path / "2.jsonl", shuffled[:100]), write(tmp_path / "3.jsonl", shuffled[100:])]
    assert grouping_module.parts_for(files) > 10
    spilt: list[int] = []
    prepare(
        files,
        tmp_path / "two",
        LETTERS,
        progress=lambda *_: spilt.append(len(list(tmp_path.glob(".two-*/spill/*.tokens")))),
    )
    assert spilt[-1] > 10
    for name in ("train.arrow", "test.arrow", "store.json", "vocabulary.txt", "preparation.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@examples(15)
@given(
    rows=st.lists(
        st.tuples(st.text(min_size=1, max_size=3).filter(lambda u: not u.isspace()), st.text("abz ,", max_size=12)),
        min_size=1,
        max_size=30,
    ),
    part_bytes=st.sampled_from([40, 2**27]),
    buffer_tokens=st.sampled_from([1, 50, 2**24]),
    cap=st.integers(2, 40),
)
def test_grouping_preserves_each_users_stream(
    tmp_path_factory: pytest.TempPathFactory, rows: Records, part_bytes: int, buffer_tokens: int, cap: int
) -> None:
    folder = tmp_path_factory.mktemp("grouping")
    rows = [*rows, ("ann", "a")]  # text without one known word is refused
    corpus = write(folder / "c.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping_module, "PART_BYTES", part_bytes)
        patch.setattr(grouping_module, "BUFFER_TOKENS", buffer_tokens)
        prepare(corpus, folder / "store", LETTERS, Grouping(tokens_per_user=cap, test_users=0))
    name = Grouping().name
    wanted = {name(user).hex(): tokens[:cap] for user, tokens in expected(rows).items()}
    assert streams(folder / "store")["train"] == wanted
    memory = collect(corpus, LETTERS, tokens_per_user=cap)
    assert [row.tolist() for row in memory] == [wanted[user] for user in sorted(wanted)]


@pytest.mark.parametrize(
    "size", [LETTERS.size, *(pytest.param(2**16 + way, marks=pytest.mark.slow) for way in (-1, 0, 1))]
)
def test_a_store_keeps_how_long_unknown_words_are(tmp_path: Path, size: int) -> None:
    """Of the text that is kept, in its order, whatever width the ids have; in memory and written from there too."""
    more = (f"w{number}" for number in range(size - LETTERS.size))
    vocabulary = Vocabulary((*LETTERS.words, *more))
    rows = [("ann", "a xyz b"), ("bob", "c"), ("ann", "pqrst a uv"), ("cyd", "long " + "z" * 400)]
    corpus = write(tmp_path / "c.jsonl", rows)
    prepare(corpus, tmp_path / "store", vocabulary, Grouping(tokens_per_user=8, test_users=0))
    store = Store.open(tmp_path / "store")
    wanted = {(0, 39, 2, 40, 1, 0, 2, 39): [3, 5], (0, 41, 1): [], (0, 2, 2, 1): [4, 255]}  # "uv" was cut off
    collected = collect(corpus, vocabulary, tokens_per_user=8)
    (tmp_path / "again").mkdir()
    write_store(tmp_path / "again", collected, collected)
    for held in (store, collected, Store.open(tmp_path / "again")):
        found = {tuple(held[row].tolist()): held.unknown_letters(row) for row in range(held.users)}
        assert {tokens: letters.tolist() for tokens, letters in found.items()} == wanted


def test_half_a_surrogate_pair_in_an_id_is_a_user_like_any_other(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"user": "\\ud800", "text": "a \\ud800"}\n')
    assert prepare(corpus, tmp_path / "store", LETTERS, Grouping(test_users=0)).users_kept == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_tokens": 100}, "min_tokens=100 keeps none of the 5 users; the largest has 5 tokens"),
        ({"test_users": 0.999999999}, "holds out all 5 users"),
        ({"user_field": "name"}, r"c\.jsonl:1: no field 'name'"),
        ({"text_field": "user"}, "both 'user'"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(tmp_path: Path, arguments: dict, message: str) -> None:
    corpus = write(tmp_path / "c.jsonl", population(5))
    with pytest.raises(SottoError, match=message) as caught:
        prepare(corpus, tmp_path / "new" / "deep" / "store", LETTERS, Grouping(**arguments))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [corpus]


@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    corpus = write(tmp_path / "c.jsonl", population(2000))

    def interrupt(*_: object) -> None:
        assert list(tmp_path.glob(".store-*/spill")), "the interrupt must come while there is something to leave"
        raise KeyboardInterrupt

    if moment == "writing":
        monkeypatch.setattr(prepare_module, "save_tokenizer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, tmp_path / "store", LETTERS, SINGLE, progress=interrupt if moment == "reading" else None)
    assert list(tmp_path.iterdir()) == [corpus]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write(tmp_path / "c.jsonl", population(5))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(grouping_module.Spill, "_flush", full)
    with pytest.raises(SottoError, match=r"cannot write .* \(No space left on device\)"):
        prepare(corpus, tmp_path / "store", LETTERS)
    assert list(tmp_path.iterdir()) == [corpus]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_corpus_is_an_error(tmp_path: Path, content: str) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(content)
    with pytest.raises(SottoError, match="no record in"):
        prepare(corpus, tmp_path / "store", LETTERS)
    with pytest.raises(SottoError, match="no record in"):
        collect(corpus, LETTERS)
    assert list(tmp_path.iterdir()) == [corpus]


EMPTY = ("", " ", "\n\t ", "\u2003\u3000\x1c", "\u00a0\u2028")


def with_empty(rows: Records) -> Records:
    """The same people's text, empty records between, and people who wrote nothing else, before and behind."""
    between = [row for number, (user, text) in enumerate(rows) for row in ((user, EMPTY[number % 5]), (user, text))]
    return [(f"nobody {number}", text) for number, text in enumerate(EMPTY)] + [*between, ("null", ""), ("ANN", " ")]


def as_table(folder: Path, rows: Records, kind: str) -> Path | pa.Table | Records:
    columns = {"user": [user for user, _ in rows], "text": [text for _, text in rows]}
    if kind == "jsonl":
        return write(folder / "c.jsonl", rows)
    if kind == "lists":  # lines are read one by one
        lines = [json.dumps({"user": [user], "text": text}) for user, text in rows]
        (folder / "c.jsonl").write_text("\n".join(lines))
        return folder / "c.jsonl"
    if kind == "csv":
        with (folder / "c.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("user", "text"), *rows])
        return folder / "c.csv"
    if kind == "parquet":
        parquet.write_table(pa.table(columns), folder / "c.parquet")
        return folder / "c.parquet"
    return pa.table(columns) if kind == "table" else rows


@pytest.mark.parametrize("kind", ["jsonl", "lists", "csv", "parquet", "table", "records"])
def test_empty_records_are_left_out_and_who_wrote_no_other_is_no_user(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 900)
    rows = [("ann", "a b"), ("bob", "c zzz"), ("ann", " d"), ("cyd", "e"), ("bob", "f")] * 5
    plain = prepare(rows, tmp_path / "plain", LETTERS)
    summary = prepare(as_table(tmp_path, with_empty(rows), kind), tmp_path / "store", LETTERS)
    for name in ("train.arrow", "test.arrow", "store.json", "vocabulary.txt"):
        assert (tmp_path / "store" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    assert (plain.records, plain.records_empty) == (25, 0)
    assert summary == replace(plain, records=57, records_empty=32)
    assert json.loads((tmp_path / "store" / "preparation.json").read_text())["records_empty"] == 32
    assert any("32 of 57 records are empty, and left out" in warning for warning in summary.warnings)


def test_white_space_is_what_python_takes_for_it() -> None:
    """In blocks Arrow decides, and record by record Python does."""
    letters = [chr(code) for code in range(0x3100)] + ["", "\ud800", " \ud800", "\ufeff", "\U0001d173", " " * 99]
    found = OwnedTexts.of([(("ann",), letter) for letter in letters], 1).filled()
    kept = [place for place, letter in enumerate(letters) if letter and not letter.isspace()]
    assert found.record.tolist() == kept
    assert len(kept) == len(letters) - found.empty


def test_a_store_is_never_overwritten(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", population(5))
    out = tmp_path / "store"
    out.mkdir()
    prepare(corpus, out, LETTERS)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(
        SottoError, match=r"is not empty, and a store is never overwritten; .* use it: runs on two .* add"
    ):
        prepare(corpus, out, LETTERS)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    with pytest.raises(SottoError, match="is a file"):
        prepare(corpus, corpus, LETTERS)


def test_nearly_as_many_users_as_records_must_be_meant(tmp_path: Path) -> None:
    """Of 200 users, twenty with a second record are one in ten: from there on the corpus is taken as it is."""
    messages = population(200)
    for more in (0, 20):
        with pytest.raises(SottoError, match=r"user_field=user may name messages.*every_record_is_a_user") as caught:
            prepare([*messages, *messages[:more]], tmp_path / "store", LETTERS)
        assert "\n" not in str(caught.value)
        assert not list(tmp_path.iterdir())
    assert prepare([*messages, *messages[:21]], tmp_path / "usual", LETTERS).single_record_users == 179
    assert prepare(messages, tmp_path / "meant", LETTERS, SINGLE).single_record_users == 200
    assert prepare(messages[:99], tmp_path / "few", LETTERS).users_seen == 99


OWNED = [
    (["ann"], "a"),
    (["ann", "bob"], "b"),
    (["bob", "bob"], "c"),
    (["cyd", "bob", "ann"], "d"),
    (["cyd"], "e"),
    (["cyd", "dan"], "f"),
]


def rows_of(tmp_path: Path, records: Sequence[tuple[list[str], str]], owners: int) -> dict[str, list[int]]:
    folder = tmp_path / f"{owners}-{len(list(tmp_path.iterdir()))}"
    prepare(records, folder, LETTERS, Grouping(test_users=0, owners_per_record=owners))
    return streams(folder)["train"]


def test_each_owner_has_a_record_and_those_of_too_many_have_none(tmp_path: Path) -> None:
    name = {user: Grouping().name(user).hex() for user in ("ann", "bob", "cyd", "dan")}
    alone, two = rows_of(tmp_path, OWNED, 1), rows_of(tmp_path, OWNED, 2)
    assert alone == {name[user]: LETTERS.encode(text) for user, text in (("ann", "a"), ("bob", "c"), ("cyd", "e"))}
    assert {user: [t for t in two[name[user]] if t > LETTERS.encode("a")[0]] for user in name} == {
        user: [token for letter in letters for token in LETTERS.encode(letter) if token > LETTERS.encode("a")[0]]
        for user, letters in {"ann": "ab", "bob": "bc", "cyd": "ef", "dan": "f"}.items()
    }


@pytest.mark.parametrize("gone", ["ann", "bob", "cyd", "dan"])
def test_a_person_who_leaves_with_all_their_records_changes_nobody_elses_text(tmp_path: Path, gone: str) -> None:
    """The records of one owner are all that counts, so those shared with the one who left were never there."""
    before = rows_of(tmp_path, OWNED, 1)
    after = rows_of(tmp_path, [(owners, text) for owners, text in OWNED if gone not in owners], 1)
    del_name = Grouping().name(gone).hex()
    assert after == {name: tokens for name, tokens in before.items() if name != del_name}


@pytest.mark.parametrize("gone", range(len(OWNED)))
@pytest.mark.parametrize("most", [1, 2, 3])
def test_one_record_less_changes_the_text_of_its_owners_alone(tmp_path: Path, gone: int, most: int) -> None:
    before = rows_of(tmp_path, OWNED, most)
    after = rows_of(tmp_path, OWNED[:gone] + OWNED[gone + 1 :], most)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    owners = {Grouping().name(user).hex() for user in OWNED[gone][0]}
    assert changed == (owners if len(owners) <= most else set())


def test_text_without_a_word_of_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SottoError, match="no word of the vocabulary") as caught:
        prepare([("ann", "привет, мир!"), ("bob", "как дела")], tmp_path / "store", LETTERS, Grouping(test_users=0))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    found = {"source": "private"}  # was paid for
    prepare([("ann", "привет")], tmp_path / "store", LETTERS, Grouping(test_users=0), found)


def test_a_store_names_its_tokenizer(tmp_path: Path) -> None:
    corpus = [("ann", "the cat"), ("bob", "the end")]
    for name, tokenizer in (("bpe", byte_level()), ("bytes", Subwords.of_bytes()), ("words", LETTERS)):
        prepare(corpus, tmp_path / name, tokenizer, Grouping(test_users=0), {"source": "private"})
        store, facts = Store.open(tmp_path / name), json.loads((tmp_path / name / "store.json").read_text())
        assert store.vocabulary == tokenizer
        wanted = {"kind": name, "language": "en", "size": tokenizer.size, "hash": tokenizer.fingerprint}
        assert facts["tokenizer"] == wanted
        assert tokenizer.file_name in facts["files"]
        texts = {tuple(tokenizer.encode(text)) for _, text in corpus}
        assert {tuple(store[row].tolist()) for row in range(2)} == texts
        (tmp_path / name / tokenizer.file_name).unlink()
        with pytest.raises(SottoError, match=rf"damaged \({tokenizer.file_name} is missing\)"):
            Store.open(tmp_path / name)


def test_long_plain_text_is_not_lost_where_words_have_many_tokens(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(500))
    (tmp_path / "text.txt").write_text(text)
    grouping = Grouping(plain_text=True, tokens_per_user=64, test_users=0)
    summary = prepare([tmp_path / "text.txt"], tmp_path / "store", Subwords.of_bytes(), grouping)
    assert summary.unknown_rate is None
    assert "unknown" not in repr(summary)
    assert summary.warnings[1:] == []
    store = Store.open(tmp_path / "store")
    kept = sum(np.count_nonzero(store[row] >= 2) for row in range(store.users))
    assert kept > 0.97 * len(text)


def store_one_by_one(corpus: Path, folder: Path, words: Vocabulary, grouping: Grouping) -> dict[str, bytes]:
    """The splits that a reader believes: record by record, user by user."""
    users: dict[bytes, list[int]] = {}
    for user, text in grouping.records([corpus]):
        users.setdefault(grouping.name(user), []).extend(words.encode_measured(text))
    folder.mkdir()
    with (
        SplitWriter(folder / "train.arrow", words.size) as train,
        SplitWriter(folder / "test.arrow", words.size) as test,
    ):
        for name in sorted(users):
            if len(users[name]) >= grouping.min_tokens:
                writer = test if grouping.holds_out(name) else train
                measured = np.array(users[name][: grouping.tokens_per_user])
                writer.add(name.hex(), *words.separate(measured))
    return {split: (folder / f"{split}.arrow").read_bytes() for split in ("train", "test")}


def test_a_store_has_the_bytes_that_records_one_by_one_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over blocks, parts, buffers and record batches, all of them small."""
    drawn = random.Random(3)
    sentences = [text for text, _ in SENTENCES.values()]
    rows = [
        (
            f"user {drawn.randrange(60)}",
            " ".join(drawn.choices([*"abcdefgh", "zzz", "<url>", *sentences], k=drawn.randrange(9))),
        )
        for _ in range(900)
    ]
    corpus = write(tmp_path / "c.jsonl", rows)
    grouping = Grouping(min_tokens=20, tokens_per_user=150, test_users=0.3)
    monkeypatch.setattr(rows_module, "BATCH_TOKENS", 400)
    wanted = store_one_by_one(corpus, tmp_path / "believed", LETTERS, grouping)
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 5000)
    for part_bytes, buffer, block in ((2**27, 2**24, 2**20), (3000, 500, 300)):
        for name, value in (("PART_BYTES", part_bytes), ("BUFFER_TOKENS", buffer), ("BLOCK_TOKENS", block)):
            monkeypatch.setattr(grouping_module, name, value)
        out = tmp_path / f"store {block}"
        prepare(corpus, out, LETTERS, grouping)
        assert {split: (out / f"{split}.arrow").read_bytes() for split in ("train", "test")} == wanted
