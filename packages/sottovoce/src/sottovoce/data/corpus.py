"""Text with its owners, one record at a time: from files, folders, tables or records in memory.

A corpus is private: no error repeats any of it. Field names count as private too: the first line of a table may be a
person's text, and a JSON object may have people's names as keys. The schema of parquet or Arrow is no person's text.
"""

from __future__ import annotations

import ast
import csv
import json
import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from sottovoce.data import lines
from sottovoce.data.census import Census
from sottovoce.data.lines import ONE_OBJECT, PACKED, LineReader, format_of, must_be_file, one_line, opened, readable
from sottovoce_evidence.errors import SettingError, SottoError, count_of, did_you_mean

Row = Mapping[str, Any]
# The owners and the text; and what is known of the writer, where that is read.
Record = tuple[tuple[str, ...], str] | tuple[tuple[str, ...], str, str | None]
# Paths, folders and patterns; a table (pandas, polars, pyarrow, datasets); or records: (user, text) or mappings.
Corpus = str | Path | Iterable[Any]

JSON_LINES = (".jsonl", ".ndjson", ".json")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PLAIN_TEXT = (".txt", ".tokens")
_SNIFFED = (",", ";", "\t", "|")
_WILD = "*?["
_ALLOWED = (
    "use .jsonl, .json, .ndjson, .csv or .tsv (each also with .gz, .zst, .bz2 or .xz), or .parquet; plain text without "
    "users is for `sotto prepare --plain-text` and, as .txt or .tokens, for `sotto evaluate --public`"
)
_LONGEST_LIST = 10_000  # letters of a field that may be a list of owners


class Dump(Protocol):
    """A published dump that has a layout of its own: its fields, who counts, and in which order."""

    def holds(self, path: Path) -> bool:
        """Is a file of a folder a part of it, by its name?"""
        ...

    def records(self, files: list[Path], census: Census) -> Iterator[Record]: ...


@dataclass(frozen=True)
class Reading:
    """Which fields name the owners and hold the text, and how tables are written, where that is given."""

    users: tuple[str, ...] = ("user",)
    text: str = "text"
    delimiter: str | None = None
    encoding: str | None = None
    dump: Dump | None = None  # reads the files in place of all this
    context: str | None = None  # the field of what is known of a writer; a record may lack it

    def __post_init__(self) -> None:
        if self.text in self.users:
            raise SettingError(
                "{user_field.name} and {text_field.name} are both {}; name two different fields",
                repr(self.text),
                user_field=self.text,
                text_field=self.text,
            )
        if self.context in (*self.users, self.text):
            text = "{context_field!r} names the user or the text already; name another field, or leave it out"
            raise SettingError(text, context_field=self.context)
        if not self.users or len(set(self.users)) < len(self.users):
            raise SettingError("{user_field.name} must name one field or several different ones", user_field=self.users)
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise SettingError(
                "{delimiter!r} must be one character other than a quote or a line end, such as ';' or tab",
                delimiter=self.delimiter,
            )
        if not lines.known_encoding(self.encoding):
            text = "{encoding!r} is not known; use a name such as utf-8, utf-16 or latin-1"
            raise SettingError(text, encoding=self.encoding)

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.users, self.text, *((self.context,) if self.context else ()))


AS_USUAL = Reading()


@dataclass(frozen=True)
class InMemory:
    """A table or records of a Python program. `once`: they can be read only once, such as those of a generator."""

    given: Any
    kind: str
    once: bool = False

    def __str__(self) -> str:
        return f"the {self.kind}"

    @property
    def size(self) -> int:
        return getattr(self.given, "nbytes", 2**31)


Source = Path | InMemory


def sources(corpus: Corpus, *, plain_text: bool = False, dump: Dump | None = None) -> list[Source]:
    """What a corpus is read from. Files exist, are named once and, unless they are plain text, have a known format."""
    kind = _Kind(plain_text, dump)
    if isinstance(corpus, (str, Path)):
        return _files([corpus], kind)
    if not hasattr(corpus, "__arrow_c_stream__"):
        if not isinstance(corpus, Iterable) or isinstance(corpus, (Mapping, bytes)):
            kind = type(corpus).__name__
            raise SottoError(f"the corpus is of type {kind}; give paths, a table, or records (user, text)")
        once, records = isinstance(corpus, Iterator), iter(corpus)
        first = next(records, None)
        if first is None:
            raise SottoError("the corpus names no file; give at least one path")
        if isinstance(first, (str, Path)) and not hasattr(corpus, "columns"):
            return _files([first, *records], kind)
        if once:
            return _in_memory(InMemory(chain([first], records), type(corpus).__name__, True), kind)
    return _in_memory(InMemory(corpus, type(corpus).__name__, isinstance(corpus, Iterator)), kind)


@dataclass(frozen=True)
class _Kind:
    """What files are expected to hold."""

    plain_text: bool
    dump: Dump | None

    def holds(self, path: Path) -> bool:
        """Is a file of a folder one of them?"""
        return self.dump.holds(path) if self.dump else _holds_records(path) != self.plain_text


def _in_memory(source: InMemory, kind: _Kind) -> list[Source]:
    if kind.plain_text or kind.dump:
        what = "plain text" if kind.plain_text else "a dump"
        raise SottoError(f"{what} is read from files, not from {source.kind}; give paths")
    return [source]


def _files(paths: Iterable[str | Path], expected: _Kind) -> list[Source]:
    files = [file for path in paths for file in _expanded(Path(path), expected)]
    seen: set[Path] = set()
    for path in files:
        must_be_file(path)
        kind, packed = format_of(path)
        known = _holds_records(path)
        if expected.plain_text and known:
            raise SottoError(f"{path} holds records, not plain text; leave --plain-text out to keep its users apart")
        if not (known or expected.plain_text or expected.dump):
            raise SottoError(f"{path} has the unknown format {kind + packed or '(no suffix)'!r}; {_ALLOWED}")
        if path.resolve() in seen:
            raise SottoError(f"{path} is named twice, its users' text would count double; name each file once")
        seen.add(path.resolve())
    return list(files)


def _expanded(path: Path, expected: _Kind) -> list[Path]:
    """The files of a folder or a pattern, in order. Hidden ones, and in a folder those of other formats, are not."""
    if path.is_dir():
        found = [file for file in path.rglob("*") if expected.holds(file)]
    elif not path.exists() and any(letter in str(path) for letter in _WILD):
        start, pattern = Path(path.anchor), path
        found, path = list(start.glob(str(path.relative_to(start)))), start
        if not found:
            raise SottoError(f"{pattern} matches no file; check the pattern")
    else:
        return [path]
    files = [f for f in found if f.is_file() and not any(part.startswith(".") for part in f.relative_to(path).parts)]
    if not files:
        raise SottoError(f"no file to read in {path}; {_ALLOWED}")
    return sorted(files)


def _holds_records(path: Path) -> bool:
    kind, packed = format_of(path)
    return kind in (*JSON_LINES, *DELIMITERS) or (kind == ".parquet" and not packed)


def is_plain_text(path: str | Path) -> bool:
    """By the name of the file."""
    return format_of(Path(path))[0] in PLAIN_TEXT


def size_of(source: Source) -> int:
    """The bytes of text in a source, about: packed text grows about fivefold."""
    if isinstance(source, InMemory):
        return source.size
    return source.stat().st_size * (5 if source.suffix.lower() in (*PACKED, ".parquet") else 1)


def records(corpus: list[Source], reading: Reading = AS_USUAL, census: Census | None = None) -> Iterator[Record]:
    """The owners and the text of each record, in order."""
    counted = census or Census()
    if reading.dump is not None:
        return reading.dump.records([source for source in corpus if isinstance(source, Path)], counted)
    return (record for source in corpus for record in _read(source, reading, counted))


@dataclass(frozen=True)
class Pieces:
    """How plain text is cut: a new piece begins after `tokens` tokens, by `count`, which counts begin and end, too."""

    tokens: int
    count: Callable[[str], int]
    encoding: str | None = None
    whole: bool = False  # nothing is cut off: a piece may end before it is full

    def of(self, corpus: list[Source], census: Census | None = None) -> Iterator[Record]:
        """Plain text as records: each line under the name of its piece."""
        counted = census or Census()
        for number, path in enumerate(path for path in corpus if isinstance(path, Path)):
            piece = held = 0
            with closing(_numbered_lines(path, self.encoding, counted)) as text:
                for _, line in text:
                    words = line.split()
                    chunks = (words[start : start + self.tokens] for start in range(0, len(words), self.tokens))
                    for part, tokens in chain.from_iterable(map(self._parts, chunks)):
                        if held >= self.tokens or (self.whole and held + tokens > self.tokens and held):
                            piece, held = piece + 1, 0
                        held += tokens
                        yield (f"{number} {piece}",), part

    def _parts(self, words: list[str]) -> Iterator[tuple[str, int]]:
        """Some words, halved until they are not many more tokens than a piece has: a file may be one long line."""
        text = " ".join(words)
        tokens, half = self.count(text), len(words) // 2
        if tokens <= (self.tokens if self.whole else self.tokens * 5 // 4 + 2) or not half:
            yield text, tokens
        else:
            yield from self._parts(words[:half])
            yield from self._parts(words[half:])


def _numbered_lines(path: Path, encoding: str | None, census: Census) -> Generator[tuple[int, str], None, None]:
    """The lines that are not blank, with their numbers from 1."""
    with opened(path, encoding, position=census.position) as reader:
        yield from numbered(reader)


def numbered(reader: LineReader) -> Generator[tuple[int, str], None, None]:
    """The lines of a reader that are not blank, with their numbers."""
    while line := reader.next_filled():
        yield reader.number, line


def _read(source: Source, reading: Reading, census: Census) -> Iterator[Record]:
    kind = "" if isinstance(source, InMemory) else format_of(source)[0]
    if isinstance(source, InMemory):
        rows = _in_program(source, reading)
    elif kind == ".parquet":
        rows = _parquet(source, reading, census)
    elif kind in DELIMITERS:
        rows = _separated(source, DELIMITERS[kind], reading, census)
    else:
        rows = json_rows(source, _numbered_lines(source, reading.encoding, census), reading)
    yield from owned(source, rows, reading)


def owned(source: Source, rows: Generator[tuple[int | str, Row], None, None], reading: Reading) -> Iterator[Record]:
    """The owners and the text of each row. A row without them is refused."""
    in_table = not isinstance(source, InMemory) and format_of(source)[0] in DELIMITERS
    # Files are closed here, also on error: a reader left to garbage collection may close after its file is gone.
    with closing(rows):
        for place, row in rows:
            try:
                found = [(field, row[field]) for field in reading.users]
                text = row[reading.text]
            except KeyError as error:
                raise _missing(source, place, str(error.args[0]), f"it has {_fields(len(row))}") from None
            try:
                owners = _owners(found, in_table)
            except _NobodysRecord as error:
                others = _more_of_nobody(rows, reading) if in_table else ""
                raise SottoError(f"{source}:{place}: {error}{others}; {_NEEDS_A_USER}") from None
            if type(text) is not str:
                raise _error(source, place, f"the text in {reading.text!r} is {show_value(text)}; it must be a string")
            if reading.context is None:
                yield owners, text
            else:
                value = row.get(reading.context)
                yield owners, text, str(value) if type(value) in (str, int) else None


_NEEDS_A_USER = (
    "every record needs a user, as text or a whole number; remove all records without one, or give each a user"
)


class _NobodysRecord(SottoError):
    """A record without a user."""


def _more_of_nobody(rows: Iterator[tuple[int | str, Row]], reading: Reading) -> str:
    """How many of the other rows of a table have no user: who must clean it wants to know. Unsaid if one is damaged."""
    count = 0
    try:
        for _, row in rows:
            try:
                _owners([(field, row[field]) for field in reading.users], in_table=True)
            except _NobodysRecord:
                count += 1
    except SottoError:
        return ""
    return f", as in {count_of(count, 'other row')} of this file" if count else ""


def _owners(found: Sequence[tuple[str, object]], in_table: bool) -> tuple[str, ...]:
    """The different owners of one record, in order. One of several fields may be empty, but not all."""
    owners: list[str] = []
    for field, value in found:
        listed = _listed(value) if in_table else value
        for user in listed if isinstance(listed, (list, tuple)) else [listed]:
            name = str(user) if type(user) is int else user
            if type(name) is str and name and not name.isspace():
                owners.append(name)
            elif len(found) == 1 or not (name is None or isinstance(name, str)):
                raise _NobodysRecord(f"the user in {field!r} is {show_value(user)}")
    if not owners:
        fields = " and ".join(repr(field) for field, _ in found)
        raise _NobodysRecord(f"no user in {fields}")
    return tuple(dict.fromkeys(owners))


def _listed(value: object) -> object:
    """A field of a table that holds a list, as JSON or as Python writes it; any other field as it is."""
    if not (isinstance(value, str) and value[:1] == "[" and value[-1:] == "]" and len(value) <= _LONGEST_LIST):
        return value
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and all(type(each) in (str, int) for each in found):
            return found
    return value


# Objects become tuples of pairs, in which repeated names are seen. `json.loads` would make a decoder for every line.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def json_rows(
    path: Path, given: Generator[tuple[int, str], None, None], reading: Reading
) -> Generator[tuple[int, Row], None, None]:
    """The objects of numbered lines."""
    with closing(given) as text:
        for number, line in text:
            try:
                row = _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                column = error.colno if isinstance(error, json.JSONDecodeError) else None
                where = f"from column {column} on" if column else "too deep or long"
                raise _error(path, number, f"not JSON ({where}); {ONE_OBJECT}") from None
            if not isinstance(row, tuple):
                raise _error(path, number, f"a JSON {type(row).__name__}, not an object; {ONE_OBJECT}")
            _refuse_repeated(f"{path}:{number}", [name for name, _ in row], reading.fields)
            yield number, dict(row)


def _separated(path: Path, usual: str, reading: Reading, census: Census) -> Generator[tuple[int, Row], None, None]:
    # The limit is one for the whole process, and the standard one is shorter than a long post.
    csv.field_size_limit(max(csv.field_size_limit(), lines.LONGEST_LINE))
    number = 1
    try:
        with opened(path, reading.encoding, guess=True, position=census.position) as reader:
            first = reader.next_filled()
            number = reader.number
            delimiter = reading.delimiter or _delimiter(first, usual, reading.fields)
            rows = csv.reader(chain([first], iter(reader.next, "")) if first else (), delimiter=delimiter, strict=True)
            header: list[str] | None = None
            blank = 0
            for row in rows:
                start, number = number, reader.number + 1
                if not any(map(str.strip, row)):  # a blank line, or empty cells; within quotes, blank lines are text
                    blank += 1
                    if blank % lines.MANY_BLANK == 0:
                        reader.skip_blank(b"\r\n")
                        number = reader.number + 1
                    continue
                blank = 0
                if header is None:
                    header = _header(path, start, row, reading.fields)
                elif len(row) > len(header):  # going on would cut the text at its first comma
                    found = f"{len(row)} fields where the header names {len(header)}"
                    raise _error(path, start, f"{found}; put quotes around fields that contain {delimiter!r}")
                elif len(row) < len(header) and (
                    lost := {*reading.users, reading.text}.intersection(header[len(row) :])
                ):
                    found = f"{count_of(len(row), 'field')} where the header names {len(header)}"
                    raise _error(path, start, f"no {min(lost)!r}: {found}; complete this line, or remove it")
                else:
                    yield start, dict(zip(header, row, strict=False))
            census.guessed_lines += reader.guessed
    except csv.Error as error:
        what = one_line(error)
        cure = "is a quote not closed? Quote a field that contains quotes, and double those inside"
        if "new-line" in what:  # its own words are for programmers
            what = "a carriage return within a line"
            cure = "is this a table, as text? Quote a field that holds line ends, and end lines by a line feed"
        raise _error(path, number, f"{what}; {cure}") from None


def _delimiter(first: str, usual: str, fields: Sequence[str]) -> str:
    """The delimiter with which the first line names the fields; else the one with which it names most."""
    headers = {each: _names(next(csv.reader([first], delimiter=each), [])) for each in (usual, *_SNIFFED)}
    return max(headers, key=lambda each: (set(fields) <= set(headers[each]), len(headers[each])))


def _header(path: Path, place: int, row: Sequence[str], fields: Sequence[str]) -> list[str]:
    header = _names(row)
    _refuse_repeated(f"{path}:{place}", header, fields)
    for field in fields:
        if field not in header:
            named = f"its first line names {_fields(len(header))}"
            shown = f" (see `head -{place} {shlex.quote(str(path))}`)"
            look = "" if format_of(path)[1] else shown
            split = "; is {delimiter.name} right?" if len(header) == 1 else ""
            raise _missing(path, place, field, f"{named}{look}; a table begins with a line of names", split)
    return header


def _names(row: Iterable[str]) -> list[str]:
    return [name.strip() for name in row]


def _parquet(path: Path, reading: Reading, census: Census) -> Generator[tuple[str, Row], None, None]:
    with closing(parquet_batches(path, reading, census)) as batches:
        yield from table_rows(path, batches)


def parquet_batches(path: Path, reading: Reading, census: Census) -> Generator[Any, None, None]:
    """The columns of a parquet file, some rows at a time."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # A buffer size makes the reader take a column piece by piece; without one it holds a whole row group.
        with readable(path), parquet.ParquetFile(path, buffer_size=2**20) as file, census.position.within(path, int):
            _check_schema(path, file.schema_arrow, reading)
            yield from file.iter_batches(batch_size=1024, columns=list(reading.fields))
    except pa.ArrowException as error:
        kind = type(error).__name__
        raise SottoError(f"{path} is not a whole parquet file ({kind}); write or copy it again") from None


def _in_program(source: InMemory, reading: Reading) -> Generator[tuple[str, Row], None, None]:
    given = source.given
    if hasattr(given, "__arrow_c_stream__"):
        yield from _arrow(source, reading)
    elif hasattr(given, "columns"):  # a table of a library without Arrow's interface, such as pandas before 2.2
        _refuse_missing(source, list(given.columns), reading.fields)
        columns = zip(*(given[field] for field in reading.fields), strict=True)
        yield from ((f"row {n}", dict(zip(reading.fields, row, strict=True))) for n, row in enumerate(columns, 1))
    else:
        for number, record in enumerate(given, 1):
            if isinstance(record, (tuple, list)) and len(record) == 2 and len(reading.users) == 1:
                yield f"record {number}", {reading.users[0]: record[0], reading.text: record[1]}
            elif isinstance(record, Mapping):
                yield f"record {number}", record
            else:
                needed = "give (user, text) or a mapping with both fields"
                raise _error(source, f"record {number}", f"a {type(record).__name__}; {needed}")


def _arrow(source: InMemory, reading: Reading) -> Generator[tuple[str, Row], None, None]:
    with closing(arrow_batches(source, reading)) as batches:
        yield from table_rows(source, batches)


def arrow_batches(source: InMemory, reading: Reading) -> Generator[Any, None, None]:
    """The columns of a table of a program, some rows at a time."""
    import pyarrow as pa

    try:
        with pa.RecordBatchReader.from_stream(source.given) as batches:
            _check_schema(source, batches.schema, reading)
            for batch in batches:
                chosen = batch.select(list(reading.fields))
                yield from (chosen.slice(start, 1024) for start in range(0, chosen.num_rows, 1024))
    except pa.ArrowException as error:
        found = f"cannot be read as a table of text ({type(error).__name__})"
        raise SottoError(f"{source} {found}; every column must hold values of one type") from None


def _check_schema(source: Source, schema: Any, reading: Reading) -> None:
    _refuse_repeated(str(source), schema.names, reading.fields)
    _refuse_missing(source, schema.names, reading.fields)
    for field in reading.fields:
        _must_be_text(source, field, schema.field(field).type, owners=field != reading.text)


def table_rows(source: Source, batches: Iterable[Any], number: int = 0) -> Generator[tuple[str, Row], None, None]:
    """The rows of columns, of which `number` came before."""
    try:
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except UnicodeDecodeError:
        raise _error(source, f"after row {number}", "text is not UTF-8; write the table again from text") from None


def _refuse_missing(source: Source, names: Sequence[str], fields: Iterable[str]) -> None:
    for field in fields:
        if field not in names:
            listed = ", ".join(map(repr, names[:12])) + (", …" if len(names) > 12 else "")
            found = f"it has {listed or 'no field at all'}{did_you_mean(field, map(str, names))}"
            raise _missing(source, "row 1", field, found)


def _must_be_text(source: Source, field: str, kind: Any, *, owners: bool) -> None:
    """Refuse other types here: an error of a failed conversion would show a value."""
    from pyarrow import types

    listed = owners and (types.is_list(kind) or types.is_large_list(kind))
    value = kind.value_type if types.is_dictionary(kind) or listed else kind
    text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    if not (text or types.is_null(value) or (owners and types.is_integer(value))):
        allowed = "strings or whole numbers, or lists of them" if owners else "strings"
        raise SottoError(f"{source}: the column {field!r} holds {value}; it must hold {allowed}")


def _error(source: Source, place: int | str, what: str) -> SottoError:
    return SottoError(f"{source}:{place}: {what}")


def _missing(source: Source, place: int | str, field: str, found: str, hint: str = "") -> SottoError:
    options = "{user_field.name}, {text_field.name} or {context_field.name}"
    template = f"{{}}:{{}}: no field {{!r}}; {{}}; name it with {options}{hint}"
    settings = dict.fromkeys(("user_field", "text_field", "context_field", "delimiter"))
    return SettingError(template, source, place, field, found, **settings)


def _fields(count: int) -> str:
    """Their number, not their names, which may be private."""
    if count == 1:
        return "1 field, whose name is not shown: it may be private"
    return f"{count or 'no'} fields, whose names are not shown: they may be private"


def _refuse_repeated(place: str, names: Sequence[str], fields: Iterable[str]) -> None:
    """With two values under one name, the user or the text is ambiguous. Names that differ in case are different."""
    for field in fields:
        if names.count(field) > 1:
            raise SottoError(f"{place}: the field {field!r} is there more than once; keep or rename one of them")


def show_value(value: object) -> str:
    """A value in an error, without its contents: a corpus is private."""
    if value is None or isinstance(value, str):
        return "null" if value is None else "empty"
    return f"a value of type {type(value).__name__}"
