"""Files and folders that exist whole or not at all, whenever the process dies or the power fails.

What gets its name by a rename is synced before: the contents of files, then the names in their folders. Then the folder
that holds the new name is. All of it is done here: elsewhere nothing is renamed, and no folder made, that must last.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from sottovoce_evidence.errors import InUse, SottoError

PARTIAL = ".partial"
FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_USE = ".sottovoce-in-use"  # in a work folder: locked while a process uses it
_WORK = re.compile(r"\..*-[a-z0-9_]{8}")
_log = logging.getLogger("sottovoce_evidence.files")


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
            sync_file(Path(folder, name))
        sync_folder(Path(folder))
    if not draft.is_dir():
        sync_file(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Flush to disk what was written to a file. Not what a link leads to, which lies elsewhere."""
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
