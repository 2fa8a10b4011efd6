"""A file of JSON lines in a hash chain: each line has a checksum over itself and all lines before it.

The checksum of the last line is also in a second file (`ledger.head` for `ledger.jsonl`), so lines lost at the end are
noticed. This finds accidents. It does not stop an owner who edits the file and computes the checksums again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sottovoce.files import append_synced, sync_file, sync_folder
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import LINES, Json, parse_json, read_plain, unreadable
from sottovoce_evidence.ledger import checked, next_check

_CHECKED = re.compile(rb'(.*), "check": "([0-9a-f]{32})"\}', re.DOTALL)


class Chain:
    """Such a file as it was read, and a way to append lines. A file that does not exist begins with the first line."""

    def __init__(self, path: Path, *, private: bool = False):
        self.path, self.private = path, private
        self.lines: list[Json] = []
        self.notes: list[str] = []
        self.last_check = ""
        self._size = 0  # of what was read and written

    @staticmethod
    def read(path: Path, *, repair: bool = False, private: bool = False) -> Chain:
        """Read and check all lines. A last line that a crash tore does not count; `repair` mends the end."""
        chain = Chain(path, private=private)
        head = _read_head(path)  # before the lines, because a line is written before its head
        try:
            contents = read_plain(path, LINES)
        except OSError as error:
            raise DamagedRun(unreadable(path, error)) from None
        *whole, last = contents.split(b"\n")
        found = [chain._take(line) for line in whole]
        torn = bool(last) and not chain._is_whole(last)
        if last and not torn:
            found.append(chain._take(last))
        if head and head not in found:
            raise damaged(f"{path} has lost lines at its end, or was copied during a write ({_head_of(path).name})")
        if torn:
            done = ", and is cut off" if repair else ""
            chain.notes.append(f"{path} ends within a line, as after a crash: that line counts for nothing{done}")
        if last and repair:
            _cut(path, len(contents) - len(last)) if torn else append_synced(path, b"\n")
        if repair:  # a process that was killed may not have flushed what it wrote, nor the name of the file
            sync_file(path)
            sync_folder(path.parent)
        chain._size = path.stat().st_size if repair else len(contents)
        return chain

    def append(self, *lines: Json) -> None:
        """Put lines on disk before returning, or nothing of them."""
        check, contents = self.last_check, b""
        for line in lines:
            check, raw = checked(check, line)
            contents += raw
        append_synced(self.path, contents, private=self.private)
        self.last_check = check
        self.lines += lines
        self._size += len(contents)
        # One write, not flushed: a head that is late still names a line of the file. Where there is no room for it, the
        # line is on disk all the same, and was not refused.
        with suppress(OSError):
            descriptor = os.open(_head_of(self.path), os.O_WRONLY | os.O_CREAT, 0o600 if self.private else 0o666)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                file.write(check.encode())

    def catch_up(self) -> None:
        """Read what other processes appended since: the lines before are not read again."""
        new = b""
        if self.path.exists() and self.path.stat().st_size >= self._size:
            with self.path.open("rb") as file:
                file.seek(self._size)
                new = file.read()
            if not new:
                return
        if not new.endswith(b"\n"):  # a crash tore a line, or the file is another
            found = Chain.read(self.path, repair=True, private=self.private)
            if found.lines[: len(self.lines)] != self.lines:
                raise damaged(f"{self.path} was replaced, or lost lines, while a process used it")
            vars(self).update(vars(found))
            return
        for line in new[:-1].split(b"\n"):
            self._take(line)
        self._size += len(new)

    def _take(self, raw: bytes) -> str:
        with readable(self.path, len(self.lines) + 1):
            line = parse_json(raw)
            if not isinstance(line, dict):
                raise ValueError("not an object")
            if (found := _CHECKED.fullmatch(raw)) is None:
                raise ValueError("it has no checksum")
            self.last_check = next_check(self.last_check, found[1] + b"}")
            if line.pop("check") != self.last_check:
                raise ValueError("its checksum does not follow from the lines before: one was changed, lost or moved")
        self.lines.append(line)
        return self.last_check

    def _is_whole(self, last: bytes) -> bool:
        """Is a last piece without a newline a whole line? If a crash tore it, no JSON object ends in it."""
        text = last.decode("latin-1")
        try:
            _, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return False
        except RecursionError:
            raise damaged(f"the last line of {self.path} is nested too deep") from None
        with readable(self.path, len(self.lines) + 1):
            if text[end:].strip(" \t\r"):
                raise ValueError("more follows where it should end")
        return True


def damaged(what: str) -> DamagedRun:
    return DamagedRun(f"{what}: what it held is not known", "put it back from a copy")


@contextmanager
def readable(path: Path, number: int) -> Iterator[None]:
    """A line that cannot be understood is never skipped."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RecursionError, SottoError) as error:
        why = "it is not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
        raise damaged(f"line {number} of {path} is damaged ({why})") from None


def _cut(path: Path, length: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(length)
        file.flush()
        os.fsync(file.fileno())


def _head_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _read_head(path: Path) -> str:
    head = _head_of(path)
    try:
        check = read_plain(head).decode("latin-1") if head.exists() else ""
    except OSError as error:
        raise DamagedRun(unreadable(head, error)) from None
    if check and not re.fullmatch("[0-9a-f]{32}", check):
        raise DamagedRun(
            f"{head} is damaged, and cannot show lines lost at the end of {path.name}",
            f"put both back from a copy, or remove {head.name} if you know that no line is missing",
        )
    return check
