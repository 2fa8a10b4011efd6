"""Files and folders that are there whole or not at all, whenever the process dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from sottovoce.errors import SottoError


def write_aside(path: Path, contents: bytes, *, private: bool = False) -> None:
    """Write a file under another name, flush it to disk, then give it its name. `private`: for its owner alone."""
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, busy: str) -> Generator[None, None, None]:
    """Keep a second process out, which is told that it is `busy`. The lock goes with the process."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SottoError(busy) from None
        yield


@contextmanager
def made_aside(out: Path) -> Generator[Path, None, None]:
    """An empty folder beside `out` to fill, which becomes `out` at the end; after an error or Ctrl-C nothing remains.

    `out` must not exist, or be an empty folder.
    """
    out = out.resolve()
    if out == Path.cwd():
        raise SottoError(f"{out} is the folder you are in, and cannot be replaced; name a new one")
    made = [folder for folder in out.parents if not folder.exists()]
    done = False
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as work:
            draft = Path(work) / out.name
            draft.mkdir()
            yield draft
            os.replace(draft, out)
            done = True
        sync_folder(out.parent)
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise SottoError(f"cannot write {out} ({reason}); check its name, free space and permissions") from error
    finally:
        if not done:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
