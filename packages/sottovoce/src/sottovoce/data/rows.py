"""The rows of one split, one user each, in memory or mapped: a cohort costs the same among any number of users."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import open_plain

# A record batch holds less than this, or one user: its 32-bit offsets cannot overflow while a user is below it too.
BATCH_TOKENS = 2**22
LEDGER = "ledger.jsonl"  # what the people of a store were charged
_NONE = np.zeros(0, np.uint8)
NAME = np.dtype("S32")  # 16 bytes in hexadecimal, as a store's file has them
_CHUNK = 2**20  # tokens that are read at once


@dataclass(frozen=True)
class UserBlock:
    """Some users: `tokens` [n, tokens_per_user], padded with zeros, and `lengths` [n]; both int32."""

    tokens: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, eq=False)
class RecordBatch:
    """Consecutive users: row i holds `values[offsets[i]:offsets[i + 1]]`.

    `unknown` has the same form: the number of letters of each word outside the vocabulary, where kept. `names` has the
    name of each user (`Grouping.name`) in hexadecimal, where known.
    """

    values: np.ndarray
    offsets: np.ndarray
    unknown: RecordBatch | None = None
    names: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Sequence[np.ndarray], kind: type) -> RecordBatch:
        """The batch of these rows, its values of one kind."""
        values = np.concatenate([*rows, np.empty(0, kind)]).astype(kind)
        return cls(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))

    def row(self, place: int) -> np.ndarray:
        return self.values[self.offsets[place] : self.offsets[place + 1]]


@dataclass(frozen=True, eq=False)
class Rows:
    """Record batches one after another. `mappings` are the files that they are views of, if any."""

    batches: tuple[RecordBatch, ...]
    mappings: tuple[mmap.mmap, ...] = ()

    @property
    def count(self) -> int:
        return int(self._firsts[-1])

    @cached_property
    def _firsts(self) -> np.ndarray:
        """The first row of each batch, and the number of rows at the end."""
        return np.cumsum([0, *(len(batch.offsets) - 1 for batch in self.batches)])

    def find(self, rows: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch of each row, and its place there."""
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < self.count):
            raise IndexError(f"rows {rows.min()} to {rows.max()} asked of a store with {self.count} users")
        batches = np.searchsorted(self._firsts, rows, side="right") - 1
        return batches, rows - self._firsts[batches]

    def tokens(self, row: int) -> np.ndarray:
        (batch,), (place,) = self.find([row])
        return self.batches[batch].row(place).astype(np.int32)

    def unknown_letters(self, row: int) -> np.ndarray:
        """The number of letters of each word outside the vocabulary, as far as it was kept."""
        (batch,), (place,) = self.find([row])
        unknown = self.batches[batch].unknown
        return (_NONE if unknown is None else unknown.row(place)).astype(np.int64)

    def lengths(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """How many tokens each of these users has."""
        lengths = np.empty(len(rows), np.int32)
        for _, here, starts, ends in self._spans(rows):
            lengths[here] = ends - starts
        return lengths

    def gather(self, rows: Sequence[int] | np.ndarray, width: int, padded_size: int = 0) -> UserBlock:
        """These users as one block of `width` tokens each, padded to `padded_size` with users of no tokens."""
        tokens = np.zeros((max(padded_size, len(rows)), width), np.int32)
        lengths = np.zeros(len(tokens), np.int32)
        for values, here, starts, ends in self._spans(rows):
            lengths[here] = ends - starts
            # Plain numbers: numpy's own would take longer than the copies.
            for number, start, end in zip(here.tolist(), starts.tolist(), ends.tolist(), strict=True):
                tokens[number, : end - start] = values[start:end]
        self._release_memory()
        return UserBlock(tokens, lengths)

    def _spans(self, rows: Sequence[int] | np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """By batch: its values, which of `rows` are in it, and where each of them starts and ends."""
        batches, places = self.find(rows)
        for batch in np.unique(batches):
            here = np.flatnonzero(batches == batch)
            offsets = self.batches[batch].offsets
            yield self.batches[batch].values, here, offsets[places[here]], offsets[places[here] + 1]

    def chunks(self) -> Iterator[np.ndarray]:
        """All tokens in order, some at a time."""
        self._advise("MADV_SEQUENTIAL")
        for batch in self.batches:
            for start in range(int(batch.offsets[0]), int(batch.offsets[-1]), _CHUNK):
                yield batch.values[start : min(start + _CHUNK, int(batch.offsets[-1]))]
                self._release_memory()
        self._advise("MADV_RANDOM")

    @property
    def names(self) -> np.ndarray | None:
        """A number of 64 bits for each user, from the user's name alone; None if a name is not known."""
        known = [batch.names for batch in self.batches if batch.names is not None]
        if len(known) < len(self.batches):
            return None
        text = b"".join(names.tobytes() for names in known)
        halves = np.frombuffer(bytes.fromhex(text.decode("ascii")), ">u8").astype(np.uint64).reshape(-1, 2)
        return halves[:, 0] ^ halves[:, 1]

    @property
    def written_names(self) -> list[str]:
        """The name of each user as a file has it: empty where it is not known."""
        found: list[str] = []
        for batch in self.batches:
            names = np.zeros(len(batch.offsets) - 1, NAME) if batch.names is None else batch.names
            found += [name.decode("ascii") for name in names.tolist()]
        return found

    def without(self, row: int) -> Rows:
        """The same rows, with nothing in one of them."""
        (number,), (place,) = self.find([row])
        batch = self.batches[number]
        start, end = batch.offsets[place], batch.offsets[place + 1]
        shorter = batch.offsets.copy()
        shorter[place + 1 :] -= end - start
        cut = RecordBatch(np.concatenate([batch.values[:start], batch.values[end:]]), shorter, names=batch.names)
        return Rows((*self.batches[:number], cut, *self.batches[number + 1 :]), self.mappings)

    def followed_by(self, users: Sequence[np.ndarray]) -> Rows:
        return Rows((*self.batches, RecordBatch.of(users, np.int32)), self.mappings)

    def _release_memory(self) -> None:
        """Release mapped pages: without this the process would in time hold the whole file."""
        self._advise("MADV_DONTNEED")

    def _advise(self, advice: str) -> None:
        for mapping in self.mappings:
            _advise(mapping, advice)


class SplitWriter:
    """Writes one split, a record batch at a time.

    Where a batch ends depends on the users alone, so the same users always give the same file.
    """

    def __init__(self, path: Path, vocabulary_size: int) -> None:
        import pyarrow as pa

        self.users = self.tokens = 0
        self._kind = np.uint32 if vocabulary_size > 2**16 else np.uint16
        self._held: list[tuple[np.ndarray, ...]] = []
        self._held_tokens = 0
        tokens, letters = (pa.list_(pa.from_numpy_dtype(kind)) for kind in (self._kind, np.uint8))
        self._schema = pa.schema([("user", pa.string()), ("tokens", tokens), ("unknown", letters)])
        # Not compressed: a compressed file cannot be mapped.
        self._file = pa.ipc.new_file(str(path), self._schema)

    def add(self, name: str, tokens: np.ndarray, unknown: np.ndarray = _NONE) -> None:
        """One user; `unknown` holds the lengths of the words outside the vocabulary."""
        if self._held and self._held_tokens + len(tokens) > BATCH_TOKENS:
            self._flush()
        sizes = np.array([len(tokens)]), np.array([len(unknown)])
        self._hold(np.array([name], NAME), *sizes, np.array(tokens, self._kind), np.array(unknown, np.uint8))

    def add_block(self, names: np.ndarray, batch: RecordBatch) -> None:
        """Users in order: their names, [users, 16] bytes, and their tokens with `unknown`. The file is as of `add`."""
        assert batch.unknown is not None
        offsets, letters = batch.offsets, batch.unknown.offsets
        first, users = 0, len(names)
        written = np.frombuffer(names.tobytes().hex().encode(), NAME)
        while first < users:
            # As many as fit; into an empty batch one always does.
            space = offsets[first] + BATCH_TOKENS - self._held_tokens
            last = max(int(np.searchsorted(offsets, space, side="right")) - 1, first + (not self._held))
            if last > first:
                sizes = np.diff(offsets[first : last + 1]), np.diff(letters[first : last + 1])
                tokens = batch.values[offsets[first] : offsets[last]].astype(self._kind)
                unknown = batch.unknown.values[letters[first] : letters[last]].astype(np.uint8)
                self._hold(written[first:last], *sizes, tokens, unknown)
            if last < users:
                self._flush()
            first = last

    def _hold(self, *columns: np.ndarray) -> None:
        """Names, numbers of tokens and of lengths, tokens and lengths of some users."""
        self._held.append(columns)
        self._held_tokens += len(columns[3])
        self.users += len(columns[0])
        self.tokens += len(columns[3])

    def _flush(self) -> None:
        names, lengths, letters, tokens, unknown = (np.concatenate(each) for each in zip(*self._held, strict=True))
        columns = (
            RecordBatch(each, np.cumsum([0, *sizes], dtype=np.int64))
            for sizes, each in ((lengths, tokens), (letters, unknown))
        )
        self._write(np.char.decode(names, "ascii").tolist(), *columns)
        self._held, self._held_tokens = [], 0

    def _write(self, names: Sequence[str], *columns: RecordBatch) -> None:
        import pyarrow as pa

        lists = [pa.ListArray.from_arrays(column.offsets.astype(np.int32), column.values) for column in columns]
        self._file.write_batch(pa.record_batch([pa.array(names, pa.string()), *lists], schema=self._schema))

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._held:
                self._flush()
        finally:
            self._file.close()


def shard_files(folder: Path, split: str, shards: int) -> list[Path]:
    """The files of a split, in the order of their users: one, or so many shards."""
    if shards == 1:
        return [folder / f"{split}.arrow"]
    return [folder / f"{split}-{number:05d}-of-{shards:05d}.arrow" for number in range(shards)]


def read_rows(*paths: Path) -> Rows:
    """The rows of the files of a split, one after another: views of the mapped files."""
    mapped = [_mapped(path) for path in paths]
    return Rows(tuple(batch for batches, _ in mapped for batch in batches), tuple(mapping for _, mapping in mapped))


def _mapped(path: Path) -> tuple[list[RecordBatch], mmap.mmap]:
    import pyarrow as pa

    try:
        with open_plain(path) as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # The users of a cohort lie far apart: reading on after each would read many times what is needed.
        _advise(mapping, "MADV_RANDOM")
        reader = pa.ipc.open_file(pa.py_buffer(mapping))
        return [_batch(reader.get_batch(number)) for number in range(reader.num_record_batches)], mapping
    except (OSError, ValueError, KeyError, AttributeError, pa.ArrowException) as error:
        raise damaged(path.parent, f"{path.name}: {' '.join(str(error).split())}") from error


def damaged(folder: Path, what: str) -> SottoError:
    return SottoError(f"the store {folder} is damaged ({what}); {_remedy(folder)}")


def was_charged(folder: Path) -> bool:
    """Were the people of a store charged, as far as its files tell?"""
    return any((folder / name).exists() for name in (LEDGER, "ledger.head", "ledger.charged"))


def _remedy(folder: Path) -> str:
    """A new store of the same people would have lost what they were charged."""
    if was_charged(folder):
        return f"its people were charged: restore the other files from a backup, and keep {folder / LEDGER}"
    return "restore it, or make it anew with `sotto prepare`"


def _batch(columns: Any) -> RecordBatch:
    tokens, unknown = columns.column("tokens"), columns.column("unknown")
    kept = RecordBatch(unknown.values.to_numpy(), unknown.offsets.to_numpy())
    return RecordBatch(tokens.values.to_numpy(), tokens.offsets.to_numpy(), kept, _names(columns.column("user")))


def _names(column: Any) -> np.ndarray | None:
    """A view of the mapped names, of which none is read until it is asked for; None where a user has no name."""
    _, offsets, text = column.buffers()
    start, end = np.frombuffer(offsets, np.int32)[[0, len(column)]]
    if end - start != len(column) * NAME.itemsize:
        return None
    return np.frombuffer(text, np.uint8)[start:end].view(NAME)


def _advise(mapping: mmap.mmap, advice: str) -> None:
    if hasattr(mmap, advice):  # not on every system
        mapping.madvise(getattr(mmap, advice))
