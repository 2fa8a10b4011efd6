"""The server's end of the lines of devices, at a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation.flower import line
from sottovoce.federation.flower.line import Line
from sottovoce.federation.flower.sockets import private_folder


class Ends:
    """A line, and requests of devices on it."""

    def __init__(self, opened: Line, client: httpx.Client, threads: ThreadPoolExecutor):
        self.line, self._client, self._threads = opened, client, threads

    def look(self, name: str, have: str = "", answer: bytes = b""):
        """What a request will bring: the name of a message, and the message; or the status."""

        def post() -> tuple[str, bytes] | int:
            headers = {line.DEVICE: name, line.HAVE: have}
            found = self._client.post(line.PATH, headers=headers, content=answer)
            return (found.headers[line.MESSAGE], found.content) if found.status_code == 200 else found.status_code

        return self._threads.submit(post)

    def got(self, name: str, have: str = "", answer: bytes = b""):
        return self.look(name, have, answer).result(10)


@contextmanager
def ends() -> Iterator[Ends]:
    with private_folder() as folder, ThreadPoolExecutor(8) as threads, Line(folder / "line") as opened:
        transport = httpx.HTTPTransport(uds=str(folder / "line"))
        with httpx.Client(base_url="http://localhost", transport=transport, timeout=20) as client:
            yield Ends(opened, client, threads)


def test_a_line_brings_messages_to_devices_that_wait_and_their_answers_under_their_names():
    """Guarantee of `Line`: an answer counts once, under its name, and in its own exchange."""
    with ends() as at:
        early = at.look("alice")  # it waits before there is a message
        while at.line.silent("alice") > 0:
            pass
        at.line.ask({"alice": b"for alice", "clinic": b"for clinic"})
        name, message = early.result(10)
        assert message == b"for alice"
        assert at.got("clinic") == (name, b"for clinic")  # it comes when the message is there
        assert at.got("clinic") == (name, b"for clinic")  # its connection broke: once more
        waiting = at.look("alice", name, b"of alice")
        assert list(at.line.answers(10)) == [("alice", b"of alice")]
        again = at.look("alice", name, b"something else")  # counts once; and releases the request before it
        assert waiting.result(10) == 204
        assert list(at.line.answers(0.05)) == []
        at.line.ask({"alice": b"next"})
        second, message = again.result(10)
        assert (message, second != name) == (b"next", True)
        # An answer to the message of the exchange before, and one of a device that is not asked.
        assert at.got("alice", name, b"late") == (second, b"next")
        silent = at.look("clinic", name, b"late")
        assert list(at.line.answers(0.05)) == []
        at.line.ring(["clinic"])
        assert silent.result(10)[1] == b""


def test_who_is_heard_and_who_has_a_message_is_known():
    with ends() as at:
        assert at.line.silent("alice") == float("inf")
        at.line.ask({"alice": b"message", "clinic": b"message"})
        name, _ = at.got("alice")
        assert (at.line.has("alice"), at.line.has("clinic")) == (True, False)
        assert 0 < at.line.silent("alice") < 60  # it works
        waiting = at.look("alice", name, b"answer")
        list(at.line.answers(10))
        assert at.line.silent("alice") == 0
        at.line.ring(["alice"])
        assert waiting.result(10)[1] == b""


def test_a_request_that_waits_in_vain_is_answered_in_time(monkeypatch):
    monkeypatch.setattr(line, "HOLD", 0.05)
    with ends() as at:
        assert at.got("alice") == 204
