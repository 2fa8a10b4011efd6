"""Connections from the leader (rank 0) to all other processes: to start together, and to notice a lost process.

JAX has a service for both. But it ends a process that waits in vain, or that loses another one, from C++ with a stack
trace. Here the user gets an error message that names what is missing.

Anyone may reach the port. So both ends first prove that they know the run's secret, by an HMAC of a nonce of the other
end. Before that proof nothing is sent but nonces, and nothing but a few bytes is read. The secret itself is never sent.
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
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from sottovoce_evidence.errors import SottoError

# A machine without power or network sends nothing: it is probed every few seconds, and counts as lost after 30.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_MAGIC = b"sottovoce meets\n"
_NONCE, _TAG = 32, 32  # bytes
SECRET = "SOTTO_SECRET"  # environment variable
MIN_SECRET = 16  # characters
MAX_MESSAGE = 10_000  # bytes
HANDSHAKE = 10.0  # seconds to prove that one knows the secret
MAX_HANDSHAKES = 100  # connections that have not proved it yet; beyond, the oldest is closed
Message = dict[str, Any]  # a JSON object
Peer = TypeVar("Peer", bound=socket.socket)
Said = TypeVar("Said")
log = logging.getLogger("sottovoce.rendezvous")


class Address:
    """HOST:PORT of the leader."""

    def __init__(self, text: str):
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise SottoError(f"--coordinator {text!r} must be HOST:PORT of process 0, like 10.0.0.1:9876, or auto")
        self.host, self.port, self.text = host.strip("[]"), int(port), text


class Connections:
    """The open connections, by the rank at their other end."""

    def __init__(self, peers: dict[int, socket.socket]):
        self._peers = peers
        self._closed = False
        self._lost: list[int] = []
        self._noticed = threading.Event()
        self._threads: list[threading.Thread] = []
        for rank, peer in peers.items():
            keep_alive(peer)
            self._start(partial(self._watch, rank, peer))

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, rank: int, peer: socket.socket) -> None:
        with suppress(OSError):  # nothing is ever sent: whatever arrives is the end of the connection
            peer.recv(1)
        self._lost.append(rank)
        self._noticed.set()

    def lost(self, seconds: float) -> int | None:
        """The rank of a lost process, if one is noticed within some seconds."""
        self._noticed.wait(seconds)
        return self._lost[0] if self._lost else None

    def when_lost(self, act: Callable[[int], None]) -> None:
        """Call `act` from another thread when a process is lost before `close`."""

        def wait() -> None:
            self._noticed.wait()
            if not self._closed:
                act(self._lost[0])

        self._start(wait)

    def close(self) -> None:
        """Close the connections, and wait for the threads that watch them, and for what `when_lost` has begun.

        What `act` refers to may hold arrays of JAX. A thread that is still freeing them when the interpreter ends is
        ended inside JAX's C++, and the process with it, by a segmentation fault.
        """
        self._closed = True
        self._noticed.set()  # nobody is left to wait for, also where there is no peer
        for peer in self._peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for peer in self._peers.values():
            peer.close()


def keep_alive(peer: socket.socket) -> None:
    """Probe the other end: one without power or network is noticed."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in _KEEP_ALIVE.keys() & dir(socket):
        peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), _KEEP_ALIVE[name])


class NotAMember(Exception):
    """The other end is no process of this run."""


class Channel:
    """A connection that reads only short messages, before a deadline, and after `authenticate` with a valid HMAC."""

    def __init__(self, peer: socket.socket, deadline: float):
        self.peer, self.deadline = peer, deadline
        self._session, self._own_name, self._peer_name = b"", b"", b""

    def authenticate(self, session: bytes, own_name: bytes, peer_name: bytes) -> None:
        """From now on each message has an HMAC over the name of its sender and its text."""
        self._session, self._own_name, self._peer_name = session, own_name, peer_name

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes: the next byte is left for `Connections`, which watches for the end."""
        data = b""
        while len(data) < size:
            self.peer.settimeout(max(0.01, self.deadline - time.monotonic()))
            piece = self.peer.recv(size - len(data))
            if not piece:
                raise NotAMember("the connection was closed")
            data += piece
        return data

    def send(self, message: Message) -> None:
        text = json.dumps(message).encode()
        self.peer.sendall(struct.pack(">I", len(text)) + text + _hmac(self._session, self._own_name + text))

    def receive(self) -> Message:
        (size,) = struct.unpack(">I", self.read(4))
        if size > MAX_MESSAGE:
            raise NotAMember(f"a message of {size} bytes")
        text, tag = self.read(size), self.read(_TAG)
        if not hmac.compare_digest(tag, _hmac(self._session, self._peer_name + text)):
            raise NotAMember("a message without a valid HMAC")
        message = json.loads(text)  # parsed after the HMAC was checked
        if not isinstance(message, dict):
            raise NotAMember("a message of another version")
        return message


def shared_secret(file: Path | None) -> bytes:
    """The secret that only the processes of a run know: from a file, or from the environment."""
    if file is not None:
        try:
            secret = file.read_bytes().strip()
            others = file.stat().st_mode & 0o077
        except OSError as error:
            raise SottoError(f"cannot read --secret {file}: {_reason(error)}") from None
        if others:
            raise SottoError(f"--secret {file} can be read by other users; make it yours alone: chmod 600 {file}")
    else:
        secret = os.environ.get(SECRET, "").strip().encode()
        if not secret:
            raise SottoError(
                f"--coordinator needs a secret that all processes share, in --secret FILE or in the environment as "
                f"{SECRET}: make one with `(umask 077; head -c 32 /dev/urandom | base64 > FILE)`"
            )
    if len(secret) < MIN_SECRET:
        raise SottoError(f"the secret of --coordinator has {len(secret)} letters, and must have {MIN_SECRET} or more")
    return secret


def _session_key(secret: bytes, nonce_of_leader: bytes, nonce_of_other: bytes) -> bytes:
    """A key for one connection: messages of another connection cannot be replayed on it."""
    return _hmac(secret, b"sottovoce lifeline" + nonce_of_leader + nonce_of_other)


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        remedy = "start process 0 on the machine of --coordinator, at a free port"
        raise SottoError(f"cannot listen at {host}:{port} ({_reason(error)}); {remedy}") from None


def accept_all(listener: socket.socket, processes: int, wait: float, reply: Message, secret: bytes) -> Connections:
    """The leader waits for all other processes, then sends each of them the reply.

    Connections that do not prove to know the secret are logged and closed. One that sends nothing delays no other.
    """
    peers: dict[int, Channel] = {}
    door = Door(listener, partial(_greet, secret))
    deadline = time.monotonic() + wait
    try:
        while len(peers) < processes - 1:
            try:
                _, (channel, hello) = door.arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                missing = ", ".join(str(rank) for rank in range(1, processes) if rank not in peers)
                remedy = "start the same command with each --process-id, or wait longer with --wait"
                raise SottoError(f"after {wait:g} s process {missing} of {processes} did not come; {remedy}") from None
            for rank in [rank for rank, earlier in peers.items() if not _is_open(earlier.peer)]:
                peers.pop(rank).peer.close()  # it left while it waited for the others, and may connect again
            _register(channel, hello, peers, processes)
        for channel in peers.values():
            channel.send(reply)
            channel.peer.settimeout(None)
    except BaseException as error:
        for channel in peers.values():
            with suppress(OSError):
                channel.send({"error": str(error) or "it was interrupted"})
            channel.peer.close()
        raise
    finally:
        door.close()
    return Connections({rank: channel.peer for rank, channel in peers.items()})


class Door(Generic[Peer, Said]):
    """Accepts connections to a port and shakes hands with all of them side by side. Who passes is put into `arrived`.

    A connection that proves nothing has `HANDSHAKE` seconds. Of more than `MAX_HANDSHAKES` at once the oldest is
    closed: a process of the run takes a moment, so strangers who are silent keep nobody waiting, however many they are.
    """

    def __init__(self, listener: socket.socket, greet: Callable[[socket.socket], tuple[Peer, Said]]):
        """`greet` gives the connection to go on with and what was said, or raises: the other end is a stranger."""
        self._listener, self._greet = listener, greet
        self.arrived: queue.Queue[tuple[Peer, Said]] = queue.Queue()
        self._unproved: dict[int, socket.socket] = {}  # another handle of each connection, in the order of coming
        self._closed, self._lock = threading.Event(), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        self._listener.settimeout(0.1)
        number = 0
        while not self._closed.is_set():
            try:
                peer, address = self._listener.accept()
                peer.settimeout(HANDSHAKE)
                handle = peer.dup()
            except OSError:  # no connection yet, or the listener was closed
                continue
            number += 1
            with self._lock:
                if len(self._unproved) >= MAX_HANDSHAKES:
                    self._end(next(iter(self._unproved)))
                self._unproved[number] = handle
            threading.Thread(target=self._shake_hands, args=(number, peer, str(address[0])), daemon=True).start()

    def _shake_hands(self, number: int, peer: socket.socket, host: str) -> None:
        try:
            passed = self._greet(peer)
            with self._lock:
                handle = self._unproved.pop(number, None)
            if handle is None:  # `_end` was faster
                passed[0].close()
                raise NotAMember("it came too late")
            handle.close()
            self.arrived.put(passed)
            if self._closed.is_set():
                self._close_arrived()
        except (OSError, ValueError, NotAMember) as error:
            if not self._closed.is_set():
                log.warning("the connection from %s is no process of this run (%s); waiting on", host, error)
            peer.close()
            with self._lock:
                if number in self._unproved:
                    self._unproved.pop(number).close()

    def _end(self, number: int) -> None:
        """End a connection that proved nothing: the thread that reads from it notices."""
        with self._unproved.pop(number) as peer, suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for number in list(self._unproved):
                self._end(number)
        self._close_arrived()

    def _close_arrived(self) -> None:
        """Close the connections that arrived too late."""
        with suppress(queue.Empty):
            while True:
                self.arrived.get_nowait()[0].close()


def _greet(secret: bytes, peer: socket.socket) -> tuple[socket.socket, tuple[Channel, Message]]:
    """The leader's end of a handshake."""
    channel = Channel(peer, time.monotonic() + HANDSHAKE)
    nonce = os_entropy.token_bytes(_NONCE)
    peer.sendall(_MAGIC + nonce)
    session = _session_key(secret, nonce, channel.read(_NONCE))
    if not hmac.compare_digest(channel.read(_TAG), _hmac(session, b"process")):
        raise NotAMember("does not know the secret")
    peer.sendall(_hmac(session, b"process 0"))
    channel.authenticate(session, b"0", b"n")
    return peer, (channel, channel.receive())


def _register(channel: Channel, hello: Message, peers: dict[int, Channel], processes: int) -> None:
    rank, expected = hello.get("process"), hello.get("processes")
    if expected != processes:
        error = f"process {rank} has --processes {expected}, and process 0 --processes {processes}"
    elif type(rank) is not int or not 0 < rank < processes:
        error = f"a process has the number {rank} of {processes}"
    elif rank in peers:
        error = f"two processes have --process-id {rank}; each needs its own"
    else:
        peers[rank] = channel
        return
    with suppress(OSError):
        channel.send({"error": error})
    channel.peer.close()
    raise SottoError(error)


def _is_open(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        peer.settimeout(5)


def connect(address: Address, rank: int, processes: int, wait: float, secret: bytes) -> tuple[Connections, Message]:
    """Connect to the leader, which may start later than this process. Returns the connection and the leader's reply."""
    peer = _open_connection(address, wait)
    channel = Channel(peer, time.monotonic() + wait)
    try:
        if not hmac.compare_digest(channel.read(len(_MAGIC)), _MAGIC):
            raise NotAMember("it is another program")
        nonce_of_leader, nonce = channel.read(_NONCE), os_entropy.token_bytes(_NONCE)
        session = _session_key(secret, nonce_of_leader, nonce)
        peer.sendall(nonce + _hmac(session, b"process"))
        channel.deadline = time.monotonic() + HANDSHAKE
        if not hmac.compare_digest(channel.read(_TAG), _hmac(session, b"process 0")):
            raise NotAMember("it does not know the secret")
    except (OSError, NotAMember) as error:
        peer.close()
        problem = f"process 0 at {address.text} did not prove that it has the same secret ({error})"
        raise SottoError(f"{problem}; does `sotto` still wait there, with the same --secret?") from None
    channel.authenticate(session, b"n", b"0")
    channel.deadline = time.monotonic() + wait + 10  # the leader gives up first, and names the missing processes
    try:
        channel.send({"process": rank, "processes": processes})
        reply = channel.receive()
    except (OSError, ValueError, NotAMember):
        peer.close()
        raise SottoError(f"process 0 at {address.text} gave no answer; does it still wait?") from None
    if "error" in reply:
        peer.close()
        raise SottoError(f"process 0 at {address.text} refused: {reply['error']}")
    peer.settimeout(None)
    return Connections({0: peer}), reply


def _open_connection(address: Address, wait: float) -> socket.socket:
    deadline = time.monotonic() + wait
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection((address.host, address.port), timeout=max(0.1, left))
        except socket.gaierror:
            raise SottoError(f"--coordinator {address.text!r}: no machine is called {address.host!r}") from None
        except OSError as error:
            if left < 0.5:
                problem = f"cannot reach process 0 at {address.text} after {wait:g} s ({_reason(error)})"
                raise SottoError(f"{problem}; start it with --process-id 0, or check the address") from None
            time.sleep(0.25)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).partition(" (while")[0]
