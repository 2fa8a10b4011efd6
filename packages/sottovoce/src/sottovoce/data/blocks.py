"""A corpus in blocks of consecutive records: they are cut off in order, and read by several threads at once."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sottovoce.data.census import Census
from sottovoce.data.corpus import (
    DELIMITERS,
    InMemory,
    Reading,
    Record,
    Source,
    arrow_batches,
    json_rows,
    numbered,
    owned,
    parquet_batches,
    records,
    table_rows,
)
from sottovoce.data.lines import LONGEST_LINE, LineReader, format_of, opened

BLOCK_BYTES = 2**20
_MARK = b"\xef\xbb\xbf"  # of UTF-8, at the beginning of a file


@dataclass(frozen=True, eq=False)
class OwnedTexts:
    """The texts of some records, each with one owner: text i is of `users[owner[i]]`. A record may come twice."""

    users: list[str]  # different ones, in order of appearance
    owner: np.ndarray
    texts: Any  # an Arrow array of strings
    record: np.ndarray  # which record each text is of
    records: int
    dropped: int = 0  # those of too many owners
    contexts: list[str | None] | None = None  # of the writer of each text, where that is read
    empty: int = 0  # records whose text is empty, which is not here

    @classmethod
    def of(cls, found: Iterable[Record], most_owners: int) -> OwnedTexts:
        """By the rule of `Grouping.records`: a record counts for each of its owners, or not at all."""
        import pyarrow as pa

        places: dict[str, int] = {}
        owner, texts, record = [], [], []
        contexts: list[str | None] = []
        seen = dropped = 0
        for owners, text, *context in found:
            seen += 1
            if len(owners) > most_owners:
                dropped += 1
                continue
            for user in owners:
                owner.append(places.setdefault(user, len(places)))
                record.append(seen - 1)
                texts.append(text.encode("utf-8", "surrogatepass"))
                contexts += context
        # A string here may have half of a surrogate pair, which Arrow would refuse to make.
        column = pa.array(texts, pa.binary()).view(pa.string())
        places_of, records_of = np.array(owner, np.int64), np.array(record, np.int64)
        return cls(list(places), places_of, column, records_of, seen, dropped, contexts or None)

    @classmethod
    def of_columns(cls, users: Any, texts: Any, contexts: Any = None) -> OwnedTexts | None:
        """Arrow arrays of strings, if every row has a user and a text, and all are whole."""
        import pyarrow as pa

        if users.null_count or texts.null_count:
            return None
        try:
            for column in (users, texts, *(() if contexts is None else (contexts,))):
                column.validate(full=True)
        except pa.ArrowInvalid:
            return None
        encoded = users.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if any(not name or name.isspace() for name in names):
            return None
        owner = encoded.indices.to_numpy().astype(np.int64)
        values = None if contexts is None else contexts.to_pylist()
        return cls(names, owner, texts.cast(pa.string()), np.arange(len(texts)), len(texts), contexts=values)

    def filled(self) -> OwnedTexts:
        """Without the records whose text is empty (`Grouping.records`), and without users who have no other."""
        import pyarrow as pa
        from pyarrow import compute

        sizes, spaces = (
            compute.call_function(name, [self.texts]).to_numpy(zero_copy_only=False)
            for name in ("binary_length", "utf8_is_space")
        )
        kept = (sizes > 0) & ~spaces
        if kept.all():
            return self
        users, owner = np.unique(self.owner[kept], return_inverse=True)
        return replace(
            self,
            users=[self.users[user] for user in users],
            owner=owner,
            texts=self.texts.filter(pa.array(kept)),
            record=self.record[kept],
            empty=len(np.unique(self.record[~kept])),
            contexts=self.contexts and [value for value, keep in zip(self.contexts, kept, strict=True) if keep],
        )


class Block(Protocol):
    """Consecutive records that are not read yet."""

    def read(self, reading: Reading, most_owners: int) -> OwnedTexts: ...


@dataclass(frozen=True)
class ReadRecords:
    """Records that came one by one: of tables as text, of a program, of plain text."""

    found: list[Record]

    def read(self, reading: Reading, most_owners: int) -> OwnedTexts:
        return OwnedTexts.of(self.found, most_owners)


@dataclass(frozen=True)
class JsonLines:
    """Whole lines of a file, in UTF-8; `before` lines came before them."""

    path: Path
    raw: bytes
    before: int

    def read(self, reading: Reading, most_owners: int) -> OwnedTexts:
        return self._at_once(reading) or OwnedTexts.of(owned(self.path, self._rows(reading), reading), most_owners)

    def _rows(self, reading: Reading) -> Generator[tuple[int, Any], None, None]:
        """One by one: this refuses what is wrong, and says where."""
        reader = LineReader(self.path, io.BufferedReader(io.BytesIO(self.raw)), number=self.before)  # pyrefly: ignore
        return json_rows(self.path, numbered(reader), reading)

    def _at_once(self, reading: Reading) -> OwnedTexts | None:
        """By Arrow's parser, if all lines are objects in which one string names the user, and another is the text."""
        import pyarrow as pa
        from pyarrow import json

        raw = self.raw.removeprefix(_MARK) if not self.before else self.raw
        count = _objects(raw)
        if len(reading.users) > 1 or count is None or len(raw) > LONGEST_LINE:
            return None
        fields = pa.schema([(field, pa.string()) for field in reading.fields])
        how = json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
        whole = json.ReadOptions(use_threads=False, block_size=len(raw) + 1)
        try:
            table = json.read_json(pa.BufferReader(raw), whole, how)
        except pa.ArrowInvalid:
            return None
        if table.num_rows != count:
            return None
        return OwnedTexts.of_columns(*(table.column(field).combine_chunks() for field in reading.fields))


def _objects(raw: bytes) -> int | None:
    """The number of lines, if each begins and ends as an object does: Arrow is not so strict."""
    text = np.frombuffer(raw if raw.endswith(b"\n") else raw + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    last = text[ends - 1]
    if (last == ord("\r")).any():
        last = np.where(last == ord("\r"), text[ends - 2], last)
    begins = text[np.concatenate([[0], ends[:-1] + 1])]
    return len(ends) if (last == ord("}")).all() and (begins == ord("{")).all() else None


@dataclass(frozen=True)
class Columns:
    """Rows of a table; `before` rows came before them."""

    source: Source
    batches: list[Any]
    before: int

    def read(self, reading: Reading, most_owners: int) -> OwnedTexts:
        rows = table_rows(self.source, self.batches, self.before)
        return self._at_once(reading) or OwnedTexts.of(owned(self.source, rows, reading), most_owners)

    def _at_once(self, reading: Reading) -> OwnedTexts | None:
        import pyarrow as pa
        from pyarrow import types

        table = pa.Table.from_batches(self.batches)
        kinds = [table.schema.field(field).type for field in reading.fields]
        if len(reading.users) > 1 or not all(types.is_string(kind) or types.is_large_string(kind) for kind in kinds):
            return None
        return OwnedTexts.of_columns(*(table.column(field).combine_chunks() for field in reading.fields))


def blocks(corpus: list[Source], reading: Reading, census: Census) -> Iterator[Block]:
    """All records of a corpus, in order. The files are read here, and what is in them by the blocks."""
    if reading.dump is not None:
        yield from blocks_of(records(corpus, reading, census))
        return
    for source in corpus:
        if isinstance(source, InMemory) and hasattr(source.given, "__arrow_c_stream__"):
            yield from _columns(source, arrow_batches(source, reading))
        elif isinstance(source, InMemory) or format_of(source)[0] in DELIMITERS:
            yield from blocks_of(records([source], reading, census))
        elif format_of(source)[0] == ".parquet":
            yield from _columns(source, parquet_batches(source, reading, census))
        else:
            with opened(source, reading.encoding, position=census.position) as reader:
                before = 0
                while raw := reader.block(BLOCK_BYTES):
                    if not raw.isspace():
                        yield JsonLines(source, raw, before)
                    before = reader.number


def blocks_of(found: Iterator[Record]) -> Iterator[Block]:
    """Records that come one by one."""
    held: list[Record] = []
    letters = 0
    for record in found:
        held.append(record)
        letters += len(record[1]) + 100  # an empty text has its costs, too
        if letters >= BLOCK_BYTES:
            yield ReadRecords(held)
            held, letters = [], 0
    if held:
        yield ReadRecords(held)


def _columns(source: Source, batches: Generator[Any, None, None]) -> Iterator[Block]:
    held: list[Any] = []
    before = rows = size = 0
    with closing(batches):
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if size >= BLOCK_BYTES:
                yield Columns(source, held, before)
                before, held, size = before + rows, [], 0
                rows = 0
    if held:
        yield Columns(source, held, before)
