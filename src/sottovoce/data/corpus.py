"""Streaming readers: any number of files, one record at a time, never a file whole."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from sottovoce.data.tokens import tokenise
from sottovoce.errors import SottoError, did_you_mean

JSON_LINES = (".jsonl", ".ndjson", ".json")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PLAIN_TEXT = (".txt", ".tokens")
PACKED = (".gz", ".zst")
# A longer line is no record but a whole file without line ends, which would not fit in memory.
LONGEST_LINE = 64 * 2**20
_ALLOWED = (
    "use .jsonl, .json, .ndjson, .csv or .tsv (each also with .gz or .zst), or .parquet; text that is nobody's is for "
    "`sotto prepare --plain-text` and, as .txt or .tokens, for `sotto evaluate --public`"
)


def records(
    paths: str | Path | Iterable[str | Path], user_field: str = "user", text_field: str = "text"
) -> Iterator[tuple[str, str]]:
    """The (user, text) pairs of a corpus, in order. Paths and formats are checked at the call, before any reading."""
    if user_field == text_field:
        raise SottoError(f"user_field and text_field are both {user_field!r}; name two different fields")
    files = corpus_files(paths)
    return (record for path in files for record in _read(path, user_field, text_field))


def pieces(paths: str | Path | Iterable[str | Path], tokens: int) -> Iterator[tuple[str, str]]:
    """Plain text of nobody's as records: the lines, under a name that changes when it has so many tokens."""
    files = corpus_files(paths, plain_text=True)
    return (record for number, path in enumerate(files) for record in _pieces_of(path, number, tokens))


def _pieces_of(path: Path, number: int, tokens: int) -> Iterator[tuple[str, str]]:
    piece = held = 0
    with closing(lines(path)) as text:
        for line in text:
            words = line.split()
            for start in range(0, len(words), tokens):  # a file may be one long line
                part = " ".join(words[start : start + tokens])
                if held >= tokens:
                    piece, held = piece + 1, 0
                held += len(tokenise(part)) + 2  # begin and end
                yield f"{number} {piece}", part


def corpus_files(paths: str | Path | Iterable[str | Path], *, plain_text: bool = False) -> list[Path]:
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
    """By its name, where nobody says what a file holds."""
    return _format(Path(path))[0] in PLAIN_TEXT


def lines(path: str | Path) -> Generator[str, None, None]:
    """The lines of a UTF-8 file with their ends, unpacked on the way if the name ends in .gz or .zst."""
    path = Path(path)
    _must_be_file(path)
    number = 0
    with _readable(path), _open(path) as stream:
        while raw := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(raw) > LONGEST_LINE:
                raise SottoError(
                    f"{path}:{number}: a line of more than {LONGEST_LINE} bytes; put one record on a line (jq -c '.[]')"
                )
            try:
                # Only the first line can carry a byte order mark.
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise SottoError(f"{path}:{number}: {_NOT_UTF8}") from error
            yield line


_NOT_UTF8 = "text is not UTF-8; convert the file first, for example: iconv -f LATIN1 -t UTF-8"


def _read(path: Path, user_field: str, text_field: str) -> Iterator[tuple[str, str]]:
    kind, _ = _format(path)
    if kind == ".parquet":
        rows = _parquet(path, user_field, text_field)
    elif kind in DELIMITERS:
        rows = _separated(path, DELIMITERS[kind])
    else:
        rows = _json_lines(path)
    # Files are closed here, also on error: a reader left to garbage collection may close after its file is gone.
    with closing(rows):
        for place, row in rows:
            try:
                user, text = row[user_field], row[text_field]
            except KeyError as error:
                raise _missing(f"{path}:{place}", str(error.args[0]), row) from None
            if type(user) is int:
                user = str(user)
            if type(user) is not str or not user or user.isspace():
                raise SottoError(
                    f"{path}:{place}: the user in {user_field!r} is {_show(user)}; "
                    "every record needs a user, as text or a whole number"
                )
            if type(text) is not str:
                raise SottoError(f"{path}:{place}: the text in {text_field!r} is {_show(text)}; it must be a string")
            yield user, text


def _json_lines(path: Path) -> Generator[tuple[int, Mapping[str, Any]], None, None]:
    with closing(lines(path)) as text:
        for number, line in enumerate(text, 1):
            if line.isspace():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SottoError(
                    f"{path}:{number}: not JSON ({_one_line(error)}); put one whole object on each line"
                ) from error
            if not isinstance(row, dict):
                raise SottoError(
                    f"{path}:{number}: a JSON {type(row).__name__}, not an object; "
                    "put one object on a line (jq -c '.[]')"
                )
            yield number, row


def _separated(path: Path, delimiter: str) -> Generator[tuple[int, Mapping[str, Any]], None, None]:
    # The limit is one for the whole process, and the standard one is shorter than a long post.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    header: list[str] | None = None
    number = 1
    try:
        with closing(lines(path)) as text:
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            for row in reader:
                number, start = reader.line_num + 1, number
                if not row:
                    continue
                if header is None:
                    header = row
                    continue
                if len(row) > len(header):
                    # Going on would cut the text at its first comma without a word.
                    raise SottoError(
                        f"{path}:{start}: {len(row)} fields where the header names {len(header)}; "
                        f"put quotes around fields that contain {delimiter!r}"
                    )
                yield start, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise SottoError(
            f"{path}:{number}: {_one_line(error)}; put quotes around the field and double the quotes inside it"
        ) from error


def _parquet(path: Path, user_field: str, text_field: str) -> Generator[tuple[str, Mapping[str, Any]], None, None]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        # A buffer size makes the reader take a column piece by piece; without one it holds a whole row group.
        with _readable(path), parquet.ParquetFile(path, buffer_size=2**20) as file:
            names = file.schema_arrow.names
            for field in (user_field, text_field):
                if field not in names:
                    raise _missing(f"{path}:row 1", field, names)
            for batch in file.iter_batches(batch_size=1024, columns=[user_field, text_field]):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except UnicodeDecodeError as error:
        raise SottoError(f"{path}:after row {number}: {_NOT_UTF8}") from error
    except pa.ArrowException as error:
        raise SottoError(f"{path} is not a whole parquet file ({_one_line(error)}); write or copy it again") from error


def _format(path: Path) -> tuple[str, str]:
    """`a.jsonl.gz` -> (".jsonl", ".gz"), `a.csv` -> (".csv", "")."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in PACKED else ""
    return (suffixes[-1] if suffixes else ""), packed


def _open(path: Path) -> BinaryIO:
    match _format(path)[1]:
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".zst":
            import pyarrow as pa

            return cast(BinaryIO, io.BufferedReader(pa.input_stream(str(path), compression="zstd"), 2**20))
        case _:
            return path.open("rb", 2**20)


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
        raise SottoError(
            f"cannot read {path} ({_one_line(error)}); check that it is whole and yours to read"
        ) from error


def _missing(place: str, field: str, names: Iterable[str]) -> SottoError:
    names = list(names)
    listed = ", ".join(map(repr, names[:12])) + (", …" if len(names) > 12 else "")
    return SottoError(
        f"{place}: no field {field!r}; it has {listed or 'no field at all'}{did_you_mean(field, names)}; "
        "name the fields with user_field and text_field"
    )


def _show(value: object) -> str:
    """A value for a message: short, and of a text only that it is empty, since a corpus is private."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "empty"
    return f"a value of type {type(value).__name__}"


def _one_line(error: BaseException) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
