"""Sums over real encrypted connections: they are exact, and strangers neither read, nor change, nor take part."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

import numpy as np
import pytest

from sottovoce.multiprocess import links, rendezvous
from sottovoce.multiprocess.group import Group
from sottovoce.multiprocess.links import Identity, Links, accept_links, open_link
from sottovoce_evidence.errors import LostProcess, SottoError

SECRET = b"known to these processes alone"
NUMBERS = np.frombuffer(b"a sum that nobody else may read!" * 8, np.int32)


@pytest.fixture(scope="module")
def identity() -> Identity:
    return Identity.new()


def linked(identity: Identity, count: int, play: Callable[[Links, int], Any], port: int | None = None) -> list[Any]:
    """What `play` returns in each process, or its error; the others connect to `port`, if not to the leader's."""
    found: list[Any] = [None] * count

    def run(rank: int, make: Callable[[], Links]) -> None:
        try:
            with closing(make()) as made:
                found[rank] = play(made, rank)
        except Exception as error:  # noqa: BLE001
            found[rank] = error

    with socket.create_server(("127.0.0.1", 0)) as door:
        there = port or door.getsockname()[1]
        makes = [lambda: accept_links(door, identity, count, 20, SECRET)]
        for rank in range(1, count):
            makes.append(lambda rank=rank: open_link("127.0.0.1", there, identity.certificate, rank, 20, SECRET))
        threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(makes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return found


def test_sums_over_encrypted_connections_are_exact(identity):
    large = np.arange(300_000, dtype=np.int32) * 7

    def play(made, rank):
        return [made.all_reduce(numbers * (rank + 1)) for numbers in (large, NUMBERS[:0], np.ones(5, np.float32))]

    for sums in linked(identity, 3, play):
        assert (sums[0] == large * 6).all()
        assert (len(sums[1]), sums[2].tolist(), sums[2].dtype) == (0, [6.0] * 5, np.float32)


def test_processes_out_of_step_are_noticed(identity):
    found = linked(identity, 2, lambda made, rank: made.all_reduce(NUMBERS[: 9 + rank]))
    assert all(isinstance(each, ConnectionError) for each in found)
    assert "out of step" in str(found[0])


def test_nobody_reads_a_sum_on_the_way(identity):
    """Somebody in between passes everything on, and keeps it. A plain connection would show the numbers."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_server(("127.0.0.1", 0)) as between:
        passing = threading.Thread(target=_pass_on, args=(between, door.getsockname()[1], heard), daemon=True)
        passing.start()
        made: list[Any] = []
        leading = threading.Thread(target=lambda: made.append(accept_links(door, identity, 2, 20, SECRET)), daemon=True)
        leading.start()
        other = open_link("127.0.0.1", between.getsockname()[1], identity.certificate, 1, 20, SECRET)
        leading.join(20)
        adding = threading.Thread(target=lambda: made.append(other.all_reduce(NUMBERS)), daemon=True)
        adding.start()
        assert (made[0].all_reduce(NUMBERS) == 2 * NUMBERS).all()
        adding.join(20)
        for each in (other, made[0]):
            each.close()
        passing.join(20)
    assert len(heard) > 4 * NUMBERS.nbytes / 2
    for said in (b"nobody else", (2 * NUMBERS).tobytes()[:16], SECRET):
        assert said not in heard


def _pass_on(between: socket.socket, port: int, heard: bytearray) -> None:
    one, _ = between.accept()
    other = socket.create_connection(("127.0.0.1", port))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                heard.extend(data)
                target.sendall(data)

    with one, other:
        back = threading.Thread(target=pump, args=(other, one), daemon=True)
        back.start()
        pump(one, other)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        back.join(20)


def test_an_end_with_another_certificate_is_sent_nothing(identity):
    """Somebody in between who speaks TLS too. The proof of the secret stays here."""
    other, heard = Identity.new(), []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def pretend() -> None:
            plain, _ = between.accept()
            with suppress(OSError), other.context.wrap_socket(plain, server_side=True) as peer:
                heard.append(peer.recv(100))

        pretending = threading.Thread(target=pretend, daemon=True)
        pretending.start()
        with pytest.raises(SottoError, match="is not process 0: somebody is in between"):
            open_link("127.0.0.1", between.getsockname()[1], identity.certificate, 1, 5, SECRET).close()
        pretending.join(20)
    assert heard in ([], [b""])


def _stranger(port: int, secret: bytes, certificate: str) -> Links:
    """A connection whose proof is of this secret and certificate: guessed, or heard in another run."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    peer = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20))
    peer.sendall(links._RANK.pack(1) + links._proof(secret, certificate, 1))
    return Links({0: peer})


@pytest.mark.parametrize("secret", [b"another secret of somebody", SECRET], ids=["guessed", "for another certificate"])
def test_who_does_not_know_the_secret_is_not_counted(identity, secret, caplog):
    with socket.create_server(("127.0.0.1", 0)) as door:
        port, made = door.getsockname()[1], []
        leading = threading.Thread(target=lambda: made.append(accept_links(door, identity, 2, 20, SECRET)), daemon=True)
        leading.start()
        stranger = _stranger(port, secret, identity.certificate if secret != SECRET else "0" * 64)
        member = open_link("127.0.0.1", port, identity.certificate, 1, 20, SECRET)
        leading.join(20)
        adding = threading.Thread(target=lambda: made.append(member.all_reduce(NUMBERS)), daemon=True)
        adding.start()
        assert (made[0].all_reduce(NUMBERS) == 2 * NUMBERS).all()
        with pytest.raises(OSError):  # noqa: PT011
            stranger.all_reduce(NUMBERS)
        adding.join(20)
        for each in (stranger, member, made[0]):
            each.close()
    assert "is no process of this run" in caplog.text


@pytest.mark.parametrize("most", [100, 3])
def test_strangers_who_are_silent_keep_nobody_waiting(identity, monkeypatch, most):
    """However many they are: those who prove nothing wait side by side, and beyond a number the oldest leaves."""
    monkeypatch.setattr(rendezvous, "MAX_HANDSHAKES", most)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as door, ExitStack() as strangers:
        for _ in range(30):
            strangers.enter_context(socket.create_connection(door.getsockname()))
        made: list[Any] = []
        leading = threading.Thread(target=lambda: made.append(accept_links(door, identity, 2, 8, SECRET)), daemon=True)
        leading.start()
        with closing(open_link("127.0.0.1", door.getsockname()[1], identity.certificate, 1, 5, SECRET)):
            leading.join(5)  # less than the time that one stranger has
            assert made
            made[0].close()


def test_a_closed_connection_is_a_lost_process(identity):
    def play(made, rank):
        if rank:
            return made.close()
        return Group(0, 2, None, made).all_reduce(NUMBERS)

    found = linked(identity, 2, play)
    assert isinstance(found[0], LostProcess)


def test_the_leader_does_not_wait_for_ever(identity):
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(SottoError, match=r"after 0\.05 s"):
        accept_links(door, identity, 2, 0.05, SECRET)
