"""A connection from process 0 to every other process of a run: to meet by, and to notice that one is gone.

JAX has a service for both, but whoever waits in vain for it, or loses another process, is ended by it from C++ with a
stack trace. Here a person is told in a sentence what is missing.

Anybody may reach the port. So both ends first show that they know the run's secret, by a signature of what the other
has just made up; until then nothing is said and nothing of any length is read. The secret itself is never sent.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import queue
import secrets as os_entropy
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sottovoce.errors import SottoError

# A machine that lost its power or its network says nothing: it is asked every few seconds, and given up after 30.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_MAGIC = b"sottovoce meets\n"
_NONCE, _TAG = 32, 32
SECRET = "SOTTO_SECRET"  # the environment's name of it
SHORTEST = 16  # letters of a secret
LONGEST = 10_000  # bytes of what one process tells another here
GREETING = 10.0  # seconds to show that one knows the secret
AT_ONCE = 100  # connections whose other end has not shown it yet
log = logging.getLogger("sottovoce.lifelines")


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


class _Stranger(Exception):
    """At the other end is none of this run."""


class Line:
    """A connection on which nothing is read but what is short, comes in time, and is signed by who knows the secret."""

    def __init__(self, peer: socket.socket, until: float):
        self.peer, self.until = peer, until
        self._session, self._mine, self._theirs = b"", b"", b""

    def trust(self, session: bytes, mine: bytes, theirs: bytes) -> None:
        """From now on what is said is signed, by each end in its own name."""
        self._session, self._mine, self._theirs = session, mine, theirs

    def take(self, size: int) -> bytes:
        """So many bytes and no more: the end of the connection is watched for afterwards."""
        taken = b""
        while len(taken) < size:
            self.peer.settimeout(max(0.01, self.until - time.monotonic()))
            piece = self.peer.recv(size - len(taken))
            if not piece:
                raise _Stranger("it says nothing" if not taken else "it breaks off")
            taken += piece
        return taken

    def send(self, message: dict[str, Any]) -> None:
        said = json.dumps(message).encode()
        self.peer.sendall(struct.pack(">I", len(said)) + said + _tag(self._session, self._mine + said))

    def receive(self) -> dict[str, Any]:
        (size,) = struct.unpack(">I", self.take(4))
        if size > LONGEST:
            raise _Stranger(f"it says {size} bytes")
        said, tag = self.take(size), self.take(_TAG)
        if not hmac.compare_digest(tag, _tag(self._session, self._theirs + said)):
            raise _Stranger("what it says is not signed")
        message = json.loads(said)  # by one who knows the secret
        if not isinstance(message, dict):
            raise _Stranger("it is of another version")
        return message


def shared_secret(file: Path | None) -> bytes:
    """What all processes of a run know, and nobody else: from a file, or from the environment."""
    if file is not None:
        try:
            said = file.read_bytes().strip()
            others = file.stat().st_mode & 0o077
        except OSError as error:
            raise SottoError(f"cannot read --secret {file}: {_reason(error)}") from None
        if others:
            raise SottoError(f"--secret {file} can be read by other users; make it yours alone: chmod 600 {file}")
    else:
        said = os.environ.get(SECRET, "").strip().encode()
        if not said:
            raise SottoError(
                f"--coordinator needs a secret that all processes share, or anybody who reaches its port could be one "
                f"of them: make one with `(umask 077; head -c 32 /dev/urandom | base64 > secret)`, copy it to every "
                f"machine, and give each process --secret secret, or {SECRET} in its environment"
            )
    if len(said) < SHORTEST:
        raise SottoError(
            f"the secret of --coordinator has {len(said)} letters, and must have {SHORTEST} or more that nobody can "
            f"guess: head -c 32 /dev/urandom | base64"
        )
    return said


def _session(secret: bytes, of_process_0: bytes, of_other: bytes) -> bytes:
    """A key for one connection: who heard another one cannot say the same again."""
    return _tag(secret, b"sottovoce lifeline" + of_process_0 + of_other)


def _tag(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise SottoError(
            f"cannot listen at {host}:{port} ({_reason(error)}); process 0 runs on the machine of --coordinator, at a "
            f"port that is free"
        ) from None


def gather(
    listener: socket.socket, processes: int, wait: float, reply: dict[str, Any], secret: bytes
) -> Lifelines:  # fmt: skip
    """Process 0 waits for the others, then gives all of them the reply. Strangers are named, and waited for no longer.

    Each is spoken to in a thread of its own: whoever says nothing holds nobody up.
    """
    peers: dict[int, Line] = {}
    arrived: queue.Queue[tuple[Line, dict[str, Any]]] = queue.Queue()
    over = threading.Event()
    threading.Thread(target=_open_door, args=(listener, secret, arrived, over), daemon=True).start()
    deadline = time.monotonic() + wait
    try:
        while len(peers) < processes - 1:
            try:
                line, hello = arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                missing = sorted(set(range(1, processes)) - set(peers))
                raise SottoError(
                    f"after {wait:g} s {_names(missing)} of {processes} did not come; start the same command with "
                    f"each --process-id, or wait longer with --wait"
                ) from None
            for number in [number for number, earlier in peers.items() if not _is_there(earlier.peer)]:
                peers.pop(number).peer.close()  # came, and left while it waited for the others; it may come again
            _welcome(line, hello, peers, processes)
        for line in peers.values():
            line.send(reply)
            line.peer.settimeout(None)
    except BaseException as error:
        for line in peers.values():
            with suppress(OSError):
                line.send({"error": str(error) or "it was interrupted"})
            line.peer.close()
        raise
    finally:
        over.set()
        _turn_away(arrived)
    return Lifelines({number: line.peer for number, line in peers.items()})


def _open_door(
    listener: socket.socket, secret: bytes, arrived: queue.Queue[tuple[Line, dict[str, Any]]], over: threading.Event
) -> None:
    """Take connections until all have come; others wait while too many are being greeted."""
    room = threading.Semaphore(AT_ONCE)
    listener.settimeout(0.1)
    while not over.is_set():
        if not room.acquire(timeout=0.1):
            continue
        try:
            peer, address = listener.accept()
        except OSError:  # nobody came; or it was closed, and all is over
            room.release()
            continue
        greeting = (peer, str(address[0]), secret, arrived, room, over)
        threading.Thread(target=_greet, args=greeting, daemon=True).start()


def _greet(
    peer: socket.socket, where: str, secret: bytes, arrived: queue.Queue[tuple[Line, dict[str, Any]]],
    room: threading.Semaphore, over: threading.Event,
) -> None:  # fmt: skip
    """Hand over who knows the secret; close the door to whoever does not."""
    try:
        line = Line(peer, time.monotonic() + GREETING)
        nonce = os_entropy.token_bytes(_NONCE)
        peer.sendall(_MAGIC + nonce)
        theirs = line.take(_NONCE)
        session = _session(secret, nonce, theirs)
        if not hmac.compare_digest(line.take(_TAG), _tag(session, b"process")):
            raise _Stranger("does not know the secret")
        peer.sendall(_tag(session, b"process 0"))
        line.trust(session, b"0", b"n")
        arrived.put((line, line.receive()))
        if over.is_set():
            _turn_away(arrived)
    except (OSError, ValueError, _Stranger) as error:
        if not over.is_set():
            log.warning("somebody at %s is none of this run (%s); still waiting for the others", where, error)
        peer.close()
    finally:
        room.release()


def _turn_away(arrived: queue.Queue[tuple[Line, dict[str, Any]]]) -> None:
    """Whoever came when all was over."""
    with suppress(queue.Empty):
        while True:
            arrived.get_nowait()[0].peer.close()


def _welcome(line: Line, hello: dict[str, Any], peers: dict[int, Line], processes: int) -> None:
    number, believed, error = hello.get("process"), hello.get("processes"), ""
    if believed != processes:
        error = f"process {number} was told --processes {believed}, and process 0 --processes {processes}"
    elif type(number) is not int or not 0 < number < processes:
        error = f"a process says that it is number {number} of {processes}"
    elif number in peers:
        error = f"two processes have --process-id {number}; each needs its own"
    if error or type(number) is not int:
        with suppress(OSError):
            line.send({"error": error})
        line.peer.close()
        raise SottoError(error)
    peers[number] = line


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


def reach(
    address: Address, process: int, processes: int, wait: float, secret: bytes
) -> tuple[Lifelines, dict[str, Any]]:  # fmt: skip
    """Connect to process 0, which may begin later than this one, and hear its reply."""
    peer = _connected(address, wait)
    line = Line(peer, time.monotonic() + wait)
    try:
        if not hmac.compare_digest(line.take(len(_MAGIC)), _MAGIC):
            raise _Stranger("it is another program")
        theirs, nonce = line.take(_NONCE), os_entropy.token_bytes(_NONCE)
        session = _session(secret, theirs, nonce)
        peer.sendall(nonce + _tag(session, b"process"))
        line.until = time.monotonic() + GREETING
        if not hmac.compare_digest(line.take(_TAG), _tag(session, b"process 0")):
            raise _Stranger("it does not know the secret")
    except (OSError, _Stranger) as error:
        peer.close()
        raise SottoError(
            f"process 0 at {address.text} gave no answer that shows it has the same secret ({error}); is it `sotto` "
            f"that listens there, does it still wait, and has it the same --secret?"
        ) from None
    line.trust(session, b"n", b"0")
    line.until = time.monotonic() + wait + 10  # process 0 gives up first, and says whom it missed
    try:
        line.send({"process": process, "processes": processes})
        reply = line.receive()
    except (OSError, ValueError, _Stranger):
        peer.close()
        raise SottoError(f"process 0 at {address.text} gave no answer; does it still wait?") from None
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


def _keep_alive(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _names(numbers: list[int]) -> str:
    return ("process " if len(numbers) == 1 else "processes ") + ", ".join(map(str, numbers))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).partition(" (while")[0]
