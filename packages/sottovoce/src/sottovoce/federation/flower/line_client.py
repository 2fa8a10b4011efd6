"""The device's end of its line: it answers what comes there, one message after another."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from sottovoce.federation import keys
from sottovoce.federation.flower.line import HOLD, MESSAGE, PATH, signed_headers
from sottovoce.federation.limits import read_json
from sottovoce.federation.roster import DEVICE
from sottovoce_evidence.errors import SottoError

log = logging.getLogger("sottovoce.flower")
SOON, AGAIN = 0.1, 5.0  # seconds before a request that failed is made again: at first, and at most
IDLE = 4.0  # seconds after which a connection is not used again: the server closes it after five


class LineClient:
    """Keeps a request open at the server, and answers each message that it brings. `rung` is called at a ring."""

    def __init__(self, bundle: Path, server: str, answer: Callable[[bytes], bytes], rung: Callable[[], None]):
        self._name = str(read_json(bundle / DEVICE)["name"])
        self._address, self._authority = f"https://{server}{PATH}", bundle / keys.AUTHORITY
        self._sign = partial(keys.sign, bundle / keys.NODE_KEY)
        self._answer, self._rung = answer, rung
        self._over, self._answering = threading.Event(), threading.Lock()
        self._have, self._unsent = "", b""  # the last message that came; the answer to it, until the server has it

    @contextmanager
    def open(self) -> Iterator[None]:
        """Answer messages, in a thread, while the block lasts. An answer that was begun is waited for.

        It is computed by JAX: a thread that is inside JAX when Python ends is a segmentation fault.
        """
        trusted = ssl.create_default_context(cafile=str(self._authority))
        limits = httpx.Limits(keepalive_expiry=IDLE)
        client = httpx.Client(verify=trusted, timeout=3 * HOLD, limits=limits)
        thread = threading.Thread(target=self._run, args=(client,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            client.close()
            with self._answering:
                pass
            thread.join(1.0)  # its request was cut off with the client; a server out of reach is not waited for

    def _run(self, client: httpx.Client) -> None:
        wait = SOON
        while not self._over.is_set():
            try:
                self._look(client)
                wait = SOON
            except (httpx.HTTPError, KeyError, RuntimeError, SottoError) as error:  # RuntimeError: the client is closed
                log.debug("the line is broken: %s", error)
                self._over.wait(wait)
                wait = min(2 * wait, AGAIN)

    def _look(self, client: httpx.Client) -> None:
        """One request: it gives the answer to the last message, if that is not there yet, and gets the next one."""
        headers = signed_headers(self._name, self._have, self._unsent, self._sign)
        found = client.post(self._address, headers=headers, content=self._unsent)
        if found.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:  # it would be refused for ever
            self._unsent = b""
        found.raise_for_status()
        self._unsent = b""
        if found.status_code == httpx.codes.NO_CONTENT:
            return
        self._have = found.headers[MESSAGE]
        if not found.content:
            self._rung()
            return
        with self._answering:
            if not self._over.is_set():
                self._unsent = self._answer(found.content)
