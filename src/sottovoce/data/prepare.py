"""A corpus to a user store: tokenise, group by user, cut, split. The corpus may be larger than memory."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b, file_digest
from pathlib import Path

import numpy as np

from sottovoce.data.corpus import PACKED, corpus_files, records
from sottovoce.data.store import FORMAT, LARGEST_USER, SPLITS, STORE_FILE, VOCABULARY_FILE, SplitWriter, Store
from sottovoce.data.vocabulary import UNK, Vocabulary
from sottovoce.errors import SottoError
from sottovoce.files import made_aside

PREPARATION_FILE = "preparation.json"
PART_BYTES = 2**27
BUFFER_TOKENS = 2**24
PROGRESS_EVERY = 1000

Paths = str | Path | Iterable[str | Path]


@dataclass(frozen=True)
class PreparationSummary:
    """What became of a corpus. Exact counts of private text: for the owner, not for a report.

    `tokens_cut` went from the users kept; the tokens of users dropped are in `tokens_seen` only.
    """

    records: int
    users_seen: int
    users_kept: int
    users_dropped: int
    users_cut: int
    tokens_seen: int
    tokens_kept: int
    tokens_cut: int
    unknown_rate: float
    train_users: int
    train_tokens: int
    test_users: int
    test_tokens: int

    def to_json(self) -> dict[str, int | float]:
        return asdict(self)


def prepare(
    paths: Paths,
    out: str | Path,
    *,
    user_field: str = "user",
    text_field: str = "text",
    vocabulary: Vocabulary,
    min_tokens: int = 1,
    tokens_per_user: int = 1600,
    test_users: float = 0.1,
    split_key: str = "sottovoce",
    progress: Callable[[int], None] | None = None,
) -> PreparationSummary:
    """Write the store of a corpus to the new folder `out`.

    A user is one user however many records and files hold them. Who is held out, and the order of the users, follow
    from a keyed hash of the user's id: neither the order of the input nor one person joining moves anybody else.
    `progress` is told the number of records read.
    """
    _check(min_tokens, tokens_per_user, test_users, split_key)
    files = corpus_files(paths)
    stream = records(files, user_field, text_field)
    name = _namer(split_key)
    _refuse_existing(Path(out))
    with made_aside(Path(out)) as store:
        # Owner only: the folder holds what people wrote. The spill beside it goes with the folder both are made in.
        store.chmod(0o700)
        spill = _Spill(store.parent / "spill", _parts(files), wide=vocabulary.size > 2**16)
        for number, (user, text) in enumerate(stream, 1):
            spill.add(name(user), vocabulary.encode(text))
            if progress and number % PROGRESS_EVERY == 0:
                progress(number)
        if not spill.records:
            raise SottoError(f"no record in {', '.join(map(str, files))}; a corpus needs at least one")
        if progress and spill.records % PROGRESS_EVERY:
            progress(spill.records)
        summary = _write_splits(store, spill, vocabulary, min_tokens, tokens_per_user, test_users)
        vocabulary.save(store / VOCABULARY_FILE)
        facts = {
            "format": FORMAT,
            "tokens_per_user": tokens_per_user,
            "min_tokens": min_tokens,
            "vocabulary_size": vocabulary.size,
            "splits": {
                "train": {"users": summary.train_users, "tokens": summary.train_tokens},
                "test": {"users": summary.test_users, "tokens": summary.test_tokens},
            },
            "test_users": test_users,
            "split_key": split_key,
            "fingerprint": _fingerprint(store, vocabulary, tokens_per_user),
        }
        (store / STORE_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        with open(os.open(store / PREPARATION_FILE, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(summary.to_json(), indent=2) + "\n")
    return summary


def collect(
    paths: Paths,
    vocabulary: Vocabulary,
    user_field: str = "user",
    text_field: str = "text",
    tokens_per_user: int | None = None,
) -> Store:
    """A corpus that fits in memory, grouped as `prepare` groups it but not split. No cap: the longest user sets it."""
    name = _namer("sottovoce")
    users: dict[bytes, array[int]] = {}
    for user, text in records(paths, user_field, text_field):
        tokens = users.setdefault(name(user), array("I"))
        if tokens_per_user is None or len(tokens) < tokens_per_user:
            tokens.extend(vocabulary.encode(text))
    if not users:
        raise SottoError(f"no record in {', '.join(map(str, corpus_files(paths)))}; a corpus needs at least one")
    return Store.from_users([users[user] for user in sorted(users)], vocabulary, tokens_per_user)


class _Spill:
    """Records on disk, parted by the first bytes of the user's name.

    A user is whole within a part and the parts are in the order of the names, so that taking one part after the other,
    each sorted in memory, sorts all users.
    """

    def __init__(self, folder: Path, parts: int, *, wide: bool) -> None:
        folder.mkdir(mode=0o700)
        self.records = 0
        self._folder = folder
        self._parts = parts
        self._code = "I" if wide else "H"
        self._buffers = [(bytearray(), array("I"), array(self._code)) for _ in range(parts)]
        self._buffered = 0

    def add(self, name: bytes, ids: list[int]) -> None:
        names, lengths, tokens = self._buffers[int.from_bytes(name[:2], "big") * self._parts >> 16]
        names += name
        lengths.append(len(ids))
        tokens.extend(ids)
        self.records += 1
        self._buffered += len(ids) + 10  # a name and a length take as much as ten tokens
        if self._buffered >= BUFFER_TOKENS:
            self._flush()

    def users(self, limit: int) -> Iterator[tuple[bytes, int, np.ndarray]]:
        """Each user's name, number of tokens, and first `limit` tokens in order of appearance."""
        self._flush()
        for part in range(self._parts):
            files = self._files(part)
            if files[0].exists():
                yield from self._users_of(files, limit)
                for file in files:
                    file.unlink()

    def _users_of(self, files: tuple[Path, Path, Path], limit: int) -> Iterator[tuple[bytes, int, np.ndarray]]:
        names = np.fromfile(files[0], dtype=">u8").reshape(-1, 2)
        lengths = np.fromfile(files[1], dtype=np.uint32).astype(np.int64)
        # Mapped, so that a single enormous user costs no memory beyond the limit; a plain view of it slices faster.
        tokens = np.asarray(np.memmap(files[2], dtype=self._code, mode="r"))
        ends = np.cumsum(lengths)
        order = np.lexsort((names[:, 1], names[:, 0]))  # stable: a user's records stay in order of appearance
        names = names[order]
        changes = np.flatnonzero((names[1:] != names[:-1]).any(axis=1)) + 1
        for first, last in zip([0, *changes.tolist()], [*changes.tolist(), len(order)], strict=True):
            rows = order[first:last]
            totals = np.cumsum(lengths[rows])
            needed = rows[: int(np.searchsorted(totals, limit)) + 1]
            pieces = [tokens[end - length : end] for end, length in zip(ends[needed], lengths[needed], strict=True)]
            yield names[first].tobytes(), int(totals[-1]), np.concatenate(pieces)[:limit]

    def _files(self, part: int) -> tuple[Path, Path, Path]:
        return (
            self._folder / f"{part}.names",
            self._folder / f"{part}.lengths",
            self._folder / f"{part}.tokens",
        )

    def _flush(self) -> None:
        for part, buffers in enumerate(self._buffers):
            for path, buffer in zip(self._files(part), buffers, strict=True):
                if buffer:
                    with path.open("ab") as file:
                        file.write(buffer)
                    del buffer[:]
        self._buffered = 0


def _write_splits(
    store: Path, spill: _Spill, vocabulary: Vocabulary, min_tokens: int, tokens_per_user: int, test_users: float
) -> PreparationSummary:
    threshold = int(test_users * 2**64)
    seen = cut = tokens_seen = tokens_cut = unknown = largest = 0
    with (
        SplitWriter(store / "train.arrow", vocabulary.size) as train,
        SplitWriter(store / "test.arrow", vocabulary.size) as test,
    ):
        for name, total, tokens in spill.users(tokens_per_user):
            seen += 1
            tokens_seen += total
            largest = max(largest, total)
            if total < min_tokens:
                continue
            # The last bytes split and the first ones sort, so that the two are independent.
            held_out = int.from_bytes(name[8:], "big") < threshold
            (test if held_out else train).add(name.hex(), tokens)
            cut += total > len(tokens)
            tokens_cut += total - len(tokens)
            unknown += int(np.count_nonzero(tokens == UNK))
    kept, tokens_kept = train.users + test.users, train.tokens + test.tokens
    if not kept:
        raise SottoError(
            f"min_tokens={min_tokens} keeps none of the {seen} users; the largest has {largest} tokens; "
            "lower min_tokens, or give more text"
        )
    if not train.users:
        raise SottoError(
            f"test_users={test_users} holds out all {kept} users that have min_tokens={min_tokens}; "
            "lower test_users, or give more users"
        )
    return PreparationSummary(
        records=spill.records,
        users_seen=seen,
        users_kept=kept,
        users_dropped=seen - kept,
        users_cut=cut,
        tokens_seen=tokens_seen,
        tokens_kept=tokens_kept,
        tokens_cut=tokens_cut,
        unknown_rate=unknown / tokens_kept,
        train_users=train.users,
        train_tokens=train.tokens,
        test_users=test.users,
        test_tokens=test.tokens,
    )


def _fingerprint(store: Path, vocabulary: Vocabulary, tokens_per_user: int) -> str:
    """One hash of all that a model is trained on."""
    seal = blake2b(f"{vocabulary.fingerprint} {tokens_per_user}".encode(), digest_size=16)
    for split in SPLITS:
        with open(store / f"{split}.arrow", "rb") as file:
            seal.update(file_digest(file, blake2b).digest())
    return seal.hexdigest()


def _refuse_existing(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise SottoError(f"{out} is a file; name a new folder for the store")
    if out.exists() and any(out.iterdir()):
        raise SottoError(
            f"{out} is not empty, and a store is never overwritten: it carries the privacy ledger of its people; "
            "name a new folder"
        )


def _namer(split_key: str) -> Callable[[str], bytes]:
    """A user's name in the store: 16 bytes that sort and split the users and from which the id cannot be read."""
    keyed = blake2b(key=blake2b(split_key.encode()).digest(), digest_size=16)

    def name(user: str) -> bytes:
        hashed = keyed.copy()
        # JSON can escape half of a surrogate pair, and such an id must not stop the run.
        hashed.update(user.encode("utf-8", "surrogatepass"))
        return hashed.digest()

    return name


def _parts(files: list[Path]) -> int:
    """How many parts keep each near PART_BYTES: packed text grows about fivefold, tokens take half of their text."""
    text = sum(file.stat().st_size * (5 if file.suffix.lower() in (*PACKED, ".parquet") else 1) for file in files)
    return min(4096, 1 + text // 2 // PART_BYTES)


def _check(min_tokens: int, tokens_per_user: int, test_users: float, split_key: str) -> None:
    if not 2 <= tokens_per_user <= LARGEST_USER:
        raise SottoError(
            f"tokens_per_user={tokens_per_user} must be in [2, {LARGEST_USER}]; it is the length users are cut to"
        )
    if min_tokens < 1:
        raise SottoError(f"min_tokens={min_tokens} must be at least 1; smaller users are dropped")
    if min_tokens > tokens_per_user:
        raise SottoError(
            f"min_tokens={min_tokens} is above tokens_per_user={tokens_per_user}, to which users are cut; "
            "lower the one or raise the other"
        )
    if not 0 <= test_users < 1:
        raise SottoError(f"test_users={test_users} must be in [0, 1); it is the share of users held out")
    if not split_key:
        raise SottoError("split_key is empty; give any text, it decides which users are held out")
