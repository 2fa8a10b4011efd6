"""A corpus beyond one machine: PySpark groups its records by user, and writes the store that one machine would write.

Two steps. Every task of the first reads records, encodes them as `prepare` does, and gives each text a key: the name of
its user, and its place among the user's texts. Spark sorts by this key. Every task of the second step has all users of
one range of names, and writes them as one shard.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np

from sottovoce.data.blocks import Columns, JsonLines, OwnedTexts
from sottovoce.data.census import Census
from sottovoce.data.corpus import JSON_LINES, Reading
from sottovoce.data.encoding import EncodedBlock, encode_block
from sottovoce.data.grouping import BLOCK_TOKENS, Grouping, UserTexts
from sottovoce.data.lines import format_of
from sottovoce.data.prepare import (
    PreparationSummary,
    finish_store,
    needed_tokens,
    new_store,
    split_paths,
    summarise,
)
from sottovoce.data.splits import SplitCounts, Splits
from sottovoce.data.store import DECLARED, MOST_SHARDS, SPLITS, VocabularySource
from sottovoce.data.tokenizer import TokenColumn, Tokenizer, wide_tokens
from sottovoce.files import rename_synced
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import sha256_of

# Flags of a text: the first of its record; of a user such as "null"; of a user like a date; and of records left out.
FIRST, NAMELESS, DATE, DROPPED, EMPTY = 1, 2, 4, 8, 16
TEXTS = (
    "slot long, shard int, name binary, number double, written string, file int, block long, line long, tokens binary, "
    "form long, flags int"
)
ORDER = ("shard", "name", "number", "written", "file", "block", "line", "tokens")
WRITTEN = "facts string, form long"
MET = ("records", "dropped", "empty", "nameless")  # what a shard counts of a census
_NO_PLACE = -1  # the piece of a file that records of a table are of
_FAULT = re.compile(r"\b(?:SottoError|SettingError): (.+)")


@dataclass(frozen=True)
class SparkCorpus:
    """What Spark reads: files (JSON lines, parquet), or a table of its catalog; and the order of a user's records.

    Without `order_field` records are in the order of files and lines. A table has no such order.
    """

    files: tuple[str | Path, ...] = ()
    table: str | None = None
    order_field: str | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.table):
            raise SettingError("name files, or one table with {table.name}, and not both", table=self.table)
        if self.table and not self.order_field:
            raise SettingError(
                "a table has no files and lines that order a user's records; name the field that does, such as the "
                "time of writing, with {order_field.name}",
                order_field=None,
            )
        if not 1 <= self.shards <= MOST_SHARDS:
            raise SettingError(f"{{shards}} must be in [1, {MOST_SHARDS}]", shards=self.shards)


def prepare_with_spark(
    corpus: SparkCorpus,
    out: str | Path,
    vocabulary: Tokenizer,
    grouping: Grouping | None = None,
    source: VocabularySource = DECLARED,
) -> PreparationSummary:
    """Write the store of a corpus to the new folder `out`, which all executors of Spark must see.

    Guarantee: the same records in the same order give the bytes that `prepare` gives, whatever the number of
    partitions; with several shards the same rows in several files.

    Args:
        corpus: files or a table, and the order of a user's records.
        out: the folder of the store. It must be new.
        vocabulary: the tokens that the store may hold.
        grouping: which fields, who is kept, who is held out.
        source: where the vocabulary is from.
    """
    grouping = grouping or Grouping()
    if grouping.plain_text:
        raise SottoError("plain text has no users to group; leave --plain-text or --engine spark out")
    if grouping.delimiter or grouping.encoding:
        raise SottoError("Spark reads JSON lines in UTF-8, parquet and tables; leave --delimiter and --encoding out")
    if grouping.context_field:
        raise SottoError("contexts are read on this machine; leave --context-field or --engine spark out")
    files = _files(corpus, grouping)
    with new_store(Path(out)) as folder, _session() as session:
        work = _Work(folder, replace(grouping), replace(vocabulary), needed_tokens(vocabulary, source), corpus.shards)  # pyrefly: ignore
        read = _table(session, corpus, grouping) if corpus.table else _of_files(session, files, corpus, grouping)
        slots = _slots(session, corpus.shards)
        texts = [each.mapInArrow(_encoder(work, kind, files, slots), TEXTS) for kind, each in read]
        joined = texts[0] if len(texts) == 1 else texts[0].unionAll(texts[1])
        grouped = joined.repartition(corpus.shards, "slot").sortWithinPartitions(*ORDER)
        written = grouped.mapInArrow(_writer(work), WRITTEN).persist(_disk())
        facts = [json.loads(row.facts) for row in written.where("facts is not null").select("facts").collect()]
        return _finished(work, corpus, facts, _look_alikes(written), source)


@dataclass(frozen=True)
class _Work:
    """What the tasks know. The folder is that of the driver."""

    folder: Path
    grouping: Grouping
    vocabulary: Tokenizer
    needed: np.ndarray
    shards: int


def _files(corpus: SparkCorpus, grouping: Grouping) -> list[Path]:
    """The files in the order in which one machine reads them."""
    found = [each for each in grouping.sources(corpus.files) if isinstance(each, Path)] if corpus.files else []
    for file in found:
        kind, packed = format_of(file)
        if kind not in (*JSON_LINES, ".parquet") or packed not in ("", ".gz"):
            raise SottoError(
                f"{file}: Spark reads .jsonl, .json and .ndjson (also with .gz) and .parquet here; convert the file, "
                "or leave --engine spark out"
            )
    return [file.resolve() for file in found]


@contextmanager
def _session() -> Iterator[Any]:
    """The session of the program, or one of our own. Its faults become one line."""
    try:
        import pandas  # noqa: F401 -- PySpark needs it to hand over Arrow's columns
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise SottoError("--engine spark needs PySpark and pandas; `pip install 'sottovoce[spark]'`") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else another Python than this one may run the tasks
    running = SparkSession.getActiveSession()
    session = None
    try:
        builder = SparkSession.builder.appName("sotto prepare").config("spark.ui.showConsoleProgress", "false")
        session = running or builder.getOrCreate()
        yield session
    except (PySparkException, Py4JError) as error:
        raise SottoError(_one_line(error)) from None
    finally:
        if session is not None and running is None:
            session.stop()


def _one_line(error: BaseException) -> str:
    """Our own error, where a task raised it; else Spark's name of its error: the text may hold values."""
    if found := _FAULT.search(str(error)):
        return found[1].strip()
    condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
    return f"Spark stopped ({condition}); its log on standard error says why. Nothing was written"


def _table(session: Any, corpus: SparkCorpus, grouping: Grouping) -> list[tuple[str, Any]]:
    found = session.read.table(corpus.table)
    _must_have(str(corpus.table), found.columns, (*grouping.reading.fields, str(corpus.order_field)))
    fields = _fields(grouping.reading, corpus, dict(found.dtypes))
    return [("columns", found.selectExpr(*fields, "'' path", f"cast({_NO_PLACE} as long) block"))]


def _of_files(session: Any, files: list[Path], corpus: SparkCorpus, grouping: Grouping) -> list[tuple[str, Any]]:
    place = ("_metadata.file_path path", "_metadata.file_block_start block")
    found = []
    if lines := [str(file) for file in files if format_of(file)[0] != ".parquet"]:
        ordered = (
            _order(f"get_json_object(value, '$.{_plain(corpus.order_field)}')") if corpus.order_field else _NO_ORDER
        )
        text = session.read.option("lineSep", "\n").text(lines)
        found.append(("lines", text.selectExpr("cast(value as binary) value", *ordered, *place)))
    if tables := [str(file) for file in files if format_of(file)[0] == ".parquet"]:
        table = session.read.parquet(*tables)
        order = (corpus.order_field,) if corpus.order_field else ()
        _must_have(tables[0], table.columns, (*grouping.reading.fields, *order))
        found.append(("columns", table.selectExpr(*_fields(grouping.reading, corpus, dict(table.dtypes)), *place)))
    return found


def _plain(field: str) -> str:
    if not re.fullmatch(r"\w+", field):
        raise SettingError("{order_field!r} must be letters, digits and _ in JSON", order_field=field)
    return field


_NO_NUMBER = "cast(null as double)"
_NO_ORDER = (f"{_NO_NUMBER} number", "'' written")


def _order(value: str, kind: str = "string") -> tuple[str, str]:
    """By number where a value is one, else by its text: dates and times are written from the year on."""
    number = _NO_NUMBER if kind in ("date", "timestamp_ntz") else f"try_cast({value} as double)"
    return f"{number} number", f"cast({value} as string) written"


def _fields(reading: Reading, corpus: SparkCorpus, kinds: dict[str, str]) -> list[str]:
    fields = [f"`{field}` f{number}" for number, field in enumerate(reading.fields)]
    order = corpus.order_field
    return [*fields, *(_order(f"`{order}`", kinds[order]) if order else _NO_ORDER)]


def _must_have(where: str, names: Iterable[str], fields: Iterable[str]) -> None:
    for field in fields:
        if field not in names or "`" in field:
            raise SettingError(
                "{}: no field {!r}; name the fields with {user_field.name}, {text_field.name} and {order_field.name}",
                where,
                field,
                user_field=None,
                text_field=None,
                order_field=None,
            )


def _slots(session: Any, shards: int) -> list[int]:
    """For each shard a number that Spark's hash sends to the partition of this shard, so that every task has one."""
    found: dict[int, int] = {}
    for row in session.range(64 * shards).selectExpr("id", f"pmod(hash(id), {shards}) shard").collect():
        found.setdefault(row.shard, row.id)
    return [found.get(shard, 0) for shard in range(shards)]


def _disk() -> Any:
    from pyspark import StorageLevel

    return StorageLevel.DISK_ONLY


Task = Callable[[Iterator[Any]], Iterator[Any]]


def _encoder(work: _Work, kind: str, files: list[Path], slots: list[int]) -> Task:
    places = {str(file): number for number, file in enumerate(files)}

    def encode(batches: Iterator[Any]) -> Iterator[Any]:
        lines: dict[tuple[str, int], int] = {}  # texts of each piece of a file, so far
        for whole in batches:
            for batch in _same_piece(whole):
                path, block = batch.column("path")[0].as_py(), batch.column("block")[0].as_py()
                read = _json if kind == "lines" else _columns
                rows, texts = read(batch, path, block, work.grouping)
                file = places.get(unquote(urlparse(path).path), 0)
                line = lines.get((path, block), 0)
                found = encode_block(texts, work.grouping, work.vocabulary)
                yield text_rows(found, rows, (file, block, line), (slots, work.shards))
                lines[path, block] = line + found.records

    return encode


def _same_piece(batch: Any) -> Iterator[Any]:
    """Runs of rows that are of one piece of one file."""
    import pyarrow as pa

    if not batch.num_rows:
        return
    path, block = batch.column("path").to_pylist(), batch.column("block").to_pylist()
    cuts = [row for row in range(1, len(path)) if (path[row], block[row]) != (path[row - 1], block[row - 1])]
    for first, last in zip([0, *cuts], [*cuts, len(path)], strict=True):
        yield pa.RecordBatch.from_arrays(
            [column.slice(first, last - first) for column in batch.columns], names=batch.schema.names
        )


def _json(batch: Any, path: str, block: int, grouping: Grouping) -> tuple[Any, OwnedTexts]:
    """The records of lines, and the rows they are of: a blank line is none."""
    import pyarrow as pa

    values = batch.column("value").to_pylist()
    filled = [row for row, value in enumerate(values) if value.strip()]
    if not filled:
        return batch.slice(0, 0), OwnedTexts.of([], 1)
    raw = b"".join(values[row].strip(b"\r\n") + b"\n" for row in filled)
    where = Path(unquote(urlparse(path).path) + (f" from byte {block}" if block else ""))
    texts = JsonLines(where, raw, 0).read(grouping.reading, grouping.owners_per_record)
    return batch.take(pa.array(filled)), texts


def _columns(batch: Any, path: str, block: int, grouping: Grouping) -> tuple[Any, OwnedTexts]:
    import pyarrow as pa

    fields = grouping.reading.fields
    chosen = pa.RecordBatch.from_arrays([batch.column(f"f{number}") for number in range(len(fields))], names=fields)
    where = Path(unquote(urlparse(path).path) or "table")
    return batch, Columns(where, [chosen], 0).read(grouping.reading, grouping.owners_per_record)


def text_rows(found: EncodedBlock, rows: Any, place: tuple[int, int, int], spread: tuple[list[int], int]) -> Any:
    """The texts of a block as rows of `TEXTS`, and a row without a user for each record that is left out.

    `rows` has what orders each record; `place` is the file, the piece of it and the records before; `spread` says which
    slot each shard has, and how many shards there are.
    """
    import pyarrow as pa

    (file, block, line), (slots, shards) = place, spread
    names, count, left_out = found.names, len(found.owner), found.dropped + found.empty
    shard = (names[:, 0].astype(np.int64) * 256 + names[:, 1]) * shards >> 16
    first = np.diff(found.record, prepend=-1) != 0
    kinds = np.array([NAMELESS * user.nameless + DATE * user.date for user in found.users] or [0])
    forms = np.array([user.form for user in found.users] or [0], np.uint64).view(np.int64)
    reasons = np.repeat([FIRST | DROPPED, FIRST | EMPTY], [found.dropped, found.empty])
    flags = np.concatenate([first * FIRST + kinds[found.owner], reasons]).astype(np.int32)
    size = found.column.tokens.itemsize
    ends = np.concatenate([[0], np.cumsum(found.column.lengths) * size, np.zeros(left_out, np.int64)])
    ends[count + 1 :] = ends[count]
    of_record = np.concatenate([found.record, np.zeros(left_out, np.int64)])
    order = rows.take(pa.array(of_record))
    if order.column("written").null_count:
        raise SottoError("a record has no value in the field that orders records; fill it, or name another field")
    columns = {
        "slot": np.concatenate([np.array(slots, np.int64)[shard], np.full(left_out, slots[0], np.int64)]),
        "shard": np.concatenate([shard, np.zeros(left_out, np.int64)]).astype(np.int32),
        "name": pa.array([*(name.tobytes() for name in names), *[b""] * left_out], pa.binary()),
        "number": order.column("number").cast(pa.float64()),
        "written": order.column("written").cast(pa.string()),
        "file": np.full(count + left_out, file, np.int32),
        "block": np.full(count + left_out, block, np.int64),
        # Texts of a table that come at one time are in the order of their tokens.
        "line": line + of_record if block != _NO_PLACE else np.zeros(count + left_out, np.int64),
        "tokens": _binary(ends, found.column.tokens),
        "form": np.concatenate([forms[found.owner], np.zeros(left_out, np.int64)]),
        "flags": flags,
    }
    return pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})


def _binary(ends: np.ndarray, tokens: np.ndarray) -> Any:
    import pyarrow as pa

    data = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(tokens))]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, data)


@dataclass
class _User:
    """A user whose rows come one after another."""

    name: bytes
    form: int
    records: int = 0
    total: int = 0


class ShardWriter:
    """Writes the sorted rows of one shard, some of which may come later. Memory does not grow with a user."""

    def __init__(self, work: _Work, shard: int) -> None:
        self.shard, self._work = shard, work
        self.single = 0
        self.census, self.dated = Census(), 0
        self.forms: list[int] = []
        # A task may run twice at once, and the files of both are equal: the last one to end gives its files.
        self._drafts = {s: work.folder / f".{s}-{shard}-{os.getpid()}-{os.urandom(4).hex()}" for s in SPLITS}
        self._splits = Splits(self._drafts, work.grouping, work.vocabulary, work.needed)
        self._kind = np.uint32 if wide_tokens(work.vocabulary.size) else np.uint16
        self._user: _User | None = None
        self._held: list[np.ndarray] = []
        self._done: list[tuple[bytes, int, int]] = []  # name, tokens in all, tokens kept
        self._kept = 0

    def add(self, batch: Any) -> None:
        """Rows of `TEXTS` in order."""
        flags = batch.column("flags").to_numpy()
        self.census.records += int(np.sum(flags & FIRST > 0))
        self.census.dropped += int(np.sum(flags & DROPPED > 0))
        self.census.empty += int(np.sum(flags & EMPTY > 0))
        self.census.nameless += int(np.sum(flags & NAMELESS > 0))
        self.dated += int(np.sum(flags & DATE > 0))
        names, tokens, forms = (batch.column(each).to_pylist() for each in ("name", "tokens", "form"))
        for name, text, form in zip(names, tokens, forms, strict=True):
            if name:
                self._text(name, np.frombuffer(text, self._kind), form)

    def _text(self, name: bytes, tokens: np.ndarray, form: int) -> None:
        if self._user is None or self._user.name != name:
            self._end_user()
            self._user = _User(name, form)
        user = self._user
        kept = tokens[: max(self._work.grouping.tokens_per_user - user.total, 0)]
        if kept.size:
            self._held.append(kept)
            self._kept += kept.size
        user.total += tokens.size
        user.records += 1

    def _end_user(self) -> None:
        if (user := self._user) is None:
            return
        self._done.append((user.name, user.total, min(user.total, self._work.grouping.tokens_per_user)))
        self.forms.append(user.form)
        self.single += user.records == 1
        if self._kept >= BLOCK_TOKENS:
            self._flush()

    def _flush(self) -> None:
        if not self._done:
            return
        names = np.frombuffer(b"".join(name for name, _, _ in self._done), np.uint8).reshape(-1, 16)
        totals, lengths = (np.array([user[column] for user in self._done], np.int64) for column in (1, 2))
        tokens = np.concatenate([*self._held, np.empty(0, self._kind)])
        self._splits.add(UserTexts(names, totals, TokenColumn(tokens, lengths)))
        self._held, self._done, self._kept = [], [], 0

    def close(self) -> str:
        """End the files; what the driver must know of them."""
        self._end_user()
        self._user = None
        self._flush()
        self._splits.__exit__(None, None, None)
        hashes = {}
        for split, path in split_paths(self._work.folder, self._work.shards, self.shard).items():
            hashes[path.name] = sha256_of(self._drafts[split])
            rename_synced(self._drafts[split], path)
        met = {name: getattr(self.census, name) for name in MET}
        counts = (self._splits.counts + SplitCounts(single=self.single)).to_json()
        return json.dumps({"shard": self.shard, "counts": counts, "hashes": hashes, "dated": self.dated, **met})


def _writer(work: _Work) -> Task:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        writer: ShardWriter | None = None
        for whole in batches:
            shards = whole.column("shard").to_numpy()
            cuts = [*np.flatnonzero(np.diff(shards, prepend=-1)).tolist(), len(shards)]
            for first, last in pairwise(cuts):
                if writer is None or writer.shard != shards[first]:
                    if writer is not None:
                        yield _facts(writer)
                    writer = ShardWriter(work, int(shards[first]))
                writer.add(whole.slice(first, last - first))
            if writer is not None and writer.forms:
                forms, writer.forms = writer.forms, []
                yield pa.RecordBatch.from_pydict({"facts": pa.nulls(len(forms), pa.string()), "form": forms})
        if writer is not None:
            yield _facts(writer)

    return write


def _facts(writer: ShardWriter) -> Any:
    import pyarrow as pa

    facts = writer.close()
    forms = [None, *writer.forms]
    texts = pa.array([facts, *[None] * len(writer.forms)], pa.string())
    return pa.RecordBatch.from_pydict({"facts": texts, "form": pa.array(forms, pa.int64())})


def _look_alikes(written: Any) -> int:
    """Users whose id differs from another's only in its form."""
    alike = written.where("form is not null").groupBy("form").count().where("count > 1")
    return int(alike.selectExpr("coalesce(sum(count - 1), 0) found").collect()[0].found)


def _finished(
    work: _Work, corpus: SparkCorpus, facts: list[dict[str, Any]], look_alikes: int, source: VocabularySource
) -> PreparationSummary:
    census, counts, hashes = Census(), SplitCounts(), dict[str, str]()
    for each in facts:
        for name in MET:
            setattr(census, name, getattr(census, name) + each[name])
        counts += SplitCounts(**each["counts"])
        hashes |= each["hashes"]
    work.grouping.check_records([Path(str(corpus.table or "the files"))], census, sum(each["dated"] for each in facts))
    for shard in set(range(work.shards)) - {each["shard"] for each in facts}:  # a range of names that nobody has
        empty = split_paths(work.folder, work.shards, shard)
        with Splits(empty, work.grouping, work.vocabulary, work.needed):
            pass
        hashes |= {path.name: sha256_of(path) for path in empty.values()}
    for name in hashes:
        if not (work.folder / name).is_file():
            raise SottoError(
                f"{name} was written by another machine, and is not in {work.folder.parent}; name a folder with --out "
                "that all machines of Spark share"
            )
    for draft in work.folder.glob(".*"):  # of tasks that were stopped
        draft.unlink()
    summary = summarise(counts, census, work.grouping, work.vocabulary, look_alikes)
    return finish_store(work.folder, summary, work.grouping, work.vocabulary, source, hashes)
