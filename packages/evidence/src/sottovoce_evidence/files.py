"""Facts in files: JSON that is read by types, and files of others that are opened with care."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

CHECKSUM = "checksum"
_BLANK = "0" * 64
# The most bytes of a file that is read as a whole. Each is far more than such a file has.
FACTS, TOKENS, LINES = 10**7, 2**28, 10**9  # a JSON or TOML file; a tokenizer; lines, one a round or charge
LARGEST = 2**63 - 1  # of whole numbers in a file
Json = dict[str, Any]  # a parsed JSON object
JsonNumber = float | str | None
INFINITY = "infinity"


def to_json_number(value: float) -> JsonNumber:
    """A number for a JSON file, which has neither infinity (written "infinity") nor NaN (written null)."""
    return value if math.isfinite(value) else None if math.isnan(value) else INFINITY if value > 0 else f"-{INFINITY}"


def from_json_number(value: JsonNumber, *, null: float = math.nan) -> float:
    """Read what `to_json_number` wrote. Of a field that has null for infinity, `null` is `math.inf`."""
    if isinstance(value, bool) or (isinstance(value, str) and value not in (INFINITY, f"-{INFINITY}")):
        raise ValueError(f"{value!r} is not a number")
    return null if value is None else float(value)


def as_json(value: Any) -> Any:
    """Plain JSON values of a dataclass and all that it holds."""
    if hasattr(value, "to_json"):  # facts, or an event of a ledger
        return value.to_json()
    if is_dataclass(value):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return to_json_number(value) if isinstance(value, float) else value


@dataclass(frozen=True)
class Facts:
    """A dataclass with a form in JSON, read by the types of its fields.

    A `sparse` class writes a field whose default is None, False or () only where it has another value.
    """

    _sparse: ClassVar[bool] = False

    def __init_subclass__(cls, *, sparse: bool = False) -> None:
        cls._sparse = sparse

    def to_json(self) -> Json:
        written = [(each, getattr(self, each.name)) for each in fields(self)]
        return {each.name: as_json(value) for each, value in written if not self._is_left_out(each, value)}

    def _is_left_out(self, field: Field[Any], value: Any) -> bool:
        return self._sparse and value == field.default and (value is None or value is False or value == ())

    @classmethod
    def from_json(cls, values: Json) -> Self:
        """Of a JSON object, what there are fields for. A TypeError where one that has no default is missing."""
        kinds = _kinds(cls)
        known = [each for each in fields(cls) if each.name in values]
        nulls = {each.name: each.metadata.get("null", math.nan) for each in known}
        return cls(**{name: _read(kinds[name], values[name], null) for name, null in nulls.items()})


_kinds = cache(get_type_hints)
_NAMES = {int: "a whole number", str: "a text", bool: "true or false"}


def _read(kind: Any, value: Any, null: float = math.nan) -> Any:
    """A JSON value as the type of its field says: facts, tuples, and numbers, of which JSON has no infinity."""
    parts = get_args(kind)
    if NoneType in parts:
        return None if value is None else _read(parts[0], value)
    if get_origin(kind) is tuple:
        each = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(_read(one, item) for one, item in zip(each, value, strict=True))
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if get_origin(kind) is Literal:
        if value not in parts:
            raise ValueError(f"{value!a:.80} is none of {', '.join(map(str, parts))}")
        return value
    if kind == dict[str, str] and not (isinstance(value, dict) and all(isinstance(one, str) for one in value.values())):
        raise TypeError(f"{value!a:.80} is no table of texts")
    if kind in _NAMES and type(value) is not kind:
        raise TypeError(f"{value!a:.80} is not {_NAMES[kind]}")
    return from_json_number(value, null=null) if kind is float else value  # pyrefly: ignore


def open_plain(path: Path, most: float = math.inf) -> BufferedReader:
    """Open a file that somebody else may have written. Its kind and size are looked at before its contents.

    A pipe would keep its reader waiting for ever, and a file with a hole of gigabytes would fill the memory.

    Raises:
        OSError: it is no file, has more than `most` bytes, or cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_plain(path, os.fstat(descriptor), most)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_plain(path: Path, most: float = math.inf) -> Path:
    """The same path, for a library that opens it: see `open_plain`."""
    _check_plain(path, path.stat(), most)
    return path


def _check_plain(path: Path, found: os.stat_result, most: float) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, and not a file", str(path))
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and such a file at most {most:,}", str(path))


def read_plain(path: Path, most: int = FACTS) -> bytes:
    """All of a file that somebody else may have written: see `open_plain`."""
    with open_plain(path, most) as file:
        return file.read(most + 1)


def sha256_of(path: Path, most: float = math.inf) -> str:
    """The hash of a file of at most `most` bytes, read piece by piece: see `open_plain`."""
    with open_plain(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(contents: bytes | str) -> Any:
    """The value of a JSON text that has one meaning, or a ValueError.

    It refuses a name that is twice in one object, NaN, infinity, and whole numbers beyond 64 bits.
    """
    try:
        return json.loads(
            contents, object_pairs_hook=_once, parse_constant=_no_number, parse_int=_whole, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("nested too deep") from None


def _once(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twice!r} is there twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _whole(text: str) -> int:
    if len(text) > len(str(-LARGEST)) or abs(int(text)) > LARGEST:
        raise ValueError(f"a whole number is beyond ±{LARGEST:g}")
    return int(text)


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError("a number is too large")
    return value


def sealed(value: Json) -> Json:
    """The same facts with a checksum: the SHA-256 of the file that `pretty` makes, with zeros in the checksum's place.

    It finds accidents. A person who edits the file on purpose can compute it again.
    """
    blank = {**{name: each for name, each in value.items() if name != CHECKSUM}, CHECKSUM: _BLANK}
    return {**blank, CHECKSUM: hashlib.sha256(pretty(blank)).hexdigest()}


def read_sealed(path: Path) -> Json:
    """The facts in a file. One that was changed is a ValueError. One written by hand has no checksum, and no hashes."""
    contents = read_plain(path)
    value = parse_json(contents)
    if not isinstance(value, dict):
        raise ValueError("no object of facts")
    written = value.get(CHECKSUM)
    if written is None and b'"files"' not in contents:
        return value
    found = hashlib.sha256(contents.replace(str(written).encode(), _BLANK.encode())).hexdigest()
    if found != written:
        raise ValueError("it was changed after it was written: its checksum does not fit")
    return value


def unreadable(file: object, error: Exception) -> str:
    """What is wrong with a file that could not be read, or with its JSON, in plain words."""
    if isinstance(error, FileNotFoundError):
        return f"{file} is missing"
    if isinstance(error, OSError):
        return f"{file} cannot be read ({error.strerror or type(error).__name__})"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"{file} is not JSON"
    return f"{file} cannot be read ({error})"


def pretty(value: Json) -> bytes:
    """Facts as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def shipped_folder(name: str) -> Path:
    """A folder of what the library `sottovoce` ships, such as its recipes; empty where it is not installed."""
    found = find_spec("sottovoce")
    return Path(found.origin).parent / name if found and found.origin else Path(name) / "none is shipped"
