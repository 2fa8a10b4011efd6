"""The user store: a folder with the tokens of many users, and facts about their origin."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sottovoce.data.rows import (
    NAME,
    RecordBatch,
    Rows,
    SplitWriter,
    UserBlock,
    damaged,
    read_rows,
    shard_files,
    was_charged,
)
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import FILES, find_tokenizer, load_tokenizer, save_tokenizer
from sottovoce.files import write_aside
from sottovoce_evidence.errors import SettingError, SottoError, count_of, did_you_mean
from sottovoce_evidence.files import TOKENS, pretty, read_sealed, sealed, sha256_of
from sottovoce_evidence.statement import EXACT, PRIVATE, HeldOut

FORMAT = 1
MOST_SHARDS = 4096  # files of a split
SPLITS = ("train", "test")
STORE_FILE = "store.json"
SKIP = "SOTTOVOCE_SKIP_HASHES"
LARGEST_USER = 2**24
MOST_PUBLIC = 2**28  # tokens of public text, which is kept in memory: 1 GiB

# Where the words are from: "source" is public, file, private (with what was spent) or, if not known, declared.
VocabularySource = Mapping[str, str | int | float]
DECLARED: VocabularySource = MappingProxyType({"source": "declared"})
PUBLIC_LIST: VocabularySource = MappingProxyType({"source": "public", "list": "wordfreq"})


@dataclass(frozen=True, eq=False)
class PublicText:
    """Public text that is sent to devices with the model, as one stream of tokens. It costs no privacy."""

    tokens: np.ndarray
    vocabulary: str  # its fingerprint
    fingerprint: str

    def excerpts(self, rows: np.ndarray, size: int, key: bytes) -> np.ndarray:
        """For each of these users `size` consecutive tokens, drawn with the key of the round."""
        last = self.tokens.size - size
        picked = np.empty((len(rows), size), np.int32)
        for place, row in enumerate(rows):
            drawn = blake2b(int(row).to_bytes(8, "little"), key=key, digest_size=8).digest()
            start = int.from_bytes(drawn, "little") % (last + 1)
            picked[place] = self.tokens[start : start + size]
        return picked


@dataclass(frozen=True, eq=False)
class Store:
    """The tokens of many users, by row.

    `tokens_per_user` is the public cap to which every user is cut and padded; the true lengths are private. Without
    `people`, pieces of plain text take the place of users. `public` is text that is sent with the model. `first` is the
    place of row 0 among all users of a run, where these rows are some of them: what a user draws depends on the place.
    `named` is the fingerprint of the people, where these rows do not give it.
    """

    vocabulary: Tokenizer
    tokens_per_user: int
    rows: Rows
    path: Path | None = None
    vocabulary_source: VocabularySource = field(default_factory=lambda: DECLARED)
    people: bool = True
    owners_per_record: int = 1
    every_record_is_a_user: bool = False
    held_out: HeldOut = EXACT  # what is declared of the people held out
    practice: bool = False  # the people are synthetic, made by `sotto train --practice`
    public: PublicText | None = None
    first: int = 0
    named: str | None = None
    longest_is_cap: bool = False  # nobody declared the cap: it is the length of the longest text, and so not public

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", *, check: bool = True, privately: bool = False) -> Store:
        """Map one split of a prepared folder.

        Its file is read once and must have the hash in `store.json`, unless `check` is off or the variable
        SOTTOVOCE_SKIP_HASHES is set: hashing takes seconds a gigabyte.

        Guarantee: held-out users who were declared private are opened by those alone who say that they measure them
        `privately`, with noise that is paid for, or only copy them. So nothing else has an exact figure of them.
        """
        folder = Path(folder)
        if split not in SPLITS:
            allowed = f"{', '.join(SPLITS)}{did_you_mean(split, SPLITS)}"
            raise SettingError(f"{{split!r}} must be one of {allowed}", split=split)
        facts = store_facts(folder)
        if split == "test" and facts["held_out"] == PRIVATE and not privately:
            raise SottoError(
                f"the held-out users of {folder} were declared private (`sotto prepare --held-out private`): no exact "
                "figure of them is computed; measure them with `sotto evaluate --private-epsilon`"
            )
        hashes = facts["files"]
        files, words = shard_files(folder, split, facts["shards"]), find_tokenizer(folder)
        if not words.is_file() and (lost := [name for name in FILES if name in hashes]):
            raise damaged(folder, f"{lost[0]} is missing")
        for file in (*files, words):
            if file.name not in hashes:
                raise damaged(folder, f"{file.name} is not among the files that {STORE_FILE} names")
        if check and not os.environ.get(SKIP):
            for file in files:
                _check_hash(file, hashes)
        rows = read_rows(*files)
        _check_hash(words, hashes)
        store = cls(
            vocabulary=load_tokenizer(words),
            tokens_per_user=int(facts["tokens_per_user"]),
            rows=rows,
            path=folder,
            vocabulary_source=facts["vocabulary"],
            people=facts["people"],
            owners_per_record=facts["owners_per_record"],
            every_record_is_a_user=facts["every_record_is_a_user"],
            held_out=facts["held_out"],
            practice=facts["practice"],
        )
        written = (facts["splits"][split]["users"], facts["vocabulary_size"])
        if written != (store.users, store.vocabulary.size):
            raise damaged(folder, f"{STORE_FILE} and the other files disagree")
        return store

    @classmethod
    def from_users(
        cls,
        users: Sequence[Sequence[int] | np.ndarray],
        vocabulary: Tokenizer,
        tokens_per_user: int | None = None,
        unknown: Sequence[Sequence[int] | np.ndarray] | None = None,
        names: Sequence[bytes] | None = None,
    ) -> Store:
        """A store in memory.

        Without `tokens_per_user` the longest user sets it; a private run then refuses the store.

        `unknown` holds the lengths of each user's words outside the vocabulary, in the order of the text; `names` the
        16 bytes that `Grouping.name` makes of each user's id, for users who come in turn.
        """
        cap = max(map(len, users), default=0) if tokens_per_user is None else tokens_per_user
        if not 1 <= cap <= LARGEST_USER:
            limits = f"[1, {LARGEST_USER}]; users are cut to it"
            raise SettingError(f"{{tokens_per_user}} must be in {limits}", tokens_per_user=cap)
        rows = [np.asarray(user, dtype=np.int64)[:cap] for user in users]
        batch = RecordBatch.of(rows, np.int64)
        if batch.values.size and not (batch.values.min() >= 0 and batch.values.max() < vocabulary.size):
            found = f"token ids run from {batch.values.min()} to {batch.values.max()}"
            raise SottoError(f"{found}, and the vocabulary has {vocabulary.size} words; encode users with it")
        batch = replace(batch, values=batch.values.astype(np.int32))
        if unknown is not None:
            unk = vocabulary.specials.unk
            kept = [np.asarray(each, np.uint8)[: np.sum(row == unk)] for each, row in zip(unknown, rows, strict=True)]
            batch = replace(batch, unknown=RecordBatch.of(kept, np.uint8))
        if names is not None:
            if len(names) != len(rows):
                raise SottoError(f"{len(names)} names were given for {count_of(len(rows), 'user')}; give one for each")
            batch = replace(batch, names=np.array([name.hex() for name in names], NAME))
        return cls(vocabulary, cap, Rows((batch,)), longest_is_cap=tokens_per_user is None)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what these people wrote, computed from the rows themselves.

        The noise of a round is keyed by it. If it came from a file, changed text could be released under the noise of
        the text before, and the difference of both would have no noise.
        """
        if self.named is not None:
            return self.named
        seal = blake2b(f"{self.vocabulary.fingerprint} {self.tokens_per_user}".encode(), digest_size=16)
        for batch in self.rows.batches:
            seal.update(np.diff(batch.offsets).astype("<i8").tobytes())
        for tokens in self.rows.chunks():
            seal.update(tokens.astype("<i4").tobytes())
        return seal.hexdigest()

    @cached_property
    def names(self) -> np.ndarray:
        """A number of 64 bits for each user, from the user's name alone: it does not depend on the other users."""
        names = self.rows.names
        if names is None:
            raise SottoError(
                f"{self.path or 'a store in memory'} does not know its users by name, and the turns of users "
                f"follow from their names; use another sampling"
            )
        return names

    @cached_property
    def names_fingerprint(self) -> str:
        """A hash of the names of these people, in the order of the rows."""
        return blake2b(self.names.astype("<u8").tobytes(), digest_size=16).hexdigest()

    def as_public(self) -> PublicText:
        """All of a store of plain text. A store of people is refused: their text is not public."""
        if self.people:
            raise SottoError(
                f"{self.path} holds people's text, which is not public; prepare public text with "
                f"`sotto prepare --plain-text`"
            )
        tokens = sum(batch.values.size for batch in self.rows.batches)
        if not 0 < tokens <= MOST_PUBLIC:
            raise SottoError(f"{self.path} has {tokens:,} tokens of public text; from 1 to {MOST_PUBLIC:,} can be used")
        stream = np.concatenate([batch.values.astype(np.int32) for batch in self.rows.batches])
        return PublicText(stream, self.vocabulary.fingerprint, self.fingerprint)

    def __repr__(self) -> str:
        where, users = self.path or "in memory", count_of(self.users, "user")
        return f"<Store {where}: {users} of at most {self.tokens_per_user:,} tokens>"

    @property
    def users(self) -> int:
        return self.rows.count

    def __len__(self) -> int:
        return self.users

    def __getitem__(self, row: int) -> np.ndarray:
        """The tokens of one user."""
        return self.rows.tokens(row)

    def unknown_letters(self, row: int) -> np.ndarray | None:
        """The number of letters of each word of a user outside the vocabulary, in order; None if it was not kept."""
        letters = self.rows.unknown_letters(row)
        return letters if len(letters) == np.sum(self[row] == self.vocabulary.specials.unk) else None

    def lengths(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """How many tokens each of these users has."""
        return self.rows.lengths(rows)

    def gather(self, rows: Sequence[int] | np.ndarray, padded_size: int = 0) -> UserBlock:
        """These users as one padded block, filled up to `padded_size` with users of no tokens."""
        return self.rows.gather(rows, self.tokens_per_user, padded_size)

    def without(self, row: int) -> Store:
        """The same rows, with nothing in one of them. All others keep their place, so the same key draws them."""
        return replace(self, rows=self.rows.without(row))

    def followed_by(self, users: Sequence[np.ndarray]) -> Store:
        """The same rows and others after them, which the fingerprint does not cover."""
        return replace(self, rows=self.rows.followed_by(users), named=self.fingerprint)

    def head(self, users: int) -> Store:
        """The first users alone, in memory."""
        rows = range(min(users, self.users))
        letters = [self.unknown_letters(row) for row in rows]
        kept = None if any(each is None for each in letters) else letters
        few = Store.from_users([self[row] for row in rows], self.vocabulary, self.tokens_per_user, kept)  # pyrefly: ignore
        told = {"people": self.people, "vocabulary_source": self.vocabulary_source}
        return replace(few, longest_is_cap=self.longest_is_cap, **told)


def made_up_names(users: int) -> list[bytes]:
    """Names for users without an id: each user's row."""
    return [row.to_bytes(16, "big") for row in range(users)]


# The kind of each fact that every store has, and what is written for one that is not given; None where it must be.
_FACTS: dict[str, tuple[type, object]] = {
    "format": (int, FORMAT),
    "shards": (int, 1),
    "tokens_per_user": (int, None),
    "vocabulary_size": (int, None),
    "splits": (dict, None),
    "vocabulary": (dict, dict(DECLARED)),
    "files": (dict, None),
    "people": (bool, True),
    "owners_per_record": (int, 1),
    "every_record_is_a_user": (bool, False),
    "held_out": (str, EXACT),
    "practice": (bool, False),
}
_WRITTEN = {name: default for name, (_, default) in _FACTS.items() if default is not None}


def store_facts(folder: Path) -> dict[str, Any]:
    """The facts of `store.json`. A folder that this version cannot read as a store is refused."""
    if not folder.is_dir():
        raise SottoError(f"{folder} is not a folder; make a store with `sotto prepare`")
    file = folder / STORE_FILE
    if not file.is_file():
        if was_charged(folder) and any(folder.glob("train*.arrow")):  # a run has a ledger too
            raise damaged(folder, f"{STORE_FILE} is missing")
        raise SottoError(f"{folder} is not a store (it has no {STORE_FILE}); make one with `sotto prepare`")
    try:
        facts = read_sealed(file)
        if facts["format"] != FORMAT:
            raise ValueError(f"it has format {facts['format']!a:.80}, not {FORMAT}")
        for name, (kind, _) in _FACTS.items():
            if type(facts.get(name)) is not kind:
                raise ValueError(f"{name!r} is {facts.get(name)!a:.80}")
        for split in SPLITS:
            facts["splits"][split]["users"]
        if facts["held_out"] not in (EXACT, PRIVATE):
            raise ValueError(f"'held_out' is {facts['held_out']!a:.80}")
        if not 1 <= facts["tokens_per_user"] <= LARGEST_USER:
            raise ValueError(f"'tokens_per_user' is {facts['tokens_per_user']:,}")
        if not 1 <= facts["shards"] <= MOST_SHARDS:
            raise ValueError(f"it has {facts['shards']} shards")
        if not all(isinstance(sha256, str) for sha256 in facts["files"].values()):
            raise ValueError("'files' has what is no hash")
        source = facts["vocabulary"]
        source["source"]
        float(source.get("epsilon", 0)), float(source.get("delta", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error if type(error) is ValueError else type(error).__name__
        raise damaged(folder, f"{STORE_FILE}: {reason}") from error
    return facts


def held_out_of(folder: str | Path) -> Store | None:
    """The users held out from a store who are measured exactly; None where nobody is, or they were declared private."""
    if store_facts(Path(folder))["held_out"] == PRIVATE:
        return None
    test = Store.open(folder, "test")
    return test if test.users else None


def write_facts(folder: Path, facts: Mapping[str, Any], known: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write `store.json`, with the hashes of the other files; some may be `known`. It is private, as they are."""
    facts = {**_WRITTEN, **facts}
    rows = [file.name for split in SPLITS for file in shard_files(folder, split, facts["shards"])]
    words = [name for name in FILES if (folder / name).is_file()]
    files = {name: known.get(name) or sha256_of(folder / name) for name in (*words, *rows)}
    write_aside(folder / STORE_FILE, pretty(sealed({**facts, "files": files})))


def mark_as_practice(folder: Path) -> None:
    """Write into a store that its people are synthetic: a run on it says so, and is not released."""
    write_facts(folder, {**store_facts(folder), "practice": True})


def write_store(folder: Path, train: Store, test: Store) -> None:
    """Write the store of two splits that are in memory, or of other folders."""
    splits = {"train": train, "test": test}
    for split, store in splits.items():
        with SplitWriter(folder / f"{split}.arrow", store.vocabulary.size) as writer:
            for row, name in enumerate(store.rows.written_names):
                writer.add(name, store[row], store.rows.unknown_letters(row))
    save_tokenizer(train.vocabulary, folder)
    facts = {
        "tokens_per_user": max(train.tokens_per_user, test.tokens_per_user),
        "vocabulary_size": train.vocabulary.size,
        "vocabulary": dict(train.vocabulary_source),
        "people": train.people,
        "owners_per_record": train.owners_per_record,
        "every_record_is_a_user": train.every_record_is_a_user,
        "held_out": train.held_out,
        "splits": {split: {"users": store.users} for split, store in splits.items()},
    }
    write_facts(folder, facts)


_checked: set[tuple[object, ...]] = set()


def _check_hash(path: Path, hashes: Mapping[str, str]) -> None:
    """Refuse a file that was changed. It is read once in a process, and again if its status changed."""
    try:
        status = path.stat()
        times = (status.st_mtime_ns, status.st_ctime_ns)
        seen = (path.resolve(), status.st_ino, status.st_size, times, hashes[path.name])
        if seen not in _checked:
            if sha256_of(path, TOKENS if path.name in FILES else math.inf) != hashes[path.name]:
                raise damaged(path.parent, f"{path.name} is not the file that {STORE_FILE} names: it was changed")
            _checked.add(seen)
    except OSError as error:
        raise damaged(path.parent, f"{path.name}: {error.strerror}") from error
