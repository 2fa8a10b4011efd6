"""Starting together, and noticing a lost process, without JAX."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from contextlib import suppress

import pytest

from sottovoce.multiprocess import rendezvous
from sottovoce.multiprocess.rendezvous import Address
from sottovoce_evidence.errors import SottoError

OPEN = []
SECRET = b"known to these processes alone"


@pytest.fixture(autouse=True)
def known_secret(monkeypatch):
    monkeypatch.setenv("SOTTO_SECRET", SECRET.decode())


@pytest.fixture(autouse=True)
def closed_in_the_end():
    yield
    while OPEN:
        OPEN.pop().close()


def meet(others, processes, wait=20.0):
    """Process 0 and some others: what each came to have, a pair of connections and reply, or an error."""
    found = {}
    with rendezvous.listen("127.0.0.1", 0) as listener:
        address = Address(f"127.0.0.1:{listener.getsockname()[1]}")

        def come(place, number, believed):
            try:
                found[place] = rendezvous.connect(address, number, believed, wait, SECRET)
                OPEN.append(found[place][0])
            except SottoError as error:
                found[place] = str(error)

        threads = [threading.Thread(target=come, args=(place, *other)) for place, other in enumerate(others)]
        for thread in threads:
            thread.start()
        try:
            first = rendezvous.accept_all(listener, processes, wait, {"port": 5}, SECRET)
            OPEN.append(first)
        except SottoError as error:
            first = str(error)
        for thread in threads:
            thread.join(60)
    return first, found


def test_all_meet_and_each_sees_who_is_gone():
    first, others = meet([(1, 3), (2, 3)], 3)
    assert [reply for _, reply in others.values()] == [{"port": 5}] * 2
    assert first.lost(0.05) is None
    others[1][0].close()
    assert first.lost(10) == 2
    assert others[0][0].lost(0.05) is None
    first.close()
    assert others[0][0].lost(10) == 0


def test_the_end_of_another_process_is_acted_on_unless_it_was_expected():
    first, others = meet([(1, 2)], 2)
    told = threading.Event()
    first.when_lost(lambda number: told.set())
    others[0][0].close()
    assert told.wait(10)
    first, others = meet([(1, 2)], 2)
    told = threading.Event()
    first.when_lost(lambda number: told.set())
    first.close()
    assert not told.wait(0.2)


@pytest.mark.parametrize(
    ("others", "message"),
    [([(1, 4), (2, 3)], "--processes 4"), ([(1, 3), (1, 3)], "two processes have --process-id 1")],
    ids=["another count", "the same number"],
)
def test_processes_that_contradict_one_another_are_refused_on_all_sides(others, message):
    first, found = meet(others, 3, wait=5)
    assert message in first
    assert any(message in str(end) for end in found.values())


def test_whoever_does_not_come_is_named():
    first, found = meet([(2, 3)], 3, wait=0.5)
    assert "process 1 of 3 did not come" in first
    assert "did not come" in found[0]


def shown(address, secret: bytes = SECRET) -> rendezvous.Channel:
    """The connection of a process that has shown that it knows the secret."""
    peer = socket.create_connection(address)
    channel = rendezvous.Channel(peer, time.monotonic() + 20)
    assert channel.read(16) == b"sottovoce meets\n"
    theirs, mine = channel.read(32), bytes(32)
    session = hmac.digest(secret, b"sottovoce lifeline" + theirs + mine, "sha256")
    peer.sendall(mine + hmac.digest(session, b"process", "sha256"))
    assert channel.read(32) == hmac.digest(session, b"process 0", "sha256")
    channel.authenticate(session, b"n", b"0")
    return channel


STRANGERS = {
    "a browser": b"GET / HTTP/1.1\r\n\r\n",
    "who says what a process says": b'{"hello": "sottovoce", "process": 1, "processes": 2}\n' + bytes(100),
    "who says only hello": b'{"hello":"sottovoce"}\n' + bytes(100),
    "who guesses": bytes(64),
    "who sends what is deep": b"[" * 200_000,
    "who says nothing": b"",
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=[*STRANGERS])
def test_strangers_at_the_port_are_named_and_process_0_goes_on_waiting(words, caplog, monkeypatch):
    """Anybody who reached it could end the run, or be its process 1."""
    monkeypatch.setattr(rendezvous, "HANDSHAKE", 1.0)  # of the stranger
    with rendezvous.listen("127.0.0.1", 0) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        met = []
        waiting = threading.Thread(
            target=lambda: met.append(rendezvous.accept_all(listener, 2, 30, {"port": 5}, SECRET))
        )
        waiting.start()
        with socket.create_connection(address, timeout=10) as stranger:
            greeted = b""
            while len(greeted) < 48:
                greeted += stranger.recv(48 - len(greeted))
            with suppress(OSError):
                stranger.sendall(words)
                if words:
                    assert stranger.recv(1) == b""  # not a word more
            monkeypatch.setattr(rendezvous, "HANDSHAKE", 10.0)
            channels, reply = rendezvous.connect(Address(f"127.0.0.1:{address[1]}"), 1, 2, 10, SECRET)
        waiting.join(30)
        OPEN.extend([channels, *met])
        assert (reply, len(met)) == ({"port": 5}, 1)
    if words:
        assert "the connection from 127.0.0.1 is no process of this run" in caplog.text
    assert SECRET.decode() not in caplog.text


@pytest.mark.slow
def test_what_was_heard_does_not_open_the_door_a_second_time():
    """What is signed is new every time."""

    def wait() -> None:
        with suppress(SottoError):
            rendezvous.accept_all(listener, 3, 2, {}, SECRET)

    with rendezvous.listen("127.0.0.1", 0) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        waiting = threading.Thread(target=wait)
        waiting.start()
        heard = b""
        for attempt in ("heard", "again"):
            with socket.create_connection(address) as peer:
                channel = rendezvous.Channel(peer, time.monotonic() + 20)
                theirs = channel.read(48)[16:]
                session = hmac.digest(SECRET, b"sottovoce lifeline" + theirs + bytes(32), "sha256")
                heard = heard or bytes(32) + hmac.digest(session, b"process", "sha256")
                peer.sendall(heard)
                if attempt == "heard":
                    assert len(channel.read(32)) == 32
                else:
                    with pytest.raises((OSError, rendezvous.NotAMember)):
                        channel.read(1)
        waiting.join(30)


@pytest.mark.parametrize("secret", [SECRET, b"another secret of as many letters"], ids=["reflected", "another"])
def test_a_process_does_not_speak_to_whoever_took_the_place_of_process_0(secret):
    """Not even that it is one, nor to one that only says its own words back to it."""
    heard = []
    with rendezvous.listen("127.0.0.1", 0) as listener:

        def pretend() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"sottovoce meets\n" + bytes(32))
                theirs = rendezvous.Channel(peer, time.monotonic() + 10).read(64)
                heard.append(theirs)
                session = hmac.digest(secret, b"sottovoce lifeline" + bytes(32) + theirs[:32], "sha256")
                reflected = theirs[32:]
                peer.sendall(reflected if secret == SECRET else hmac.digest(session, b"process 0", "sha256"))
                heard.append(peer.recv(1))

        playing = threading.Thread(target=pretend)
        playing.start()
        with pytest.raises(SottoError, match="the same secret"):
            rendezvous.connect(Address(f"127.0.0.1:{listener.getsockname()[1]}"), 1, 2, 10, SECRET)
        playing.join(10)
    assert heard[1] == b""
    assert SECRET not in heard[0]


def test_a_secret_is_long_and_its_owners_alone(tmp_path, monkeypatch):
    file = tmp_path / "secret"
    file.write_text("x" * 20 + "\n")
    file.chmod(0o640)
    with pytest.raises(SottoError, match="can be read by other users; make it yours alone: chmod 600"):
        rendezvous.shared_secret(file)
    file.chmod(0o600)
    assert rendezvous.shared_secret(file) == b"x" * 20
    assert rendezvous.shared_secret(None) == SECRET
    file.write_text("short")
    with pytest.raises(SottoError, match="has 5 letters, and must have 16 or more"):
        rendezvous.shared_secret(file)
    with pytest.raises(SottoError, match="cannot read --secret"):
        rendezvous.shared_secret(tmp_path / "none")
    monkeypatch.delenv("SOTTO_SECRET")
    with pytest.raises(SottoError, match="needs a secret that all processes share"):
        rendezvous.shared_secret(None)
