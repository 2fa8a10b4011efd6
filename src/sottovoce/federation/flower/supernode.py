"""Flower's SuperNode, at a socket of its owner alone, which ends when a part of it does.

Its process goes on when the part that speaks to the server gives up, or the one that sends heartbeats: it looks alive,
and the device would be away for good. One that ends is started again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from sottovoce.federation.flower.sockets import listen_at


def end_with_any_thread() -> None:
    """Let the process take its leave when a thread of it fails."""

    def told(failed: Any) -> None:
        sys.__excepthook__(failed.exc_type, failed.exc_value, failed.exc_traceback)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.excepthook = told


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    end_with_any_thread()
    listen_at(sys.argv.pop())
    flower_supernode()
    # It returns when the server answered what it does not expect; a thread of it would keep the process.
    print("the connection to the server was given up", flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
