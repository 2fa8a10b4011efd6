"""What is on a disk after a process was killed, and after a power cut.

A kill leaves all that was written. A power cut leaves of a file what was flushed, and of a folder the names that were
flushed: a file system may keep more than that, and promises no more.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import Any, NamedTuple

import pytest

Held = bytes | dict[str, tuple[int, bool]]  # of a file, or of a folder: by name, the inode and whether it is a folder
State = dict[int, tuple[int, Held]]  # by inode: its mode, and what is on disk
Tree = dict[str, tuple[int, bytes | None]]  # by path: its mode, and the bytes of a file

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_watched: list[Disk] = []
_hooked: list[bool] = []


def _see(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched or not (event in _CHANGES or (event == "open" and (arguments[2] or 0) & _WRITES)):
        return
    for disk in _watched:
        if str(arguments[0]).startswith(str(disk.root)):
            disk.look()


def tree_of(root: Path) -> Tree:
    """All that lies in a folder."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        with suppress(FileNotFoundError):
            found[str(path.relative_to(root))] = path.stat().st_mode, None if path.is_dir() else path.read_bytes()
    return found


def empty(root: Path) -> None:
    for entry in root.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def put_back(root: Path, tree: Tree) -> None:
    """Make a folder what it was."""
    empty(root)
    for name, (mode, contents) in tree.items():
        path = root / name
        path.mkdir() if contents is None else path.write_bytes(contents)
        path.chmod(mode & 0o7777)


class Moment(NamedTuple):
    """What would be left right before a file is changed."""

    killed: Tree  # if the process died
    cut: State  # if the power failed
    mark: int  # how much had happened elsewhere: see `Disk.mark`


class Disk:
    """A folder, every change of a file in it by this process, and what would be left before each of them."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        mark: Callable[[], int] = lambda: 0,
        flushed: Tree | None = None,  # where a process that was killed left what it had not flushed
    ):
        self.root, self.mark = root, mark
        self.states: list[State] = []
        self.moments: list[Moment] = []
        self._now: State = {}
        self._held: list[int] = []  # open, so that no other file gets the number of one that is removed
        self._sync, self._write = os.fsync, os.write
        for folder, _, names in os.walk(root):
            for path in (Path(folder), *(Path(folder, name) for name in names)):
                self._keep(os.open(path, os.O_RDONLY))
        if flushed is not None:
            self._forget_all_but(flushed)
        self.states.append(dict(self._now))
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "write", self._write_half)
        _watched.append(self)
        if len(_watched) == 1 and not _hooked:
            _hooked.append(True)
            sys.addaudithook(_see)  # no way back: it does nothing where nothing is watched

    def _forget_all_but(self, flushed: Tree) -> None:
        for path in sorted(self.root.rglob("*"), reverse=True):
            number, name = path.stat().st_ino, str(path.relative_to(self.root))
            mode, held = self._now[number]
            if name not in flushed:
                del self._now[number]
            elif isinstance(held, bytes):
                self._now[number] = mode, flushed[name][1] or b""
        for number, (mode, held) in self._now.items():
            if isinstance(held, dict):
                names = {each: found for each, found in held.items() if found[0] in self._now}
                self._now[number] = mode, names

    def look(self) -> None:
        """Note what would be left now."""
        moment = Moment(tree_of(self.root), dict(self._now), self.mark())
        if self.moments and self.moments[-1][:2] == moment[:2]:
            self.moments.pop()  # later, with the same files, more may have been told
        self.moments.append(moment)

    def _fsync(self, descriptor: int) -> None:
        self.look()
        self._sync(descriptor)
        self._keep(os.dup(descriptor))
        if self.states[-1] != self._now:
            self.states.append(dict(self._now))

    def _write_half(self, descriptor: int, contents: bytes) -> int:
        """The half of a line first, as a process does that is killed within a write."""
        self.look()
        return self._write(descriptor, contents[: -(-len(contents) // 2)])

    def _keep(self, descriptor: int) -> None:
        found, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}")
        if S_ISDIR(found.st_mode):
            held: Held = {each.name: (each.inode(), each.is_dir()) for each in os.scandir(path)}
        else:
            held = path.read_bytes()
        if found.st_ino in self._now:
            os.close(descriptor)
        else:
            self._held.append(descriptor)
        self._now[found.st_ino] = found.st_mode, held

    def cut(self, state: int | State = -1) -> None:
        """Put the folder into the state in which a power cut leaves it, by default now."""
        number = self.root.stat().st_ino
        empty(self.root)
        self._restore(self.root, number, self.states[state] if isinstance(state, int) else state)

    def _restore(self, path: Path, number: int, state: State, *, folder: bool = True) -> None:
        """Of what was never flushed there is the name alone: a file or a folder with nothing in it."""
        mode, held = state.get(number, (0, {} if folder else b""))
        if isinstance(held, bytes):
            path.write_bytes(held)
        else:
            path.mkdir(exist_ok=True)
            for name, (inode, is_folder) in held.items():
                self._restore(path / name, inode, state, folder=is_folder)
        if mode:
            path.chmod(mode & 0o7777)

    def close(self) -> None:
        _watched.remove(self)
        for descriptor in self._held:
            os.close(descriptor)


class FullDisk:
    """A disk with so many bytes free: what would need more is refused when it is flushed. What has room keeps it."""

    def __init__(self, free: int, monkeypatch: pytest.MonkeyPatch):
        self.free, self._known, self._sync = free, dict[int, int](), os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        more = found.st_size - self._known.get(found.st_ino, 0)
        if not S_ISDIR(found.st_mode) and more > 0:
            if more > self.free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.free -= more
            self._known[found.st_ino] = found.st_size
        self._sync(descriptor)
