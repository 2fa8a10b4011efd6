"""A device beside its SuperNode, when the connection between them breaks off. Flower is played here."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation.flower import internals, supernode, supernode_client
from sottovoce.federation.flower.internals import Desk
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.supernode_client import Host

NO_TASK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def breaking_off(times: int) -> Iterator[tuple[Path, list[bytes]]]:
    """A listener that reads requests, closes the connections of the first ones without a word, and answers the rest."""
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it was closed
                return
            with connection:
                requests.append(connection.recv(2**16))
                if len(requests) > times:
                    connection.sendall(NO_TASK)

    with private_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "desk"))
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield folder / "desk", requests
        listener.shutdown(socket.SHUT_RDWR)


def test_a_request_whose_connection_breaks_off_is_made_again():
    with breaking_off(internals.TRIES - 1) as (address, requests):
        desk = Desk(address, b"s" * 32)
        assert desk.acquire("clientapp") is None
        desk.close()
    assert len(requests) == internals.TRIES


def test_a_desk_that_breaks_off_every_time_is_given_up():
    with breaking_off(100) as (address, requests):
        desk = Desk(address, b"s" * 32)
        with pytest.raises(httpx.TransportError):
            desk.acquire("clientapp")
        desk.close()
    assert len(requests) == internals.TRIES


class SuperNode:
    def __init__(self):
        self.ended: int | None = -1
        self.did: list[str] = []
        self.arguments: list[tuple[Path, ...]] = []
        self.words, self.log = "", "supernode.log"

    def start(self, *more: Path) -> None:
        self.did.append("start")
        self.arguments.append(more)
        self.ended = None

    def said(self) -> str:
        return self.words

    def keep_log_short(self) -> None: ...

    def stop(self) -> None:
        self.did.append("stop")
        self.ended = 0


class TasksOnDesk:
    """Two tasks; the first cannot be answered."""

    def __init__(self, fault: Exception):
        self.left, self.fault, self.answered, self.closed = ["first", "second"], fault, [], 0

    def acquire(self, kind: str) -> str | None:
        return self.left.pop(0) if self.left else None

    def close(self) -> None:
        self.closed += 1

    def answer(self, token: str) -> None:
        if token == "first":
            raise self.fault
        self.answered.append(token)


def hosted(desk: TasksOnDesk, monkeypatch) -> Host:
    """A host whose SuperNode is played, and whose desk is at hand as soon as that runs."""
    monkeypatch.setattr(supernode_client, "AGAIN", 0.0)
    monkeypatch.setattr(supernode_client, "POLL", 0.0)
    monkeypatch.setattr(internals, "Desk", lambda socket, secret: desk)
    made = object.__new__(Host)
    made.supernode, made._secret, made._said, made.told, made._desk = SuperNode(), b"", "", [], desk
    made._starts, made._sockets = 0, Path("sockets")
    made._say, made._answer = made.told.append, desk.answer
    return made


@pytest.mark.parametrize("fault", [httpx.ReadError("reset"), RuntimeError("the push session expired")])
def test_a_supernode_that_has_a_part_of_an_answer_is_started_anew(fault, monkeypatch, caplog):
    """It would wait for the rest for ever, and the device would be away for good."""
    desk = TasksOnDesk(fault)
    made = hosted(desk, monkeypatch)
    made.run(stop=lambda: bool(desk.answered))
    assert made.supernode.did == ["start", "stop", "start", "stop"]
    assert desk.answered == ["second"]
    assert "was not handed over" in caplog.text


@pytest.mark.parametrize(
    ("fault", "stops"),
    [(httpx.ConnectError("refused"), 1), (httpx.ReadTimeout("timed out"), 2), (httpx.ReadError("reset"), 2)],
)
def test_a_supernode_that_hangs_is_started_anew_and_one_that_is_not_there_yet_is_waited_for(fault, stops, monkeypatch):
    desk = TasksOnDesk(ValueError())
    desk.left, faults, acquire = ["second"], [fault], desk.acquire
    desk.acquire = lambda kind: _raise(faults.pop()) if faults else acquire(kind)
    made = hosted(desk, monkeypatch)
    made.run(stop=lambda: bool(desk.answered))
    assert made.supernode.did == ["start", "stop"] * stops
    assert desk.answered == ["second"]


def _raise(error: Exception):
    raise error


def test_a_supernode_that_ends_is_started_again_at_another_socket(monkeypatch):
    """The one before may still be in use by what is left of it."""
    desk = TasksOnDesk(ValueError())
    made, rounds = hosted(desk, monkeypatch), iter(range(4))
    made._answer_one = lambda: setattr(made.supernode, "ended", 1) or True
    made.run(stop=lambda: next(rounds) == 3)
    assert [socket.name for (socket,) in made.supernode.arguments] == ["1", "2", "3"]
    assert not any(socket.parent.exists() for (socket,) in made.supernode.arguments)  # they are gone in the end
    assert desk.closed == 4  # nor is a connection to the one before kept, or to the last at the end


def test_the_owner_is_told_how_a_device_is_connected_when_that_changes(monkeypatch):
    made = hosted(TasksOnDesk(ValueError()), monkeypatch)
    made.supernode.ended = None
    started = "INFO : Starting Flower SuperNode\n"
    for words, said in [
        (started, None),
        (started + "WARNING : Connection attempt failed, retrying in 2.1 seconds\n", "does not answer"),
        (started + "WARNING : Connection attempt failed, retrying in 9.1 seconds\n", None),
        (started + "Connection attempt failed\nINFO : SuperNode ID: 17\n", "connected"),
        (started + "INFO : SuperNode ID: 17\nSuperNode terminated gracefully.\n", "was lost"),
        (started + "[code: 2004] Failed to activate SuperNode.\nINFO: Shutting down\n", "not on the roster"),
        (started + "[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired\n", "certificate"),
        (started + "SuperNode terminated gracefully.\n", "clocks must agree"),
        ("Received successfully\nSuperNode terminated gracefully.\n", "was lost"),  # its beginning is no longer seen
    ]:
        made.supernode.words = words
        made._look_after()
        told, made.told[:] = list(made.told), []
        assert (told == []) if said is None else (len(told) == 1 and said in told[0]), (words, told)
    made.supernode.words, made.supernode.ended = started + "ValueError: a new one\n", 3
    made._look_after()
    made.supernode.words, made.supernode.ended = started + "INFO : SuperNode ID: 17\n", -9  # no longer connected
    made._look_after()
    assert made.told == [
        f"the SuperNode ended (status {status}); its log is supernode.log; trying again" for status in (3, -9)
    ]


def test_a_task_that_cannot_be_finished_is_a_fault_and_one_that_is_finished_is_none(monkeypatch):
    """Flower would take it for crashed after a minute, and say so in the name of the next one."""
    monkeypatch.setattr("flwr.common.serde.context_to_proto", lambda context: None)
    request = httpx.Request("POST", "http://x")
    over = httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))

    def client(fault: Exception) -> SimpleNamespace:
        def push(output) -> None:
            assert output.sub_status == "completed"
            raise fault

        return SimpleNamespace(PushTaskOutput=push)

    internals.finish(client(over), None)
    with pytest.raises(httpx.ReadTimeout):
        internals.finish(client(httpx.ReadTimeout("no answer")), None)


def test_a_supernode_whose_connection_is_given_up_ends(monkeypatch):
    """The process of Flower's goes on, and nobody would start it again."""
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: None)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr("sys.argv", ["supernode", "--option", "socket"])
    monkeypatch.setattr(supernode, "listen_at", lambda path: ended.append(path))
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    supernode.main()
    assert ended == ["socket", 1]


def test_a_supernode_whose_heartbeat_fails_ends(monkeypatch, capsys):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    sent = []
    monkeypatch.setattr("os.kill", lambda process, signal: sent.append((process, signal)))
    supernode.end_with_any_thread()
    beating = threading.Thread(target=lambda: 1 / 0)
    beating.start()
    beating.join()
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert "ZeroDivisionError" in capsys.readouterr().err
