"""The user store: one row a user, memory-mapped, so that a cohort costs the same among any number of users."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sottovoce.data.public_text import PublicText
from sottovoce.data.vocabulary import UNK, Vocabulary
from sottovoce.errors import SettingError, SottoError, did_you_mean
from sottovoce.files import pretty, read_sealed, sealed, sha256_of, write_aside

FORMAT = 1
SPLITS = ("train", "test")
STORE_FILE, VOCABULARY_FILE = "store.json", "vocabulary.txt"
SKIP = "SOTTOVOCE_SKIP_HASHES"
LARGEST_USER = 2**24
MOST_PUBLIC = 2**28  # tokens of public text, which is kept in memory: 1 GiB

# Where the words are from: "source" is public, file, private (then with what was spent) or, if nobody said, declared.
VocabularySource = Mapping[str, str | int | float]
DECLARED: VocabularySource = MappingProxyType({"source": "declared"})


_NONE = np.zeros(0, np.uint8)
_NAME = np.dtype("S32")  # 16 bytes in hexadecimal, as a store's file has them
_CHUNK = 2**20  # tokens that are hashed at once


@dataclass(frozen=True)
class UserBlock:
    """Some users side by side: `tokens` [n, tokens_per_user] padded with zeros, `lengths` [n]; both int32."""

    tokens: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive users: row i holds `values[offsets[i]:offsets[i + 1]]`.

    `unknown` holds in the same form how many letters each of a user's words outside the vocabulary has, where kept;
    `names` the name of each user (`Grouping.name`) in hexadecimal, where known.
    """

    values: np.ndarray
    offsets: np.ndarray
    unknown: Batch | None = None
    names: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Store:
    """The tokens of many users, by row.

    `tokens_per_user` is the public cap to which every user is cut and padded; the true lengths are private. Not
    `people`: pieces of plain text stand for users. `public` is text that is sent along with the model. `first` is the
    place of row 0 among all users of a run, where these are some of them: what a user draws depends on their place.
    `named` is a fingerprint for people who are not known by these rows, or not by all of them.
    """

    vocabulary: Vocabulary
    tokens_per_user: int
    batches: tuple[Batch, ...]
    split: str = "train"
    path: Path | None = None
    vocabulary_source: VocabularySource = field(default_factory=lambda: DECLARED)
    mapping: mmap.mmap | None = None
    people: bool = True
    public: PublicText | None = None
    first: int = 0
    named: str | None = None

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", *, check: bool = True) -> Store:
        """Map one split of a prepared folder.

        Its file is read once and must have the hash that `store.json` names, unless `check` is off or the variable
        SOTTOVOCE_SKIP_HASHES is set: a huge store takes seconds a gigabyte. Then nothing is read until a row is asked
        for.
        """
        folder = Path(folder)
        if split not in SPLITS:
            raise SettingError(
                f"{{split!r}} must be one of {', '.join(SPLITS)}{did_you_mean(split, SPLITS)}", split=split
            )
        facts = _facts(folder)
        hashes = facts.get("files", {})
        mapping, batches = _mapped(folder / f"{split}.arrow", {} if not check or os.environ.get(SKIP) else hashes)
        if (folder / VOCABULARY_FILE).exists():
            _check_hash(folder / VOCABULARY_FILE, hashes)
        store = cls(
            vocabulary=Vocabulary.load(folder / VOCABULARY_FILE),
            tokens_per_user=int(facts["tokens_per_user"]),
            batches=batches,
            split=split,
            path=folder,
            vocabulary_source=facts.get("vocabulary", DECLARED),
            mapping=mapping,
            people=facts.get("people", True),
        )
        written = (facts["splits"][split]["users"], facts["vocabulary_size"])
        if written != (store.users, store.vocabulary.size):
            raise _damaged(folder, f"{STORE_FILE} and the files beside it disagree")
        return store

    @classmethod
    def from_users(
        cls,
        users: Sequence[Sequence[int] | np.ndarray],
        vocabulary: Vocabulary,
        tokens_per_user: int | None = None,
        unknown: Sequence[Sequence[int] | np.ndarray] | None = None,
        names: Sequence[bytes] | None = None,
    ) -> Store:
        """A store in memory, also where pyarrow is absent. Without `tokens_per_user` the longest user sets it.

        `unknown` holds the lengths of each user's words outside the vocabulary, in the order of the text; `names` the
        16 bytes that `Grouping.name` makes of each user's id, for those who come in turn.
        """
        longest = max(map(len, users), default=0)
        cap = longest if tokens_per_user is None else tokens_per_user
        if not 1 <= cap <= LARGEST_USER:
            raise SettingError(
                f"{{tokens_per_user}} must be in [1, {LARGEST_USER}]; it is the length users are cut to",
                tokens_per_user=cap,
            )
        rows = [np.asarray(user, dtype=np.int64)[:cap] for user in users]
        values = np.concatenate([*rows, np.empty(0, np.int64)])
        if values.size and not (values.min() >= 0 and values.max() < vocabulary.size):
            raise SottoError(
                f"token ids run from {values.min()} to {values.max()} but the vocabulary has {vocabulary.size} words; "
                "encode the users with this vocabulary"
            )
        offsets = _offsets(rows)
        values = values.astype(np.int32)
        lengths = None
        if unknown is not None:
            kept = [np.asarray(u, np.uint8)[: np.sum(row == UNK)] for u, row in zip(unknown, rows, strict=True)]
            lengths = Batch(np.concatenate([*kept, np.empty(0, np.uint8)]), _offsets(kept))
        known = None if names is None else np.array([name.hex() for name in names], _NAME)
        if known is not None and len(known) != len(rows):
            raise SottoError(f"{len(known)} names were given for {len(rows)} users; give one for each")
        return cls(vocabulary, cap, (Batch(values, offsets, lengths, known),))

    @cached_property
    def fingerprint(self) -> str:
        """One hash of what these people wrote, read from the rows themselves.

        The noise of a round is keyed by it. Were it taken from a file beside them, text that was changed since would
        be released under the noise of the text before, and the difference of both would show it bare.
        """
        if self.named is not None:
            return self.named
        seal = blake2b(f"{self.vocabulary.fingerprint} {self.tokens_per_user}".encode(), digest_size=16)
        for batch in self.batches:
            seal.update(np.diff(batch.offsets).astype("<i8").tobytes())
        if self.mapping is not None:
            _advise(self.mapping, "MADV_SEQUENTIAL")
        for batch in self.batches:
            for start in range(int(batch.offsets[0]), int(batch.offsets[-1]), _CHUNK):
                part = batch.values[start : min(start + _CHUNK, int(batch.offsets[-1]))]
                seal.update(part.astype("<i4").tobytes())
                self._let_go()
        if self.mapping is not None:
            _advise(self.mapping, "MADV_RANDOM")
        return seal.hexdigest()

    @cached_property
    def names(self) -> np.ndarray:
        """A number of 64 bits for each user, from the user's name alone: whoever else is there does not change it."""
        known = [batch.names for batch in self.batches if batch.names is not None]
        if len(known) < len(self.batches):
            raise SottoError(
                f"{self.path or 'a store in memory'} does not know its users by name, and in turn a user's name says "
                f"when they join; make the store anew with `sotto prepare`, or use another privacy.sampling"
            )
        text = b"".join(names.tobytes() for names in known)
        halves = np.frombuffer(bytes.fromhex(text.decode("ascii")), ">u8").astype(np.uint64).reshape(-1, 2)
        return halves[:, 0] ^ halves[:, 1]

    @cached_property
    def names_fingerprint(self) -> str:
        """One hash of who these people are, and in which rows."""
        return blake2b(self.names.astype("<u8").tobytes(), digest_size=16).hexdigest()

    def as_public(self) -> PublicText:
        """All of a store of plain text. A store of people is refused: what they wrote is not public."""
        if self.people:
            raise SottoError(
                f"{self.path} holds people's text, which rehearsal would give to everybody, unclipped and uncharged; "
                f"prepare public text with `sotto prepare --plain-text`"
            )
        tokens = sum(batch.values.size for batch in self.batches)
        if not 0 < tokens <= MOST_PUBLIC:
            raise SottoError(f"{self.path} has {tokens:,} tokens of public text; from 1 to {MOST_PUBLIC:,} can be used")
        stream = np.concatenate([batch.values.astype(np.int32) for batch in self.batches])
        return PublicText(stream, self.vocabulary.fingerprint, self.fingerprint)

    @property
    def users(self) -> int:
        return int(self._firsts[-1])

    def __len__(self) -> int:
        return self.users

    def __getitem__(self, row: int) -> np.ndarray:
        """The tokens of one user."""
        batch, place = self._find(np.array([row]))
        return _row(self.batches[batch[0]], place[0]).astype(np.int32)

    def unknown_letters(self, row: int) -> np.ndarray | None:
        """How many letters each word outside the vocabulary of one user has, in order; None where it was not kept."""
        batch, place = self._find(np.array([row]))
        unknown = self.batches[batch[0]].unknown or Batch(_NONE, np.zeros(len(self.batches[batch[0]].offsets), int))
        letters = _row(unknown, place[0]).astype(np.int64)
        return letters if len(letters) == np.sum(self[row] == UNK) else None

    def lengths(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """How many tokens each of these users has."""
        batches, places = self._find(rows)
        lengths = np.empty(len(places), np.int32)
        for batch in np.unique(batches):
            here = batches == batch
            offsets = self.batches[batch].offsets
            lengths[here] = offsets[places[here] + 1] - offsets[places[here]]
        return lengths

    def gather(self, rows: Sequence[int] | np.ndarray, seats: int = 0) -> UserBlock:
        """These users as one padded block, filled up to `seats` with users of no tokens.

        The cost grows with the rows asked for, not with the store.
        """
        batches, places = self._find(rows)
        tokens = np.zeros((max(seats, len(places)), self.tokens_per_user), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for batch in np.unique(batches):
            here = np.flatnonzero(batches == batch)
            values, offsets = self.batches[batch].values, self.batches[batch].offsets
            starts, ends = offsets[places[here]], offsets[places[here] + 1]
            lengths[here] = ends - starts
            # Plain numbers: numpy's own would take longer than the copies.
            for number, start, end in zip(here.tolist(), starts.tolist(), ends.tolist(), strict=True):
                tokens[number, : end - start] = values[start:end]
        self._let_go()
        return UserBlock(tokens, lengths)

    def _let_go(self) -> None:
        """Else the process would come to hold the whole file, bit by bit. The system keeps what it has room for."""
        if self.mapping is not None:
            _advise(self.mapping, "MADV_DONTNEED")

    def without(self, row: int) -> Store:
        """The same rows, with nothing in one of them: what the store would be had this user written no word.

        Everybody else keeps their place, so that the same key draws the same people from both.
        """
        (batch,), (place,) = self._find([row])
        values, offsets = self.batches[batch].values, self.batches[batch].offsets
        start, end = offsets[place], offsets[place + 1]
        shorter = offsets.copy()
        shorter[place + 1 :] -= end - start
        cut = Batch(np.concatenate([values[:start], values[end:]]), shorter, names=self.batches[batch].names)
        batches = (*self.batches[:batch], cut, *self.batches[batch + 1 :])
        return replace(self, batches=batches)

    def followed_by(self, users: Sequence[np.ndarray]) -> Store:
        """The same rows and others after them, who are no part of the people that the fingerprint names."""
        more = Batch(np.concatenate([*users, np.empty(0, int)]).astype(np.int32), _offsets(users))
        return replace(self, batches=(*self.batches, more), named=self.fingerprint)

    def head(self, users: int) -> Store:
        """The first users alone, in memory."""
        rows = range(min(users, self.users))
        letters = [self.unknown_letters(row) for row in rows]
        kept = None if any(each is None for each in letters) else letters
        few = Store.from_users([self[row] for row in rows], self.vocabulary, self.tokens_per_user, kept)  # pyrefly: ignore
        return replace(few, split=self.split, people=self.people, vocabulary_source=self.vocabulary_source)

    @cached_property
    def _firsts(self) -> np.ndarray:
        """The first row of each batch, and the number of rows at the end."""
        return np.cumsum([0, *(len(batch.offsets) - 1 for batch in self.batches)])

    def _find(self, rows: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < self.users):
            raise IndexError(f"rows {rows.min()} to {rows.max()} asked of a store with {self.users} users")
        batches = np.searchsorted(self._firsts, rows, side="right") - 1
        return batches, rows - self._firsts[batches]


def _row(batch: Batch, place: int) -> np.ndarray:
    return batch.values[batch.offsets[place] : batch.offsets[place + 1]]


def _offsets(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)


def _facts(folder: Path) -> dict[str, Any]:
    """What `store.json` says, once it is clear that the folder is a store that this version can read."""
    if not folder.is_dir():
        raise SottoError(f"{folder} is not a folder; make a store with `sotto prepare`")
    file = folder / STORE_FILE
    if not file.is_file():
        raise SottoError(f"{folder} is not a store (it has no {STORE_FILE}); make one with `sotto prepare`")
    try:
        facts = read_sealed(file)
        version = facts["format"]
        for key in ("tokens_per_user", "vocabulary_size"):
            facts[key]
        for split in SPLITS:
            facts["splits"][split]["users"]
        facts.get("vocabulary", DECLARED)["source"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(
            folder, f"{STORE_FILE}: {error if type(error) is ValueError else type(error).__name__}"
        ) from error
    if version != FORMAT:
        raise SottoError(
            f"{folder} has store format {version!r}, this version reads {FORMAT}; make it anew with `sotto prepare`"
        )
    return facts


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `store.json`, with the hashes of the files beside it. Like them it is private: it tells who is in them."""
    names = [VOCABULARY_FILE, *(f"{split}.{kind}" for split in SPLITS for kind in ("arrow", "npz"))]
    files = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    write_aside(folder / STORE_FILE, pretty(sealed({**facts, "files": files})))


def write_arrays(folder: str | Path) -> None:
    """Put plain arrays beside a store's Arrow files, for a machine that trains and has no pyarrow: `train.npz`, ..."""
    folder = Path(folder)
    for split in SPLITS:
        _save_arrays(folder / f"{split}.npz", Store.open(folder, split))
    write_facts(folder, _facts(folder))


def write_in_arrays(folder: Path, train: Store, test: Store) -> None:
    """A store of arrays alone, from two that are in memory or elsewhere; where they were is not kept."""
    cap = max(train.tokens_per_user, test.tokens_per_user)
    splits = {"train": train, "test": test}
    for split, store in splits.items():
        _save_arrays(folder / f"{split}.npz", store)
    train.vocabulary.save(folder / VOCABULARY_FILE)
    facts = {
        "format": FORMAT, "tokens_per_user": cap, "vocabulary_size": train.vocabulary.size,
        "vocabulary": dict(train.vocabulary_source), "people": train.people,
        "splits": {split: {"users": store.users} for split, store in splits.items()},
    }  # fmt: skip
    write_facts(folder, facts)


def _save_arrays(path: Path, store: Store) -> None:
    arrays = _joined(store.batches, np.uint16)
    if all(batch.unknown for batch in store.batches):
        letters = _joined([batch.unknown for batch in store.batches if batch.unknown], np.uint8)
        arrays |= {f"unknown_{name}": array for name, array in letters.items()}
    names = [batch.names for batch in store.batches if batch.names is not None]
    if len(names) == len(store.batches):
        arrays["names"] = np.concatenate([*names, np.empty(0, _NAME)])
    np.savez_compressed(path, allow_pickle=False, **arrays)


def made_up_names(users: int) -> list[bytes]:
    """For users whom nobody knows by an id: their row is their name."""
    return [row.to_bytes(16, "big") for row in range(users)]


def _joined(batches: Sequence[Batch], kind: type) -> dict[str, np.ndarray]:
    offsets = np.concatenate([[0], *(np.diff(batch.offsets) for batch in batches)]).cumsum()
    parts = [batch.values[batch.offsets[0] : batch.offsets[-1]] for batch in batches]
    return {"values": np.concatenate(parts) if parts else np.zeros(0, kind), "offsets": offsets}


_NO_HASHES: Mapping[str, str] = MappingProxyType({})
_checked: set[tuple[object, ...]] = set()


def _check_hash(path: Path, hashes: Mapping[str, str]) -> None:
    """Is a file the one that was written? It is read once in a process, and again where it was touched since."""
    if path.name not in hashes:  # a store of version 0.1
        return
    try:
        found = path.stat()
        seen = (path.resolve(), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, hashes[path.name])
        if seen not in _checked:
            if sha256_of(path) != hashes[path.name]:
                raise _damaged(path.parent, f"{path.name} is not the file that {STORE_FILE} names: it was changed")
            _checked.add(seen)
    except OSError as error:
        raise _damaged(path.parent, f"{path.name}: {error.strerror}") from error


def _mapped(path: Path, hashes: Mapping[str, str] = _NO_HASHES) -> tuple[mmap.mmap | None, tuple[Batch, ...]]:
    """The record batches of an Arrow file as views of the mapped file, or the arrays that `write_arrays` put there."""
    arrays = path.with_suffix(".npz")
    try:
        import pyarrow as pa
    except ImportError as error:
        if not arrays.is_file():
            raise SottoError(
                "opening a store needs pyarrow; run `pip install pyarrow`, use Store.from_users, or put arrays beside "
                "it with sottovoce.data.store.write_arrays"
            ) from error
        return None, _loaded(arrays, hashes)
    if arrays.is_file() and not path.exists():
        return None, _loaded(arrays, hashes)
    _check_hash(path, hashes)
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # The users of a cohort lie far apart: reading on after each would read many times what is needed.
        _advise(mapping, "MADV_RANDOM")
        reader = pa.ipc.open_file(pa.py_buffer(mapping))
        return mapping, tuple(_batch(reader.get_batch(number)) for number in range(reader.num_record_batches))
    except (OSError, ValueError, KeyError, AttributeError, pa.ArrowException) as error:
        raise _damaged(path.parent, f"{path.name}: {' '.join(str(error).split())}") from error


def _loaded(arrays: Path, hashes: Mapping[str, str]) -> tuple[Batch, ...]:
    _check_hash(arrays, hashes)
    with np.load(arrays) as held:
        kept = Batch(held["unknown_values"], held["unknown_offsets"]) if "unknown_values" in held else None
        return (Batch(held["values"], held["offsets"], kept, held.get("names")),)


def _batch(columns: Any) -> Batch:
    tokens = columns.column("tokens")
    unknown = columns.column("unknown") if "unknown" in columns.schema.names else None
    kept = None if unknown is None else Batch(unknown.values.to_numpy(), unknown.offsets.to_numpy())
    names = _names(columns.column("user")) if "user" in columns.schema.names else None
    return Batch(tokens.values.to_numpy(), tokens.offsets.to_numpy(), kept, names)


def _names(column: Any) -> np.ndarray | None:
    """A view of the mapped names: none is read until it is asked for."""
    _, offsets, text = column.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[0, len(column)]]
    if end - start != len(column) * _NAME.itemsize:
        return None
    return np.frombuffer(text, np.uint8)[start:end].view(_NAME)


def _advise(mapping: mmap.mmap, advice: str) -> None:
    if hasattr(mmap, advice):  # not on every system
        mapping.madvise(getattr(mmap, advice))


def _damaged(folder: Path, what: str) -> SottoError:
    return SottoError(f"the store {folder} is damaged ({what}); restore it, or make it anew with `sotto prepare`")
