"""Tasks of a SuperLink or SuperNode, when the connection to it breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation.flower import task_queue
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.task_queue import TaskQueue

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
        listener.bind(str(folder / "queue"))
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
        yield folder / "queue", requests
        listener.shutdown(socket.SHUT_RDWR)


def test_a_request_whose_connection_breaks_off_is_made_again():
    with breaking_off(task_queue.TRIES - 1) as (address, requests):
        queue = TaskQueue(address, b"s" * 32)
        assert queue.acquire("clientapp") is None
        queue.close()
    assert len(requests) == task_queue.TRIES


def test_a_queue_that_breaks_off_every_time_is_given_up():
    with breaking_off(100) as (address, requests):
        queue = TaskQueue(address, b"s" * 32)
        with pytest.raises(httpx.TransportError):
            queue.acquire("clientapp")
        queue.close()
    assert len(requests) == task_queue.TRIES


def test_a_task_that_cannot_be_finished_is_a_fault_and_one_that_is_finished_is_none(monkeypatch):
    """Flower would take it for crashed after a minute, and say so in the name of the next one."""
    monkeypatch.setattr(task_queue, "context_to_proto", lambda context: None)
    request = httpx.Request("POST", "http://x")
    over = httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))

    def client(fault: Exception) -> SimpleNamespace:
        def push(output) -> None:
            assert output.sub_status == "completed"
            raise fault

        return SimpleNamespace(PushTaskOutput=push)

    task_queue.finish(client(over), None)
    with pytest.raises(httpx.ReadTimeout):
        task_queue.finish(client(httpx.ReadTimeout("no answer")), None)
