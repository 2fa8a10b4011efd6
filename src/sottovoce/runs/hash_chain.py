"""Lines of JSON that are not lost unseen: each carries a checksum over itself and all that came before it.

The checksum of the last line lies beside the file too (`ledger.head` beside `ledger.jsonl`), so that lines lost at its
end are noticed. That finds accidents. It does not stop an owner who edits, who can work out checksums as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sottovoce.errors import DamagedRun, SottoError

_CHECKED = re.compile(rb'(.*), "check": "([0-9a-f]{32})"\}', re.DOTALL)
_LOST = "what it held cannot be told; put the whole file back from a copy"


class Chain:
    """Such a file as it was read, to which lines are appended. One that is not there yet begins with the first line.

    Lines that an earlier version wrote have no checksum: they are read as they are, and the next one covers them.
    """

    def __init__(self, path: Path, *, private: bool = False):
        self.path, self.private = path, private
        self.lines: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.unchecked = 0  # lines at the beginning that have no checksum
        self._check = ""
        self.checks: set[str] = set()  # of all lines

    @property
    def last_check(self) -> str:
        """Of the last line: what all of them are known by."""
        return self._check

    @staticmethod
    def read(path: Path, *, repair: bool = False, private: bool = False) -> Chain:
        """Read and check all lines. A last one that a crash tore counts for nothing; `repair` mends the end."""
        chain = Chain(path, private=private)
        head = _read_head(path)  # before the lines: whoever writes puts the line on disk first
        try:
            contents = path.read_bytes()
        except OSError as error:
            raise DamagedRun(f"cannot read the ledger {path}: {error}") from None
        *whole, last = contents.split(b"\n")
        found = [chain._take(line) for line in whole]
        torn = bool(last) and not chain._is_whole(last)
        if last and not torn:
            found.append(chain._take(last))
        if head and head not in found:
            raise DamagedRun(
                f"{path} has lost lines at its end ({_head_of(path).name} knows a later one): {_LOST}; a copy that was "
                f"taken while lines were written is to be taken again"
            )
        if torn:
            done = ", and is cut off" if repair else ""
            chain.notes.append(f"{path} ends within a line, as a crash leaves it: that line counts for nothing{done}")
        if last and repair:
            _cut(path, len(contents) - len(last)) if torn else _append(path, b"\n")
        return chain

    def append(self, line: dict[str, Any]) -> None:
        """Put a line on disk before returning, or nothing of it."""
        check, contents = _checked(self._check, line)
        _append(self.path, contents, private=self.private)
        self._check = check
        self.checks.add(check)
        self.lines.append(line)
        _write_head(self.path, self._check, private=self.private)

    def _take(self, raw: bytes) -> str:
        with readable(self.path, len(self.lines) + 1):
            line = json.loads(raw)
            if not isinstance(line, dict):
                raise ValueError("not an object")
            found = _CHECKED.fullmatch(raw)
            self._check = _next(self._check, found[1] + b"}" if found else raw)
            if found and line.pop("check") != self._check:
                raise ValueError("its checksum does not follow from the lines up to it: one was changed, lost or moved")
            if not found and len(self.lines) > self.unchecked:
                raise ValueError("it has no checksum, and lines before it do")
        self.checks.add(self._check)
        self.unchecked += not found
        self.lines.append(line)
        return self._check

    def _is_whole(self, last: bytes) -> bool:
        """Is a last piece without a newline a line? If not, a crash tore it: then no object comes to its end in it."""
        text = last.decode("latin-1")
        try:
            _, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return False
        with readable(self.path, len(self.lines) + 1):
            if text[end:].strip(" \t\r"):
                raise ValueError("more follows where it should end")
        return True


def chained(lines: Iterable[dict[str, Any]]) -> bytes:
    """The contents of such a file that is written at once."""
    check, contents = "", b""
    for line in lines:
        check, raw = _checked(check, line)
        contents += raw
    return contents


@contextmanager
def readable(path: Path, number: int) -> Iterator[None]:
    """A line that cannot be understood is never skipped."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RecursionError, SottoError) as error:
        raise DamagedRun(f"line {number} of {path} is damaged ({error}): {_LOST}") from None


def _checked(before: str, line: dict[str, Any]) -> tuple[str, bytes]:
    body = json.dumps(line).encode()
    check = _next(before, body)
    return check, body[:-1] + f', "check": "{check}"}}\n'.encode()


def _next(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:32]


def _append(path: Path, contents: bytes, *, private: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600 if private else 0o666)
    try:
        before = os.fstat(descriptor).st_size
        try:
            while contents:
                contents = contents[os.write(descriptor, contents) :]
            os.fsync(descriptor)
        except OSError:  # the disk is full, say; a part of a line would spoil the next one
            os.truncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _cut(path: Path, length: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(length)
        file.flush()
        os.fsync(file.fileno())


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _read_head(path: Path) -> str:
    head = _head_of(path)
    if not head.exists():
        return ""
    check = head.read_text(encoding="latin-1")
    if check and not re.fullmatch("[0-9a-f]{32}", check):
        raise DamagedRun(
            f"{head} is damaged, so that lines lost at the end of {path.name} would not be noticed; put both back from "
            f"a copy, or remove {head.name} if you know that no line is missing"
        )
    return check


def _write_head(path: Path, check: str, *, private: bool) -> None:
    """By one call, and left to the system to bring to disk: one that is late is still a line of the file."""
    descriptor = os.open(_head_of(path), os.O_WRONLY | os.O_CREAT, 0o600 if private else 0o666)
    try:
        os.write(descriptor, check.encode())
    finally:
        os.close(descriptor)
