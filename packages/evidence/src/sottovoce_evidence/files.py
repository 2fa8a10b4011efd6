"""Files and folders that exist whole or not at all, whenever the process dies or the power fails.

What gets its name by a rename is synced before: the contents of files, then the names in their folders. Then the folder
that holds the new name is. All of it is done here: elsewhere nothing is renamed, and no folder made, that must last.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import Field, dataclass, fields, is_dataclass
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from tempfile import mkdtemp
from types import NoneType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from sottovoce_evidence.errors import InUse, SottoError

PARTIAL, CHECKSUM = ".partial", "checksum"
_BLANK = "0" * 64
FULL = (errno.ENOSPC, errno.EDQUOT)
# The most bytes of a file that is read as a whole. Each is far more than such a file has.
FACTS, TOKENS, LINES = 10**7, 2**28, 10**9  # a JSON or TOML file; a tokenizer; lines, one a round or charge
LARGEST = 2**63 - 1  # of whole numbers in a file
_IN_USE = ".sottovoce-in-use"  # in a work folder: locked while a process uses it
_WORK = re.compile(r"\..*-[a-z0-9_]{8}")
_log = logging.getLogger("sottovoce_evidence.files")

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
    if isinstance(value, Facts):
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
        kinds = get_type_hints(cls)
        known = [each for each in fields(cls) if each.name in values]
        nulls = {each.name: each.metadata.get("null", math.nan) for each in known}
        return cls(**{name: _read(kinds[name], values[name], null) for name, null in nulls.items()})


_NAMES = {int: "a whole number", str: "a text", bool: "true or false"}


def _read(kind: Any, value: Any, null: float = math.nan) -> Any:
    """A JSON value as the type of its field says: facts, tuples, and numbers, of which JSON has no infinity."""
    parts = get_args(kind)
    if NoneType in parts:
        return None if value is None else _read(parts[0], value)
    if get_origin(kind) is tuple:
        each = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(_read(one, item) for one, item in zip(each, value, strict=True))
    if isinstance(kind, type) and issubclass(kind, Facts):
        return kind.from_json(value)
    if get_origin(kind) is Literal:
        if value not in parts:
            raise ValueError(f"{value!a:.80} is none of {', '.join(map(str, parts))}")
        return value
    if kind in _NAMES and type(value) is not kind:
        raise TypeError(f"{value!a:.80} is not {_NAMES[kind]}")
    return from_json_number(value, null=null) if kind is float else value


def write_aside(path: Path, contents: bytes, *, private: bool = False) -> None:
    """Write a file under another name, flush it to disk, then give it its name. `private`: for its owner alone."""
    with reserved(path, 0, private=private) as write:
        write(contents)


@contextmanager
def reserved(path: Path, room: int, *, private: bool = False) -> Generator[Callable[[bytes], None], None, None]:
    """Take `room` bytes on disk for a file. Gives what writes it, flushes it to disk and then gives it its name.

    So a full disk, or a folder that nobody may write to, is found before people pay for what the file will hold.
    """
    partial = path.with_name(path.name + PARTIAL)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:

            def write(contents: bytes) -> None:
                file.seek(0)
                file.write(contents)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
                sync_folder(path.parent)

            if room:
                file.write(bytes(room))  # a file that is only made longer takes no room
                file.flush()
                os.fsync(file.fileno())
            yield write
    except BaseException as error:
        partial.unlink(missing_ok=True)  # it may be what fills the disk
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            # A write does not know of which file it was.
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
        raise


def rename_synced(draft: Path, path: Path) -> None:
    """Give a file or a folder its name. What it holds is flushed to disk before."""
    for folder, _, names in os.walk(draft, topdown=False):
        for name in names:
            _sync_file(Path(folder, name))
        sync_folder(Path(folder))
    if not draft.is_dir():
        _sync_file(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def _sync_file(path: Path) -> None:
    """Not what a link leads to, which lies elsewhere."""
    if stat.S_ISREG(path.lstat().st_mode):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, if they are not there. Their names survive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def append_synced(path: Path, contents: bytes, *, private: bool = False) -> None:
    """Append to a file and flush it to disk, or leave the file as it was."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600 if private else 0o666)
    try:
        before = os.fstat(descriptor).st_size
        try:
            while contents:
                contents = contents[os.write(descriptor, contents) :]
            os.fsync(descriptor)
        except OSError:  # such as a full disk: a part of a line would damage the next one
            os.truncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


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
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
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


@contextmanager
def explain_full_disk(folder: Path, then: str) -> Generator[None, None, None]:
    """Turn a full disk into an error that says where, and what to do afterwards (`then`)."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        reason = error.strerror or os.strerror(error.errno)
        raise SottoError(f"cannot write {error.filename or folder} ({reason}); free some space there, {then}") from None


def sync_folder(folder: Path) -> None:
    """Make renames and new files in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, busy: str) -> Generator[None, None, None]:
    """Keep a second process out: there, `busy` is the error. The lock ends with the process."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUse(busy) from None
        yield


@contextmanager
def work_folder(parent: Path, name: str) -> Generator[Path, None, None]:
    """An empty folder to work in, for its owner alone. It is removed at the end.

    A process that is killed cannot remove it. So each work folder holds a file that is locked while it is in use, and
    the next process that makes one in the same place removes those not in use.
    """
    _remove_remains(parent)
    while True:
        folder = Path(mkdtemp(prefix=f".{name}-", dir=parent))
        held = os.open(folder / _IN_USE, os.O_WRONLY | os.O_CREAT, 0o600)
        with suppress(OSError):  # where a file system has no locks, nothing is removed
            fcntl.flock(held, fcntl.LOCK_EX)
        if (folder / _IN_USE).exists():
            break
        os.close(held)  # another process removed it before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _remove_remains(parent: Path) -> None:
    """Remove work folders whose processes are gone, and log it: they may hold people's text."""
    removed = [entry.name for entry in os.scandir(parent) if _WORK.fullmatch(entry.name) and _is_left(Path(entry.path))]
    if removed:
        _log.warning(
            "removed what a process that was killed had left in %s: %s", parent.resolve(), ", ".join(sorted(removed))
        )


def _is_left(folder: Path) -> bool:
    """Remove a work folder if it is ours and not in use. Was it removed?"""
    try:
        held = os.open(folder / _IN_USE, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = os.fstat(held)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or folder.is_symlink():
            return False
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def remove_partial(folders: Iterable[Path]) -> None:
    """Remove what `write_aside` could not finish, in folders that no other process writes to."""
    for folder in folders:
        for path in folder.glob(f"*{PARTIAL}"):
            path.unlink(missing_ok=True)


def check_empty(out: Path) -> None:
    """Refuse a folder for what is made that holds anything."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SottoError(f"{str(out)!r} exists and is not an empty folder; choose another --out")


@contextmanager
def made_aside(out: Path, *, private: bool = False) -> Generator[Path, None, None]:
    """An empty folder to fill, which becomes `out` at the end. After an error or Ctrl-C nothing remains.

    `out` must not exist, or be an empty folder. It is there, empty, from the beginning, and another process that wants
    the same name is refused then, not at the end. `private`: for its owner alone.
    """
    if "\0" in str(out):
        raise SottoError(f"{str(out)!r} holds a NUL, which no name of a file can; name another folder")
    out = out.resolve()
    if out == Path.cwd():
        raise SottoError(f"{out} is the folder you are in, and cannot be replaced; name a new one")
    made = [folder for folder in out.parents if not folder.exists()]
    mode = 0o700 if private else 0o777
    done = False
    try:
        with _taken(out, mode), work_folder(out.parent, out.name) as work:
            draft = work / out.name
            draft.mkdir(mode=mode)
            yield draft
            rename_synced(draft, out)
            done = True
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        then = "check its name, free space and permissions"
        if error.errno in FULL:
            then = "nothing of it is kept; free some space there, then give the same command again"
        # What is read meanwhile may lie elsewhere.
        inside = error.filename is None or out.parent in Path(os.fsdecode(error.filename)).resolve().parents
        what = f"write {out}" if inside else f"use {error.filename}"
        raise SottoError(f"cannot {what} ({reason}); {then}") from error
    finally:
        if not done:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()


@contextmanager
def _taken(out: Path, mode: int) -> Generator[None, None, None]:
    """An empty folder that keeps other processes from its name. One that was killed leaves the name free."""
    new = not out.exists()
    make_folder(out, mode)
    held = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{out} is being made by another process; wait for it, or choose another name") from None
        except OSError:  # where a file system has no locks, the rename tells who was first
            pass
        check_empty(out)
        if not os.path.samestat(os.fstat(held), out.stat()):
            raise InUse(f"{out} is being made by another process; wait for it, or choose another name")
        try:
            yield
        except BaseException:
            if new:
                with suppress(OSError):
                    out.rmdir()
            raise
    finally:
        os.close(held)


def shipped_folder(name: str) -> Path:
    """A folder of what the library `sottovoce` ships, such as its recipes; empty where it is not installed."""
    found = find_spec("sottovoce")
    return Path(found.origin).parent / name if found and found.origin else Path(name) / "none is shipped"
