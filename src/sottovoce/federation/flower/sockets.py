"""Where Flower's processes on this machine listen: at sockets that no other user of it can reach.

Flower's SuperLink asks nobody who they are that reaches its Control API: they see who takes part, and stop the run. A
port of the loopback is open to every account of the machine, and whoever takes it first is spoken to in place of
Flower. A unix socket in a folder that its owner alone may enter is neither.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sottovoce.errors import SottoError

LONGEST = 80  # letters of the folder's name: a socket's whole name has room for about 100


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for sockets, which this user alone may enter; it is removed in the end."""
    with TemporaryDirectory(prefix="sotto-") as made:
        folder = Path(made)
        check_private(folder)
        yield folder


def check_private(folder: Path) -> None:
    """Refuse a folder whose sockets others could reach."""
    if not hasattr(socket, "AF_UNIX"):
        raise SottoError(
            "this system has no unix sockets, so other users of the machine could see who takes part and stop the run; "
            "use Linux or macOS"
        )
    if folder.stat().st_mode & 0o077:
        raise SottoError(
            f"{folder.parent} does not keep folders for their owner alone, so other users of the machine could see who "
            f"takes part and stop the run; set TMPDIR to a folder on a local disk, such as /tmp"
        )
    if len(str(folder)) > LONGEST:
        raise SottoError(
            f"{folder} is too long a name for a socket (above {LONGEST} letters); set TMPDIR to a shorter one, such as "
            f"/tmp"
        )


def listen_at(path: str) -> None:
    """Let whatever server this process starts listen at a socket, and nowhere else. Without TLS: nobody is between."""
    import uvicorn

    configuration: Any = uvicorn.Config
    real = configuration.__init__

    def at_the_socket(config: Any, *arguments: Any, **options: Any) -> None:
        real(config, *arguments, **{**options, "uds": path, "ssl_certfile": None, "ssl_keyfile": None})

    configuration.__init__ = at_the_socket
