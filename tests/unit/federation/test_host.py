"""A device beside its SuperNode, when the connection between them breaks off. Flower is played here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation import flower, host
from sottovoce.federation.flower import Desk
from sottovoce.federation.host import Host

NO_TASK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@contextmanager
def breaking_off(times: int) -> Iterator[tuple[str, list[bytes]]]:
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

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", requests
        listener.shutdown(socket.SHUT_RDWR)


def test_a_request_whose_connection_breaks_off_is_made_again():
    with breaking_off(flower.TRIES - 1) as (address, requests):
        desk = Desk(address, b"s" * 32)
        assert desk.acquire("clientapp") is None
        desk.close()
    assert len(requests) == flower.TRIES


def test_a_desk_that_breaks_off_every_time_is_given_up():
    with breaking_off(100) as (address, requests):
        desk = Desk(address, b"s" * 32)
        with pytest.raises(httpx.TransportError):
            desk.acquire("clientapp")
        desk.close()
    assert len(requests) == flower.TRIES


class SuperNode:
    def __init__(self):
        self.ended: int | None = -1
        self.did: list[str] = []

    def start(self) -> None:
        self.did.append("start")
        self.ended = None

    def stop(self) -> None:
        self.did.append("stop")
        self.ended = 0


class TasksOnDesk:
    """Two tasks; the first cannot be answered."""

    def __init__(self, fault: Exception):
        self.left, self.fault, self.answered = ["first", "second"], fault, []

    def acquire(self, kind: str) -> str | None:
        return self.left.pop(0) if self.left else None

    def answer(self, token: str) -> None:
        if token == "first":
            raise self.fault
        self.answered.append(token)


@pytest.mark.parametrize("fault", [httpx.ReadError("reset"), RuntimeError("the push session expired")])
def test_a_supernode_that_has_a_part_of_an_answer_is_started_anew(fault, monkeypatch, caplog):
    """It would wait for the rest for ever, and the device would be away for good."""
    monkeypatch.setattr(host, "AGAIN", 0.0)
    made, desk = object.__new__(Host), TasksOnDesk(fault)
    made.supernode, made._desk, made._say = SuperNode(), desk, lambda text: None
    made._answer = desk.answer
    made.run(stop=lambda: bool(desk.answered))
    assert made.supernode.did == ["start", "stop", "start", "stop"]
    assert desk.answered == ["second"]
    assert "was not handed over" in caplog.text
