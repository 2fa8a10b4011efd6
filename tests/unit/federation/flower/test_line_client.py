"""The device's end of its line, against a server that is played."""

from __future__ import annotations

import json
import threading
import time
from contextlib import nullcontext
from functools import partial

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation import keys
from sottovoce.federation.flower import line, line_client
from sottovoce.federation.flower.line_client import LineClient


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "device.json").write_text(json.dumps({"name": "clinic"}))
    keys.write_node_key(tmp_path)
    return tmp_path


class Server:
    """Gives what it was given, one after another, and keeps what was asked."""

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.headers[line.HAVE], request.content, dict(request.headers)))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def message(name: str, data: bytes) -> httpx.Response:
    return httpx.Response(200, content=data, headers={line.MESSAGE: name})


def played(bundle, server: Server, monkeypatch) -> list[str]:
    """Answer until the server has no more; gives when it rang."""
    monkeypatch.setattr(line_client, "SOON", 0.0)
    rung: list[str] = []
    client = LineClient(bundle, "192.0.2.7:1234", lambda data: b"answer to " + data, lambda: rung.append("rung"))
    look = client._look

    def until_empty(given) -> None:
        look(given)
        if not server.replies:
            client._over.set()

    client._look = until_empty
    with httpx.Client(transport=httpx.MockTransport(server)) as given:
        thread = threading.Thread(target=client._run, args=(given,))
        thread.start()
        thread.join(10)
    assert not thread.is_alive()
    return rung


def test_a_device_answers_each_message_and_an_answer_that_did_not_arrive_is_sent_again(bundle, monkeypatch):
    server = Server(
        httpx.Response(204),
        message("m-1", b"first"),
        httpx.ReadError("broken"),  # did the answer arrive? it is sent again, and the server counts it once
        httpx.Response(503),
        httpx.Response(204),  # it did
        message("m-2", b"second"),
        message("m-3", b""),
        httpx.Response(204),
    )
    assert played(bundle, server, monkeypatch) == ["rung"]
    first, second = b"answer to first", b"answer to second"
    before, after = [("", b""), ("", b"")], [("m-1", b""), ("m-2", second), ("m-3", b"")]
    assert [(have, sent) for have, sent, _ in server.asked] == [*before, *[("m-1", first)] * 3, *after]


def test_every_request_is_signed_by_the_key_of_the_device(bundle, monkeypatch):
    server = Server(message("m-1", b"first"), httpx.Response(204))
    played(bundle, server, monkeypatch)
    known = {"clinic": keys.public_key_pem(keys.public_half(bundle / keys.NODE_KEY))}
    assert [line.caller(headers, known) for _, _, headers in server.asked] == ["clinic"] * 2


def test_an_answer_that_the_server_does_not_take_is_given_up(bundle, monkeypatch):
    server = Server(message("m-1", b"first"), httpx.Response(413), httpx.Response(204))
    played(bundle, server, monkeypatch)
    assert [sent for _, sent, _ in server.asked] == [b"", b"answer to first", b""]


@pytest.fixture
def opened(bundle, monkeypatch):
    """A client of a server that gives one message, and what its `open` makes of an answer to it."""
    server = Server(message("m-1", b"first"))
    transport = httpx.MockTransport(server)
    monkeypatch.setattr(line_client.ssl, "create_default_context", lambda cafile: None)
    make = httpx.Client
    monkeypatch.setattr(line_client.httpx, "Client", lambda **options: make(transport=transport))
    return partial(LineClient, bundle, "192.0.2.7:1234", rung=lambda: None)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_an_answer_that_was_begun_is_done_when_the_line_is_left(opened, error):
    """It is computed by JAX: the end of Python must not come meanwhile."""
    begun, left, done = threading.Event(), threading.Event(), threading.Event()

    def answer(data: bytes) -> bytes:
        begun.set()
        left.wait(10)
        time.sleep(1.5)  # longer than a thread that only waits for a server is given
        done.set()
        return data

    with pytest.raises(error) if error else nullcontext(), opened(answer=answer).open():
        assert begun.wait(10)
        left.set()
        if error:
            raise error
    assert done.is_set()


def test_no_answer_is_begun_once_the_line_is_left(opened):
    client = opened(answer=lambda data: pytest.fail("it was begun"))
    client._over.set()
    with httpx.Client(transport=httpx.MockTransport(Server(message("m-1", b"first")))) as given:
        client._look(given)
    assert client._unsent == b""
