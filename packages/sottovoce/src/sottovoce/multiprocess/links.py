"""Encrypted connections from the leader to every other process, and the sums that cross them.

The leader makes a key and a certificate for one run. Their hash reaches the other processes over the connections of
`rendezvous`, on which both ends have proved that they know the secret. A process accepts this certificate and no other,
and then proves that it knows the secret, for this certificate. So TLS needs no authority here, and whoever sits between
two processes can neither read a sum nor change one.
"""

from __future__ import annotations

import hmac
import logging
import os
import queue
import socket
import ssl
import struct
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sottovoce.multiprocess.rendezvous import Door, NotAMember, keep_alive
from sottovoce_evidence.errors import SottoError

_PROOF, _RANK, _HEADER = 32, struct.Struct(">I"), struct.Struct(">4sQ")
log = logging.getLogger("sottovoce.rendezvous")


@dataclass(frozen=True)
class Identity:
    """The leader's end of TLS, and the hash of its certificate."""

    context: ssl.SSLContext
    certificate: str

    @staticmethod
    def new() -> Identity:
        """With a fresh key, which is on disk for a moment, for this user alone: Python's `ssl` reads files."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sottovoce process 0")])
        start = datetime.now(UTC) - timedelta(days=1)  # its dates are not looked at: it lives as long as the run
        made = x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), start, start + timedelta(days=3650)
        ).sign(key, hashes.SHA256())
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with TemporaryDirectory() as folder:  # owner-only
            file = Path(folder) / "identity.pem"
            with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as writing:
                writing.write(private + made.public_bytes(pem))
            context.load_cert_chain(file)
        return Identity(context, _hash(made.public_bytes(serialization.Encoding.DER)))


class Links:
    """The encrypted connections of one process, by the rank at their other end: of a helper, to the leader alone."""

    def __init__(self, peers: dict[int, ssl.SSLSocket]):
        self._peers = peers
        for peer in peers.values():
            keep_alive(peer)
            peer.settimeout(None)  # a process that computes, or is suspended, is waited for

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray:
        """The sum over all processes: the leader adds up, in the order of the ranks, and sends the sum to all."""
        numbers = np.ascontiguousarray(numbers)
        if list(self._peers) == [0]:
            _send(self._peers[0], numbers)
            return _receive(self._peers[0], numbers)
        total = numbers.copy()
        for rank in sorted(self._peers):
            total += _receive(self._peers[rank], numbers)
        for rank in sorted(self._peers):
            _send(self._peers[rank], total)
        return total

    def close(self) -> None:
        for peer in self._peers.values():
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def accept_links(listener: socket.socket, identity: Identity, processes: int, wait: float, secret: bytes) -> Links:
    """The leader waits for the link of every other process. Whoever does not know the secret is logged and closed."""
    peers: dict[int, ssl.SSLSocket] = {}
    deadline, door = time.monotonic() + wait, Door(listener, partial(_greet, identity, processes, secret))
    try:
        while len(peers) < processes - 1:
            try:
                peer, rank = door.arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                Links(peers).close()
                raise SottoError(
                    f"after {wait:g} s not all processes had an encrypted connection; start again"
                ) from None
            if rank in peers:
                log.warning("process %d came twice, and its second connection is closed; waiting on", rank)
                peer.close()
            else:
                peers[rank] = peer
    finally:
        door.close()
    return Links(peers)


def _greet(identity: Identity, processes: int, secret: bytes, plain: socket.socket) -> tuple[ssl.SSLSocket, int]:
    """The leader's end of a handshake: the encrypted connection, and the rank at its other end."""
    peer = identity.context.wrap_socket(plain, server_side=True)
    with ExitStack() as on_error:
        on_error.enter_context(peer)
        (rank,) = _RANK.unpack(_read(peer, _RANK.size))
        known = hmac.compare_digest(_read(peer, _PROOF), _proof(secret, identity.certificate, rank))
        if not known or not 0 < rank < processes:
            raise NotAMember("does not know the secret")
        on_error.pop_all()
    return peer, rank


def open_link(host: str, port: int, certificate: str, rank: int, wait: float, secret: bytes) -> Links:
    """The link of a process to the leader. Nothing is sent to an end that has another certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its hash is checked instead
    with ExitStack() as on_error:
        try:
            plain = on_error.enter_context(socket.create_connection((host, port), timeout=wait))
            peer = on_error.enter_context(context.wrap_socket(plain))
            shown = _hash(peer.getpeercert(binary_form=True) or b"")
            if not hmac.compare_digest(shown, certificate):
                raise SottoError(f"{host}:{port} is not process 0: somebody is in between; the run was not begun")
            peer.sendall(_RANK.pack(rank) + _proof(secret, certificate, rank))
        except OSError as error:
            raise SottoError(f"no encrypted connection to process 0 at {host}:{port} ({error}); start again") from None
        on_error.pop_all()
    return Links({0: peer})


def _proof(secret: bytes, certificate: str, rank: int) -> bytes:
    return hmac.digest(secret, f"sums of process {rank} to {certificate}".encode(), "sha256")


def _hash(certificate: bytes) -> str:
    return sha256(certificate).hexdigest()


def _send(peer: ssl.SSLSocket, numbers: np.ndarray) -> None:
    peer.sendall(_HEADER.pack(numbers.dtype.str.encode(), numbers.nbytes))
    if numbers.nbytes:
        peer.sendall(numbers.data.cast("B"))


def _receive(peer: ssl.SSLSocket, like: np.ndarray) -> np.ndarray:
    """An array of the length and dtype that this process has: the others must not be able to ask for more memory."""
    kind, size = _HEADER.unpack(_read(peer, _HEADER.size))
    if (kind.rstrip(b"\0").decode("latin-1"), size) != (like.dtype.str, like.nbytes):
        raise ConnectionError("the processes are out of step")
    return np.frombuffer(_read(peer, size), like.dtype).reshape(like.shape)


def _read(peer: ssl.SSLSocket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = peer.recv_into(left)
        if not count:
            raise ConnectionError("the connection was closed")
        left = left[count:]
    return data
