"""A device beside its SuperNode, when the connection between them breaks off. Flower is played here."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation.flower import supernode_client
from sottovoce.federation.flower.supernode_client import SuperNodeClient


class SuperNode:
    def __init__(self):
        self.ended: int | None = -1
        self.did: list[str] = []
        self.arguments: list[tuple[Path, ...]] = []
        self.words, self.log, self.secret = "", "supernode.log", b""

    def start(self, *more: Path) -> None:
        self.did.append("start")
        self.arguments.append(more)
        self.ended = None

    def output(self) -> str:
        return self.words

    def keep_log_short(self) -> None: ...

    def stop(self) -> None:
        self.did.append("stop")
        self.ended = 0


class TwoTasks:
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


def hosted(desk: TwoTasks, monkeypatch) -> SuperNodeClient:
    """A host whose SuperNode is played, and whose desk is at hand as soon as that runs."""
    monkeypatch.setattr(supernode_client, "AGAIN", 0.0)
    monkeypatch.setattr(supernode_client, "POLL", 0.0)
    monkeypatch.setattr(supernode_client, "TaskQueue", lambda socket, secret: desk)
    made = object.__new__(SuperNodeClient)
    made.supernode, made._status, made.told, made._queue = SuperNode(), "", [], desk
    made._starts, made._sockets, made._line = 0, Path("sockets"), SimpleNamespace(open=nullcontext)
    made._notify, made._answer = made.told.append, desk.answer
    return made


@pytest.mark.parametrize("fault", [httpx.ReadError("reset"), RuntimeError("the push session expired")])
def test_a_supernode_that_has_a_part_of_an_answer_is_started_anew(fault, monkeypatch, caplog):
    """It would wait for the rest for ever, and the device would be away for good."""
    desk = TwoTasks(fault)
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
    desk = TwoTasks(ValueError())
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
    desk = TwoTasks(ValueError())
    made, rounds = hosted(desk, monkeypatch), iter(range(4))
    made._answer_one = lambda: setattr(made.supernode, "ended", 1) or True
    made.run(stop=lambda: next(rounds) == 3)
    assert [socket.name for (socket,) in made.supernode.arguments] == ["1", "2", "3"]
    assert not any(socket.parent.exists() for (socket,) in made.supernode.arguments)  # they are gone in the end
    assert desk.closed == 4  # nor is a connection to the one before kept, or to the last at the end


def test_the_owner_is_told_how_a_device_is_connected_when_that_changes(monkeypatch):
    made = hosted(TwoTasks(ValueError()), monkeypatch)
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
