"""Rows come back as they were written, mapped and in memory; damage is told."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sottovoce.data import rows as rows_module
from sottovoce.data import store as store_module
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import collect, prepare
from sottovoce.data.rows import Rows
from sottovoce.data.store import Store, held_out_of, made_up_names, write_store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import pretty, sealed

WORDS = Vocabulary.from_words([f"word{chr(97 + i)}" for i in range(26)])
USERS = [[0, 40, 41, 1], [0, 42, 1], [], [0, 43, 44, 45, 46, 1]]


def write_corpus(path: Path, users: int) -> None:
    rows = ({"user": f"u{n}", "text": f"word{chr(97 + n % 26)} " * (1 + n % 5)} for n in range(users))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "c.jsonl", 40)
    prepare(tmp_path / "c.jsonl", tmp_path / "store", WORDS, Grouping(tokens_per_user=6, test_users=0.3))
    return tmp_path / "store"


@pytest.mark.parametrize("held_out", ["exact", "private"])
def test_what_is_declared_of_held_out_users_is_kept(tmp_path: Path, held_out: str) -> None:
    write_corpus(tmp_path / "c.jsonl", 40)
    prepare(tmp_path / "c.jsonl", tmp_path / "store", WORDS, Grouping(test_users=0.3, held_out=held_out))
    assert Store.open(tmp_path / "store").held_out == held_out
    assert Store.open(tmp_path / "store", "test", privately=True).users
    assert (held_out_of(tmp_path / "store") is not None) == (held_out == "exact")
    if held_out == "private":
        with pytest.raises(SottoError, match="were declared private"):
            Store.open(tmp_path / "store", "test")


def test_memory_store_pads_cuts_and_counts() -> None:
    store = Store.from_users(USERS, WORDS, tokens_per_user=4)
    assert (store.users, len(store), store.tokens_per_user, store.path) == (4, 4, 4, None)
    block = store.gather([3, 0, 2, 0])
    assert block.tokens.tolist() == [[0, 43, 44, 45], [0, 40, 41, 1], [0, 0, 0, 0], [0, 40, 41, 1]]
    assert block.lengths.tolist() == [4, 4, 0, 4]
    assert block.tokens.dtype == block.lengths.dtype == store[0].dtype == store.lengths([0]).dtype == np.int32
    assert [row.tolist() for row in store] == [user[:4] for user in USERS]


@pytest.mark.parametrize("row", [0, 17, 29])
def test_a_store_without_a_user_is_the_same_for_everybody_else(folder: Path, row: int) -> None:
    mapped = Store.open(folder)
    users = list(mapped)
    batches = [batch for part in (users[:10], users[10:]) for batch in Store.from_users(part, WORDS, 6).rows.batches]
    for store in (mapped, Store(WORDS, 6, Rows(tuple(batches)))):
        left = store.without(row)
        assert [user.tolist() for user in left] == [[] if n == row else user.tolist() for n, user in enumerate(users)]
        assert len({store.fingerprint, left.fingerprint, store.without(1).fingerprint}) == 3
        assert len(store[row]) > 0  # the store itself is as it was


def test_fingerprint_of_a_memory_store_follows_its_content() -> None:
    prints = {
        Store.from_users(USERS, WORDS).fingerprint,
        Store.from_users(USERS[::-1], WORDS).fingerprint,
        Store.from_users(USERS, WORDS, 5).fingerprint,
        Store.from_users([[0, 40], [41, 1, 0, 42, 1], [], USERS[3]], WORDS).fingerprint,
        Store.from_users(USERS, Vocabulary((*WORDS.words, "more"))).fingerprint,
    }
    assert len(prints) == 5
    assert Store.from_users([np.array(user, int) for user in USERS], WORDS).fingerprint in prints


def test_fingerprint_is_of_the_rows_however_they_are_kept(folder: Path, tmp_path: Path) -> None:
    """Mapped, in several batches, in memory or written from there: who wrote the same is the same."""
    mapped = Store.open(folder)
    users = list(mapped)
    batches = [batch for part in (users[:10], users[10:]) for batch in Store.from_users(part, WORDS, 6).rows.batches]
    written = tmp_path / "written"
    written.mkdir()
    write_store(written, mapped, Store.open(folder, "test"))
    same = (mapped, Store(WORDS, 6, Rows(tuple(batches))), Store.from_users(users, WORDS, 6), Store.open(written))
    assert len({store.fingerprint for store in same}) == 1
    assert len({store.names_fingerprint for store in (mapped, Store.open(written))}) == 1


def test_fingerprint_is_of_the_text_as_it_is_now(folder: Path) -> None:
    """One bit of it changed, in place."""
    before, path = Store.open(folder).fingerprint, folder / "train.arrow"
    contents = bytearray(path.read_bytes())
    (place,) = Store.open(folder).rows.batches[0].values[:1].tobytes()[:1]
    start = contents.index(Store.open(folder).rows.batches[0].values.tobytes())
    assert contents[start] == place
    contents[start] ^= 1
    path.write_bytes(contents)
    assert Store.open(folder, check=False).fingerprint != before


def test_memory_store_refuses_foreign_ids_and_no_width() -> None:
    with pytest.raises(SottoError, match="vocabulary has 65 words"):
        Store.from_users([[0, WORDS.size]], WORDS)
    with pytest.raises(SottoError, match="token ids run from -1"):
        Store.from_users([[-1]], WORDS)
    with pytest.raises(SottoError, match=r"tokens_per_user=0 must be in \[1"):
        Store.from_users([], WORDS)


def test_open_maps_and_does_not_copy(folder: Path) -> None:
    store = Store.open(folder)
    values = store.rows.batches[0].values
    assert not values.flags.owndata
    assert not values.flags.writeable
    before = store[0].copy()
    with (folder / "train.arrow").open("r+b") as file:
        content = file.read()
        place = content.index(values.tobytes())
        file.seek(place)
        file.write(np.array([63], values.dtype).tobytes())
    # The change on disk shows through the open store: it looks at the file and holds no copy.
    assert store[0].tolist() == [63, *before[1:]]


def test_an_empty_test_split_can_be_opened(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c.jsonl", 3)
    prepare(tmp_path / "c.jsonl", tmp_path / "store", WORDS, Grouping(test_users=0))
    test = Store.open(tmp_path / "store", "test")
    assert test.users == 0
    assert test.gather([]).tokens.shape == (0, 1600)
    assert list(test) == []


def edit_facts(folder: Path, *, without: tuple[str, ...] = (), **changes: object) -> None:
    facts = json.loads((folder / "store.json").read_text()) | changes
    kept = {name: value for name, value in facts.items() if name not in without}
    (folder / "store.json").write_bytes(pretty(sealed(kept) if "checksum" in kept else kept))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train.arrow").write_bytes((f / "train.arrow").read_bytes()[:-30]), "damaged"),
        (lambda f: (f / "train.arrow").write_bytes(b""), "damaged"),
        (lambda f: (f / "train.arrow").unlink(), "damaged"),
        (lambda f: shutil.copy(f / "test.arrow", f / "train.arrow"), "train.arrow is not the file that store.json"),
        (lambda f: edit_facts(f, splits={"train": {"users": 1}, "test": {"users": 1}}), "disagree"),
        (lambda f: (f / "store.json").write_text("{"), "damaged"),
        (lambda f: (f / "store.json").write_text('{"format": 1}'), "damaged"),
        (lambda f: edit_facts(f, vocabulary="mine"), "damaged"),
        (lambda f: (f / "vocabulary.txt").unlink(), r"damaged \(vocabulary.txt is missing\)"),
        (lambda f: Vocabulary.from_words(["one"]).save(f / "vocabulary.txt"), "vocabulary.txt is not the file"),
        (lambda f: edit_facts(f, format=3), "it has format 3, not 1"),
    ],
)
def test_damage_is_told_in_one_line(folder: Path, damage, message: str) -> None:
    damage(folder)
    with pytest.raises(SottoError, match=message) as caught:
        Store.open(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["train.arrow", "vocabulary.txt", "store.json", "format"])
@pytest.mark.parametrize("trace", ["ledger.jsonl", "ledger.charged"])
def test_a_damaged_store_that_was_charged_is_never_to_be_made_anew(folder: Path, name: str, trace: str) -> None:
    """The new one would have no charge of the same people."""
    edit_facts(folder, format=3) if name == "format" else (folder / name).unlink()
    (folder / trace).write_text("{}\n")
    with pytest.raises(SottoError, match=r"from a backup, and keep .*/ledger\.jsonl$") as caught:
        Store.open(folder)
    assert "prepare" not in str(caught.value)


@pytest.mark.parametrize("name", ["train.arrow", "test.arrow", "vocabulary.txt", "store.json"])
def test_a_bit_that_flipped_is_found_wherever_it_is(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split = "test" if name == "test.arrow" else "train"
    contents, generator = (folder / name).read_bytes(), np.random.default_rng(1)
    for place in generator.integers(0, len(contents), 60).tolist():
        flipped = bytearray(contents)
        flipped[place] ^= 1 << int(generator.integers(8))
        (folder / name).write_bytes(flipped)
        with pytest.raises(SottoError, match=r"damaged|vocabulary"):
            Store.open(folder, split)
    (folder / name).write_bytes(contents)
    assert Store.open(folder, split).users
    if name.endswith(".arrow"):  # what a huge store is spared
        contents = bytearray(contents)
        contents[contents.index(Store.open(folder, split).rows.batches[0].values.tobytes())] ^= 1
        (folder / name).write_bytes(contents)
        assert Store.open(folder, split, check=False).users
        monkeypatch.setenv("SOTTOVOCE_SKIP_HASHES", "1")
        assert Store.open(folder, split).users


def test_a_file_is_hashed_once_in_a_process_and_again_when_it_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, real = [], store_module.sha256_of
    monkeypatch.setattr(store_module, "sha256_of", lambda path, most: hashed.append(path.name) or real(path, most))
    for _ in range(3):
        Store.open(folder)
    assert hashed == ["train.arrow", "vocabulary.txt"]
    (folder / "train.arrow").touch()
    Store.open(folder)
    assert hashed == ["train.arrow", "vocabulary.txt", "train.arrow"]


@pytest.mark.parametrize("name", ["files", "people", "owners_per_record", "every_record_is_a_user", "vocabulary"])
def test_a_fact_that_is_missing_is_damage(folder: Path, name: str) -> None:
    edit_facts(folder, without=(name,))
    with pytest.raises(SottoError, match=r"store\.json: "):
        Store.open(folder)


@pytest.mark.parametrize("check", [True, False])
def test_a_file_that_the_store_does_not_name_is_not_read(folder: Path, check: bool) -> None:
    files = json.loads((folder / "store.json").read_text())["files"]
    edit_facts(folder, files={name: sha256 for name, sha256 in files.items() if name != "train.arrow"})
    with pytest.raises(SottoError, match=r"train\.arrow is not among the files that store\.json names"):
        Store.open(folder, check=check)


def names_of(users: list[str]) -> set[int]:
    hashes = [Grouping().name(user) for user in users]
    return {int.from_bytes(name[:8], "big") ^ int.from_bytes(name[8:], "big") for name in hashes}


def test_a_users_number_follows_from_the_id_alone(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """Mapped over several batches, written again, and collected in memory."""
    everybody = names_of([f"u{number}" for number in range(40)])
    train, test = (Store.open(folder, split).names.tolist() for split in ("train", "test"))
    assert len(train) + len(test) == 40
    assert {*train, *test} == everybody
    assert Store.open(folder).without(3).names.tolist() == train
    assert set(collect(tmp_path / "c.jsonl", WORDS).names.tolist()) == everybody
    monkeypatch.setattr(rows_module, "BATCH_TOKENS", 20)
    few = tmp_path / "few.jsonl"
    write_corpus(few, 30)
    prepare(few, tmp_path / "batches", WORDS, Grouping(tokens_per_user=6, test_users=0.3))
    mapped = Store.open(tmp_path / "batches")
    assert len(mapped.rows.batches) > 1
    assert set(mapped.names.tolist()) == set(train) & names_of([f"u{number}" for number in range(30)])
    (tmp_path / "again").mkdir()
    write_store(tmp_path / "again", mapped, Store.open(tmp_path / "batches", "test"))
    assert Store.open(tmp_path / "again").names.tolist() == mapped.names.tolist()
    assert Store.open(tmp_path / "again").names_fingerprint == mapped.names_fingerprint
    assert Store.open(folder).names_fingerprint != mapped.names_fingerprint


def test_a_store_that_knows_no_names_says_what_to_do(folder: Path) -> None:
    nameless = Store.from_users(USERS, WORDS)
    mixed = Store.open(folder).followed_by([np.array([3])])
    for store in (nameless, mixed):
        with pytest.raises(SottoError, match=r"does not know its users by name.*use another sampling"):
            _ = store.names
    with pytest.raises(SottoError, match="3 names were given for 4 users"):
        Store.from_users(USERS, WORDS, names=made_up_names(3))
    assert len(set(Store.from_users(USERS, WORDS, names=made_up_names(4)).names.tolist())) == 4
