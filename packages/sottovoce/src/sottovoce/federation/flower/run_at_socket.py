"""Run a command of Flower at a unix socket: `python -m sottovoce.federation.flower.run_at_socket COMMAND … SOCKET`.

A SuperNode goes on when its connection to the server or its heartbeat fails: it looks alive, and never connects again.
Here its process ends with any of its threads, and is started again.

A SuperNode waits three seconds between looks for a message. Here it looks again soon after a message, less and less
often while none comes, and at once when its bell rings. When it has a message, it rings the bell of its device.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from sottovoce.federation.flower.bell import Bell, device_bell, ring, supernode_bell

SOON = 0.5  # seconds from an answer to the first look for the next message; each later wait is twice as long
WITHIN = 0.05  # seconds between looks for the answer of this device


class Waits:
    """The module `time` for a SuperNode, with other waits."""

    def __init__(self, socket: Path):
        self._bell, self._device = Bell(supernode_bell(socket)), device_bell(socket)
        self._next = SOON

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        if seconds < 1.0:  # it has a message, and waits for the answer
            ring(self._device)
            self._next = SOON
            time.sleep(min(seconds, WITHIN))
            return
        wait, self._next = min(seconds, self._next), min(seconds, 2 * self._next)
        if self._bell.wait(wait):
            self._next = SOON

    def close(self) -> None:
        self._bell.close()


def look_soon(socket: Path) -> None:
    """Give the SuperNode of this process, which listens at a socket, these waits."""
    from flwr.supernode import start_client_internal

    module: Any = start_client_internal
    module.time = Waits(socket)


def listen_at(path: str) -> None:
    """Make any server that this process starts listen at a socket only, without TLS: nothing is between."""
    import uvicorn

    configuration: Any = uvicorn.Config
    real = configuration.__init__

    def at_socket(config: Any, *arguments: Any, **options: Any) -> None:
        real(config, *arguments, **{**options, "uds": path, "ssl_certfile": None, "ssl_keyfile": None})

    configuration.__init__ = at_socket


def end_with_any_thread() -> None:
    """End the process when one of its threads fails."""

    def end(failed: Any) -> None:
        sys.__excepthook__(failed.exc_type, failed.exc_value, failed.exc_traceback)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = end


def main() -> None:
    command, socket = sys.argv.pop(1), sys.argv.pop()
    (script,) = entry_points(group="console_scripts", name=command)
    run = script.load()
    listen_at(socket)
    if command != "flower-supernode":
        return run()
    end_with_any_thread()
    look_soon(Path(socket))
    run()
    # It returns when the server gave an unexpected answer; a thread of it would keep the process alive.
    print("the connection to the server was given up", flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
