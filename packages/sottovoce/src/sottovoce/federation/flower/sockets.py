"""Folders for unix sockets that no other user of the machine can reach.

Flower's SuperLink does not authenticate callers of its Control API: they see who takes part, and can stop the run. A
port of the loopback is open to every account of the machine, and another process may take it first. A socket in a
folder that only its owner may enter has neither problem.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sottovoce_evidence.errors import SottoError

MAX_NAME = 80  # characters of the folder's name: a socket's whole name has room for about 100
_RISK = "so other users of the machine could see who takes part and stop the run"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user may enter. It is removed at the end."""
    with TemporaryDirectory(prefix="sotto-") as made:
        check_private(Path(made))
        yield Path(made)


def check_private(folder: Path) -> None:
    """Refuse a folder whose sockets others could reach."""
    if not hasattr(socket, "AF_UNIX"):
        raise SottoError(f"this system has no unix sockets, {_RISK}; use Linux or macOS")
    if folder.stat().st_mode & 0o077:
        raise SottoError(f"{folder.parent} keeps no folder private, {_RISK}; set TMPDIR to a folder on a local disk")
    if len(str(folder)) > MAX_NAME:
        raise SottoError(f"{folder} is too long a name for a socket (above {MAX_NAME} letters); set TMPDIR to /tmp")
