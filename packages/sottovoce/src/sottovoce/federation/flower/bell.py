"""A bell between the processes of one device: who waits at it is woken, rather than looking again and again."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from pathlib import Path


class Bell:
    """Hangs at a path, in a folder that only this user may enter. Rings while nobody waits are one ring."""

    def __init__(self, path: Path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def wait(self, seconds: float) -> bool:
        """Until it rings, or for some seconds. Did it ring?"""
        if not select.select([self._socket], [], [], seconds)[0]:
            return False
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
        return True

    def close(self) -> None:
        self._socket.close()


def ring(path: Path) -> None:
    """Ring the bell at a path, if one hangs there."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ringing:
        ringing.setblocking(False)
        ringing.sendto(b"!", str(path))


def supernode_bell(socket: Path) -> Path:
    """Where the bell of a SuperNode hangs, by the socket at which it listens."""
    return socket.with_suffix(".bell")


def device_bell(socket: Path) -> Path:
    """Where the bell of its device hangs."""
    return socket.with_name("device.bell")
