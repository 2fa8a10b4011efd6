"""What is on a disk after a power cut: of a file what was flushed, and of a folder the names that were flushed.

A file system may keep more than that, and promises no more.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from stat import S_ISDIR

import pytest

Held = bytes | dict[str, tuple[int, bool]]  # of a file, or of a folder: by name, the inode and whether it is a folder
State = dict[int, tuple[int, Held]]  # by inode: its mode, and what is on disk


class Disk:
    """A folder, every call of `os.fsync` in this process, and what would be left of the folder after each of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root = root
        self.states: list[State] = []
        self._now: State = {}
        self._held: list[int] = []  # open, so that no other file gets the number of one that is removed
        self._sync = os.fsync
        for folder, _, names in os.walk(root):
            for path in (Path(folder), *(Path(folder, name) for name in names)):
                self._keep(os.open(path, os.O_RDONLY))
        self.states.append(dict(self._now))
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        self._sync(descriptor)
        self._keep(os.dup(descriptor))
        if self.states[-1] != self._now:
            self.states.append(dict(self._now))

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

    def cut(self, state: int = -1) -> None:
        """Put the folder into the state in which a power cut leaves it, by default now."""
        number = self.root.stat().st_ino
        for entry in self.root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._restore(self.root, number, self.states[state])

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
