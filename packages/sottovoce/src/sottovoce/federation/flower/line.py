"""A line from each device to the server, for messages that devices wait for. It does not pass Flower.

Flower needs some nine calls for the smallest message and its answer, and a device looks for a message now and then. On
the line a device has a request open all the time: it carries the answer to the last message, and brings the next one.
The proxy checks who asks, and passes the request on to a socket of the server's process, where `Line` is.
"""

from __future__ import annotations

import asyncio
import queue
import secrets as os_entropy
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sottovoce.federation.keys import is_signed_by
from sottovoce_evidence.errors import LostProcess

PATH = "/v1/line"
SOCKET = "line"  # next to the SuperLink's
HOLD = 20.0  # seconds that a request waits for a message
CLOCK = timedelta(minutes=5)  # by which the clocks of device and server may differ
START = 10.0  # seconds
# Headers: who asks, when, the last message that they have, and the digest of their answer to it; then of a message.
DEVICE, TIME, HAVE, DIGEST, SIGNATURE = "sotto-device", "sotto-time", "sotto-have", "sotto-digest", "sotto-signature"
MESSAGE = "sotto-message"


def signed_headers(name: str, have: str, answer: bytes, sign: Callable[[bytes], bytes]) -> dict[str, str]:
    """The headers of a request. What they say is signed, so that nobody else can ask or answer in a device's name."""
    headers = {DEVICE: name, TIME: datetime.now(UTC).isoformat(), HAVE: have, DIGEST: sha256(answer).hexdigest()}
    return {**headers, SIGNATURE: b64encode(sign(_claim(headers))).decode()}


def caller(headers: Mapping[str, str], public_keys: Mapping[str, bytes]) -> str | None:
    """The registered device that signed the headers of a request, not long ago; none if no device did."""
    try:
        name, then = headers[DEVICE], datetime.fromisoformat(headers[TIME])
        signature = b64decode(headers[SIGNATURE], validate=True)
        recent = abs(datetime.now(UTC) - then) <= CLOCK
        known = name in public_keys and recent and is_signed_by(public_keys[name], signature, _claim(headers))
    except (KeyError, ValueError, TypeError, OverflowError):  # TypeError: a time without a zone
        return None
    return name if known else None


def _claim(headers: Mapping[str, str]) -> bytes:
    """What is signed. No header has a line break in it."""
    return "\n".join(["sottovoce line 1", *(headers[name] for name in (DEVICE, TIME, HAVE, DIGEST))]).encode()


@dataclass
class _Desk:
    """The server's end of the line of one device."""

    message: str = ""  # the name of the message that the device is to have
    data: bytes = b""  # none: a ring
    given: bool = False  # it was sent
    answered: bool = False
    waiting: asyncio.Future[None] | None = None  # the request that is open
    seen: float = 0.0  # when a request last came or was answered

    def counts(self, have: str) -> bool:
        """Is the answer to that message the first one to the message of this exchange?"""
        return bool(have) and have == self.message and not self.answered


class Line:
    """Messages to devices on their lines, and their answers. One exchange at a time.

    Guarantee: an answer comes under the name of the device that signed it, and answers the message of this exchange; of
    each device one counts.
    """

    def __init__(self, socket: Path):
        self._desks: dict[str, _Desk] = {}
        self._exchange, self._token = 0, os_entropy.token_hex(8)  # a server that was started again has other names
        self._answers: queue.SimpleQueue[tuple[int, str, bytes]] = queue.SimpleQueue()
        app = Starlette(routes=[Route(PATH, self._serve, methods=["POST"])])
        quiet = {"log_level": "warning", "access_log": False, "ws": "none"}
        config = uvicorn.Config(app, uds=str(socket), lifespan="off", timeout_graceful_shutdown=1, **quiet)
        self._server = uvicorn.Server(config)

    def __enter__(self) -> Line:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until = time.monotonic() + START
        while not self._server.started:
            if time.monotonic() > until or not self._thread.is_alive():
                raise LostProcess("the line to the devices cannot be opened; start the server again")
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._release, list(self._desks))
        self._thread.join(START)

    def ask(self, messages: Mapping[str, bytes]) -> None:
        """Begin an exchange. Messages and answers of the one before are dropped."""
        self._exchange += 1
        self._loop.call_soon_threadsafe(self._put, self._exchange, dict(messages))

    def ring(self, names: Collection[str]) -> None:
        """Have devices look at Flower for a message now."""
        self.ask(dict.fromkeys(names, b""))

    def answers(self, seconds: float) -> Iterator[tuple[str, bytes]]:
        """The answers that are there; if there are none, those that come in some seconds."""
        try:
            found = self._answers.get(timeout=seconds)
            while True:
                exchange, name, answer = found
                if exchange == self._exchange:
                    yield name, answer
                found = self._answers.get_nowait()
        except queue.Empty:
            return

    def silent(self, name: str) -> float:
        """The seconds for which nothing was heard of a device; 0 while its request is open."""
        desk = self._desks.get(name)
        if desk is None:
            return float("inf")
        return 0.0 if desk.waiting is not None else time.monotonic() - desk.seen

    def has(self, name: str) -> bool:
        """Was the message of this exchange sent to the device?"""
        return name in self._desks and self._desks[name].given

    # What follows runs in the thread of the line.

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._server.serve())
        finally:
            self._loop.close()

    def _put(self, exchange: int, messages: dict[str, bytes]) -> None:
        for name in {*self._desks, *messages}:
            desk = self._desks.setdefault(name, _Desk())
            desk.answered, desk.given = False, False
            asked = name in messages
            desk.message = f"{self._token}-{exchange}" if asked else ""
            desk.data = messages.get(name, b"")
        self._release(messages)

    def _release(self, names: Collection[str]) -> None:
        """Let the open requests of devices go on."""
        for name in names:
            waiting = self._desks[name].waiting
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    async def _serve(self, request: Request) -> Response:
        name, have = request.headers[DEVICE], request.headers.get(HAVE, "")  # the proxy's word for it
        answer = await request.body()
        desk = self._desks.setdefault(name, _Desk())
        desk.seen = time.monotonic()
        if answer and desk.counts(have):
            desk.answered = True
            self._answers.put((int(have.rpartition("-")[2]), name, answer))
        if desk.message in ("", have):
            await self._wait(name, desk)
        desk.seen = time.monotonic()
        if desk.message in ("", have):
            return Response(status_code=204)
        desk.given = True
        return Response(desk.data, headers={MESSAGE: desk.message})

    async def _wait(self, name: str, desk: _Desk) -> None:
        """Until there is a message, or another request of the device. One is open at a time."""
        self._release([name])
        own = desk.waiting = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(own, HOLD)
        except TimeoutError:
            pass
        finally:
            if desk.waiting is own:
                desk.waiting = None
