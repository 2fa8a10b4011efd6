"""Streaming readers: any number of files, one record at a time, never a whole file.

A corpus is private: no error repeats any of it. Field names count as private too: the first line of a table may be a
person's text, and a JSON object may have people's names as keys. The schema of a parquet file is no person's text.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from sottovoce.data.words import tokenise
from sottovoce.errors import SettingError, SottoError, did_you_mean

Paths = str | Path | Iterable[str | Path]
Row = Mapping[str, Any]

JSON_LINES = (".jsonl", ".ndjson", ".json")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PLAIN_TEXT = (".txt", ".tokens")
PACKED = (".gz", ".zst")
MANY_BLANK = 64  # blank lines, after which more are expected: looking ahead costs as much as reading some
_BUFFER = 2**18
LONGEST_LINE = 64 * 2**20  # bytes: a longer line is a file without line ends, which may not fit in memory
_ALLOWED = (
    "use .jsonl, .json, .ndjson, .csv or .tsv (each also with .gz or .zst), or .parquet; plain text without users is "
    "for `sotto prepare --plain-text` and, as .txt or .tokens, for `sotto evaluate --public`"
)
_NOT_UTF8 = "text is not UTF-8; convert the file first, such as with iconv -f LATIN1 -t UTF-8"
_ONE_OBJECT = "put one whole object on each line (jq -c '.[]')"


def records(paths: Paths, user_field: str = "user", text_field: str = "text") -> Iterator[tuple[str, str]]:
    """The (user, text) pairs of a corpus, in order. Paths and formats are checked at the call, before any reading."""
    if user_field == text_field:
        raise SettingError(
            "{user_field.name} and {text_field.name} are both {}; name two different fields",
            repr(user_field),
            user_field=user_field,
            text_field=text_field,
        )
    files = corpus_files(paths)
    return (record for path in files for record in _read(path, user_field, text_field))


def pieces(paths: Paths, tokens: int) -> Iterator[tuple[str, str]]:
    """Plain text as records: each line under the name of its piece. A new piece begins after `tokens` tokens."""
    files = corpus_files(paths, plain_text=True)
    return (record for number, path in enumerate(files) for record in _pieces_of(path, number, tokens))


def _pieces_of(path: Path, number: int, tokens: int) -> Iterator[tuple[str, str]]:
    piece = held = 0
    with closing(_numbered_lines(path)) as text:
        for _, line in text:
            words = line.split()
            for start in range(0, len(words), tokens):  # a file may be one long line
                part = " ".join(words[start : start + tokens])
                if held >= tokens:
                    piece, held = piece + 1, 0
                held += len(tokenise(part)) + 2  # begin and end
                yield f"{number} {piece}", part


def corpus_files(paths: Paths, *, plain_text: bool = False) -> list[Path]:
    """The files of a corpus: each exists, is named once and, unless it is plain text, has a known format."""
    files = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not files:
        raise SottoError("the corpus names no file; give at least one path")
    seen: set[Path] = set()
    for path in files:
        _must_be_file(path)
        kind, packed = _format(path)
        known = kind in (*JSON_LINES, *DELIMITERS) or (kind == ".parquet" and not packed)
        if plain_text and known:
            raise SottoError(f"{path} holds records, not plain text; leave --plain-text out to keep its users apart")
        if not known and not plain_text:
            raise SottoError(f"{path} has the unknown format {kind + packed or '(no suffix)'!r}; {_ALLOWED}")
        if path.resolve() in seen:
            raise SottoError(f"{path} is named twice, its users' text would count double; name each file once")
        seen.add(path.resolve())
    return files


def is_plain_text(path: str | Path) -> bool:
    """By the name of the file."""
    return _format(Path(path))[0] in PLAIN_TEXT


def lines(path: str | Path) -> Generator[str, None, None]:
    """The lines of a UTF-8 file with their ends, unpacked if the name ends in .gz or .zst."""
    with _opened(Path(path)) as reader:
        yield from iter(reader.next, "")


def _numbered_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    """The lines that are not blank, with their numbers from 1."""
    blank = 0
    with _opened(path) as reader:
        while line := reader.next():
            if not line.isspace():
                blank = 0
                yield reader.number, line
                continue
            blank += 1
            if blank % MANY_BLANK == 0:
                reader.skip_blank()


class _LineReader:
    """The lines of an open file. `number` is the number of the last line."""

    def __init__(self, path: Path, stream: io.BufferedReader) -> None:
        self.number = 0
        self._path, self._stream = path, stream

    def next(self) -> str:
        """The next line with its end; empty at the end of the file."""
        raw = self._stream.readline(LONGEST_LINE + 1)
        if not raw:
            return ""
        self.number += 1
        if len(raw) > LONGEST_LINE:
            raise _error(self._path, self.number, f"a line of more than {LONGEST_LINE} bytes; {_ONE_OBJECT}")
        try:
            # Only the first line can begin with a byte order mark. A mark alone is a blank line.
            return raw.decode("utf-8-sig" if self.number == 1 else "utf-8") or "\n"
        except UnicodeDecodeError:
            raise _error(self._path, self.number, _NOT_UTF8) from None

    def skip_blank(self, blanks: bytes | None = None) -> None:
        """Skip all blank lines that come next: a small packed file can hold a billion of them."""
        while ahead := self._stream.peek():
            blank = ahead[: len(ahead) - len(ahead.lstrip(blanks))]
            whole = blank.rfind(b"\n") + 1
            if not whole:
                return
            self.number += blank.count(b"\n", 0, whole)
            self._stream.read(whole)
            if whole < len(ahead):
                return


@contextmanager
def _opened(path: Path) -> Generator[_LineReader, None, None]:
    _must_be_file(path)
    with _readable(path), _open(path) as stream:
        yield _LineReader(path, stream)


def _read(path: Path, user_field: str, text_field: str) -> Iterator[tuple[str, str]]:
    kind, _ = _format(path)
    if kind == ".parquet":
        rows = _parquet(path, user_field, text_field)
    elif kind in DELIMITERS:
        rows = _separated(path, DELIMITERS[kind], user_field, text_field)
    else:
        rows = _json_lines(path, user_field, text_field)
    # Files are closed here, also on error: a reader left to garbage collection may close after its file is gone.
    with closing(rows):
        for place, row in rows:
            try:
                user, text = row[user_field], row[text_field]
            except KeyError as error:
                raise _missing(path, place, str(error.args[0]), f"it has {_fields(len(row))}") from None
            if type(user) is int:
                user = str(user)
            if type(user) is not str or not user or user.isspace():
                needed = "every record needs a user, as text or a whole number"
                raise _error(path, place, f"the user in {user_field!r} is {_show(user)}; {needed}")
            if type(text) is not str:
                raise _error(path, place, f"the text in {text_field!r} is {_show(text)}; it must be a string")
            yield user, text


# Objects become tuples of pairs, in which repeated names are seen. `json.loads` would make a decoder for every line.
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def _json_lines(path: Path, *fields: str) -> Generator[tuple[int, Row], None, None]:
    with closing(_numbered_lines(path)) as text:
        for number, line in text:
            try:
                row = _DECODER.decode(line)
            except (ValueError, RecursionError) as error:
                column = error.colno if isinstance(error, json.JSONDecodeError) else None
                where = f"from column {column} on" if column else "too deep or long"
                raise _error(path, number, f"not JSON ({where}); {_ONE_OBJECT}") from None
            if not isinstance(row, tuple):
                raise _error(path, number, f"a JSON {type(row).__name__}, not an object; {_ONE_OBJECT}")
            _refuse_repeated(f"{path}:{number}", [name for name, _ in row], fields)
            yield number, dict(row)


def _separated(path: Path, delimiter: str, *fields: str) -> Generator[tuple[int, Row], None, None]:
    # The limit is one for the whole process, and the standard one is shorter than a long post.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    header: list[str] | None = None
    number, blank = 1, 0
    try:
        with _opened(path) as reader:
            for row in csv.reader(iter(reader.next, ""), delimiter=delimiter, strict=True):
                start, number = number, reader.number + 1
                if not row:  # between rows: within quotes, blank lines are text
                    blank += 1
                    if blank % MANY_BLANK == 0:
                        reader.skip_blank(b"\r\n")
                        number = reader.number + 1
                    continue
                blank = 0
                if header is None:
                    header = row
                    _refuse_repeated(f"{path}:{start}", header, fields)
                    for field in fields:
                        if field not in header:
                            named = f"its first line names {_fields(len(header))}"
                            raise _missing(path, start, field, f"{named}; a table begins with a line of names")
                elif len(row) > len(header):  # going on would cut the text at its first comma
                    found = f"{len(row)} fields where the header names {len(header)}"
                    raise _error(path, start, f"{found}; put quotes around fields that contain {delimiter!r}")
                else:
                    yield start, dict(zip(header, row, strict=False))
    except csv.Error as error:
        quotes = "is a quote not closed? Quote a field that contains quotes, and double those inside"
        raise _error(path, number, f"{_one_line(error)}; {quotes}") from None


def _parquet(path: Path, *fields: str) -> Generator[tuple[str, Row], None, None]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        # A buffer size makes the reader take a column piece by piece; without one it holds a whole row group.
        with _readable(path), parquet.ParquetFile(path, buffer_size=2**20) as file:
            schema = file.schema_arrow
            _refuse_repeated(path, schema.names, fields)
            for field in fields:
                if field not in schema.names:
                    listed = ", ".join(map(repr, schema.names[:12])) + (", …" if len(schema.names) > 12 else "")
                    found = f"it has {listed or 'no field at all'}{did_you_mean(field, schema.names)}"
                    raise _missing(path, "row 1", field, found)
                _must_be_text(path, field, schema.field(field).type, whole_numbers=field == fields[0])
            for batch in file.iter_batches(batch_size=1024, columns=list(fields)):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except UnicodeDecodeError:
        raise _error(path, f"after row {number}", _NOT_UTF8) from None
    except pa.ArrowException as error:
        kind = type(error).__name__
        raise SottoError(f"{path} is not a whole parquet file ({kind}); write or copy it again") from None


def _must_be_text(path: Path, field: str, kind: Any, *, whole_numbers: bool) -> None:
    """Refuse other types here: an error of a failed conversion would show a value."""
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    if not (text or types.is_null(value) or (whole_numbers and types.is_integer(value))):
        allowed = "strings or whole numbers" if whole_numbers else "strings"
        raise SottoError(f"{path}: the column {field!r} holds {value}; it must hold {allowed}")


def _format(path: Path) -> tuple[str, str]:
    """`a.jsonl.gz` -> (".jsonl", ".gz"), `a.csv` -> (".csv", "")."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in PACKED else ""
    return (suffixes[-1] if suffixes else ""), packed


def _open(path: Path) -> io.BufferedReader:
    match _format(path)[1]:
        case ".gz":
            return io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb")), _BUFFER)
        case ".zst":
            import pyarrow as pa

            return io.BufferedReader(pa.input_stream(str(path), compression="zstd"), _BUFFER)
        case _:
            return cast(io.BufferedReader, path.open("rb", _BUFFER))


def _must_be_file(path: Path) -> None:
    if path.is_dir():
        raise SottoError(f"{path} is a folder; name the files in it")
    if not path.exists():
        raise SottoError(f"{path} does not exist; check the path")


@contextmanager
def _readable(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        # Python's own message has the first bytes of the file in it.
        reason = "not gzip, or damaged" if isinstance(error, gzip.BadGzipFile) else _one_line(error)
        raise SottoError(f"cannot read {path} ({reason}); check that it is whole and yours to read") from None


def _error(path: Path, place: int | str, what: str) -> SottoError:
    return SottoError(f"{path}:{place}: {what}")


def _missing(path: Path, place: int | str, field: str, found: str) -> SottoError:
    template = "{}:{}: no field {!r}; {}; name the fields with {user_field.name} and {text_field.name}"
    return SettingError(template, path, place, field, found, user_field=None, text_field=None)


def _fields(count: int) -> str:
    """Their number, not their names, which may be private."""
    return f"{count or 'no'} field{'' if count == 1 else 's'}, whose names are not shown: they may be private"


def _refuse_repeated(place: Path | str, names: Sequence[str], fields: Iterable[str]) -> None:
    """With two values under one name, the user or the text is ambiguous. Names that differ in case are different."""
    for field in fields:
        if names.count(field) > 1:
            raise SottoError(f"{place}: the field {field!r} is there more than once; keep or rename one of them")


def _show(value: object) -> str:
    """A value in an error, without its contents: a corpus is private."""
    if value is None or isinstance(value, str):
        return "null" if value is None else "empty"
    return f"a value of type {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
