"""A connection from process 0 to every other process of a run: to meet by, and to notice that one is gone.

JAX has a service for both, but whoever waits in vain for it, or loses another process, is ended by it from C++ with a
stack trace. Here a person is told in a sentence what is missing.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sottovoce.errors import SottoError

# A machine that lost its power or its network says nothing: it is asked every few seconds, and given up after 30.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_HELLO = "sottovoce"


class Address:
    """HOST:PORT of process 0."""

    def __init__(self, text: str):
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise SottoError(
                f"--coordinator {text!r} must be HOST:PORT of process 0, for example 10.0.0.1:9876, or auto"
            )
        self.host, self.port, self.text = host.strip("[]"), int(port), text


class Lifelines:
    """The open connections, by the number of the process at their other end."""

    def __init__(self, peers: dict[int, socket.socket]):
        self._peers = peers
        self._over = False
        self._gone: list[int] = []
        self._noticed = threading.Event()
        for number, peer in peers.items():
            _keep_alive(peer)
            threading.Thread(target=self._watch, args=(number, peer), daemon=True).start()

    def _watch(self, number: int, peer: socket.socket) -> None:
        with suppress(OSError):  # nothing is ever sent: an answer of any kind is the end
            peer.recv(1)
        self._gone.append(number)
        self._noticed.set()

    def gone(self, wait: float) -> int | None:
        """Which process is gone, if any is found to be within so many seconds."""
        return self._gone[0] if self._noticed.wait(wait) else None

    def when_gone(self, act: Callable[[int], None]) -> None:
        """Call `act` from another thread when a process is gone before `close`."""

        def wait() -> None:
            self._noticed.wait()
            if not self._over:
                act(self._gone[0])

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        self._over = True
        for peer in self._peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SottoError(
            f"cannot listen at {host}:{port} ({_reason(error)}); process 0 runs on the machine of --coordinator, at a "
            f"port that is free"
        ) from None


def gather(listener: socket.socket, processes: int, wait: float, reply: dict[str, Any]) -> Lifelines:
    """Process 0 waits for the others, then gives all of them the reply."""
    peers: dict[int, socket.socket] = {}
    deadline = time.monotonic() + wait
    try:
        while len(peers) < processes - 1:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, processes)) - set(peers))
                raise SottoError(
                    f"after {wait:g} s {_names(missing)} of {processes} did not come; start the same command with "
                    f"each --process-id, or wait longer with --wait"
                ) from None
            peer.settimeout(5)
            for number in [number for number, earlier in peers.items() if not _is_there(earlier)]:
                peers.pop(number).close()  # came, and left while it waited for the others; it may come again
            _welcome(peer, peers, processes)
        for peer in peers.values():
            _send(peer, reply)
            peer.settimeout(None)
    except BaseException as error:
        for peer in peers.values():
            with suppress(OSError):
                _send(peer, {"error": str(error) or "it was interrupted"})
            peer.close()
        raise
    return Lifelines(peers)


def _welcome(peer: socket.socket, peers: dict[int, socket.socket], processes: int) -> None:
    hello = _receive(peer)
    if not hello or hello.get("hello") != _HELLO:
        peer.close()  # whoever it was, it is none of this run
        return
    number, believed, error = hello["process"], hello["processes"], ""
    if believed != processes:
        error = f"process {number} was told --processes {believed}, and process 0 --processes {processes}"
    elif number in peers:
        error = f"two processes have --process-id {number}; each needs its own"
    if error:
        with suppress(OSError):
            _send(peer, {"error": error})
        peer.close()
        raise SottoError(error)
    peers[number] = peer


def _is_there(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        peer.settimeout(5)


def reach(address: Address, process: int, processes: int, wait: float) -> tuple[Lifelines, dict[str, Any]]:
    """Connect to process 0, which may begin later than this one, and hear its reply."""
    peer = _connected(address, wait)
    peer.settimeout(wait + 10)  # process 0 gives up first, and says whom it missed
    with suppress(OSError):
        _send(peer, {"hello": _HELLO, "process": process, "processes": processes})
    reply = _receive(peer)
    if reply is None:
        peer.close()
        raise SottoError(
            f"process 0 at {address.text} gave no answer; is it `sotto` that listens there, and does it still wait?"
        )
    if "error" in reply:
        peer.close()
        raise SottoError(f"process 0 at {address.text} refused: {reply['error']}")
    peer.settimeout(None)
    return Lifelines({0: peer}), reply


def _connected(address: Address, wait: float) -> socket.socket:
    deadline = time.monotonic() + wait
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection((address.host, address.port), timeout=max(0.1, left))
        except socket.gaierror:
            raise SottoError(f"--coordinator {address.text!r}: no machine is called {address.host!r}") from None
        except OSError as error:
            if left < 0.5:
                raise SottoError(
                    f"cannot reach process 0 at {address.text} after {wait:g} s ({_reason(error)}); start it with "
                    f"--process-id 0, or check the address"
                ) from None
            time.sleep(0.25)


def _send(peer: socket.socket, message: dict[str, Any]) -> None:
    peer.sendall(json.dumps(message).encode() + b"\n")


def _receive(peer: socket.socket) -> dict[str, Any] | None:
    """One line; None when there is none that makes sense. Byte by byte, since the end is watched for afterwards."""
    line = b""
    try:
        while not line.endswith(b"\n"):
            byte = peer.recv(1)
            if not byte or len(line) > 10_000:
                return None
            line += byte
        message = json.loads(line)
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def _keep_alive(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _names(numbers: list[int]) -> str:
    return ("process " if len(numbers) == 1 else "processes ") + ", ".join(map(str, numbers))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).partition(" (while")[0]
