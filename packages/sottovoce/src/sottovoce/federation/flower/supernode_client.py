"""The device's end of Flower: a SuperNode, and this process, which takes its messages and answers them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from sottovoce.federation.flower import payload
from sottovoce.federation.flower.bell import Bell, device_bell, ring, supernode_bell
from sottovoce.federation.flower.line_client import LineClient
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.subprocesses import FlowerChild
from sottovoce.federation.flower.task_queue import TaskQueue, finish
from sottovoce.federation.keys import AUTHORITY, NODE_KEY

log = logging.getLogger("sottovoce.flower")
POLL = 1.0  # seconds between looks for a message; the SuperNode rings when it has one
AGAIN = 5.0  # seconds before an ended SuperNode is started again

# Lines in a SuperNode's log, and what they mean to the owner of a device.
_STARTED, _CONNECTED, _LEFT = "Starting Flower SuperNode", "SuperNode ID:", "terminated gracefully"
_MEANINGS = {
    _CONNECTED: "connected",
    "Connection successful": "connected",
    "Connection attempt failed": "the server does not answer; trying again",
    "Failed to activate": "the server refuses this device: it is not on the roster, or it was connected in the last "
    "minute, or is connected from another machine; trying again",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not that of the federation, or is no longer valid; "
    "trying again. If it was renewed, put the new authority.pem into this device's folder",
    _LEFT: "the connection was lost; connecting again",
    "failed to start": "the SuperNode cannot listen on this machine; trying again",
}
_CLOCK = "the server does not accept what this device signs: their clocks must agree to 5 s; trying again"


class SuperNodeClient:
    """Stays connected to the server and answers its messages, one after another, until it is stopped.

    A SuperNode that ends is started again, also if the server refuses it: for about a minute after a lost connection
    the server still takes the device for connected.
    """

    def __init__(
        self,
        bundle: Path,
        server: str,
        answer: Callable[[bytes], bytes],
        notify: Callable[[str], None] = lambda text: None,
    ):
        self._notify, self._status = notify, ""
        turn = threading.Lock()

        def one_at_a_time(message: bytes) -> bytes:
            with turn:
                return answer(message)

        self._answer_message = one_at_a_time
        self._line = LineClient(bundle, server, one_at_a_time, self._ring)
        folder = bundle / "host"
        folder.mkdir(mode=0o700, exist_ok=True)
        options = {
            "--superlink": server,
            "--root-certificates": bundle / AUTHORITY,
            "--auth-supernode-private-key": bundle / NODE_KEY,
        }
        self.supernode = FlowerChild("supernode", options, folder)
        self._sockets, self._socket, self._starts = Path(), Path(), 0  # no folder yet
        self._queue = TaskQueue(self._socket, self.supernode.secret)

    def run(self, stop: Callable[[], bool]) -> None:
        looked = -AGAIN
        with private_folder() as self._sockets, self._line.open():
            bell = Bell(device_bell(self._sockets / "any"))
            try:
                while not stop():
                    if time.monotonic() > looked + AGAIN:
                        self._look_after()
                        looked = time.monotonic()
                    if not self._answer_one():
                        bell.wait(POLL)
            finally:
                bell.close()
                self._queue.close()  # first: the SuperNode ends when its last connection does
                self.supernode.stop()

    def _ring(self) -> None:
        """The server sent a message by Flower: have the SuperNode look for it now."""
        ring(supernode_bell(self._socket))

    def _look_after(self) -> None:
        """Report the state of the SuperNode when it changes, and start it if it does not run."""
        self.supernode.keep_log_short()
        output, ended = self.supernode.output(), self.supernode.ended
        status = meaning(output)
        if output and ended is not None and status in ("", _MEANINGS[_CONNECTED]):
            status = f"the SuperNode ended (status {ended}); its log is {self.supernode.log}; trying again"
        if status not in ("", self._status):
            self._notify(status)
            self._status = status
        if ended is not None:
            self._connect()

    def _connect(self) -> None:
        self._queue.close()
        self._starts += 1
        self._socket = self._sockets / str(self._starts)  # a new one each time: the last may still be in use
        self._queue = TaskQueue(self._socket, self.supernode.secret)
        self.supernode.start(self._socket)

    def _answer_one(self) -> bool:
        """Answer a message, if there is one."""
        try:
            token = self._queue.acquire(TaskType.CLIENT_APP)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # it does not run yet, or no longer
            log.debug("the SuperNode does not listen: %s", error)
            return False
        except httpx.HTTPError as error:
            log.warning("the SuperNode does not answer (%s); connecting anew", error)
            self.supernode.stop()
            return False
        if token is None:
            return False
        try:
            self._answer(token)
        except Exception:  # anything that Flower raises
            # The SuperNode may have a part of the answer, and would wait for the rest for ever. The server learns that
            # it left, and asks again.
            log.exception("an answer was not handed over; connecting anew")
            self.supernode.stop()
        return True

    def _answer(self, token: str) -> None:
        with self._queue.task(token) as client:
            message, context, _, _ = pull_task_input(client)  # the app that came with it is not used
            answer = self._answer_message(payload.unpack(message))
            push_message(client, Message(payload.pack(answer), reply_to=message), context)
            finish(client, context)


def meaning(output: str) -> str:
    """What the last known line of a SuperNode's log means to the owner of the device; empty if none is known."""
    last = max(_MEANINGS, key=output.rfind)
    if last not in output:
        return ""
    refused = last == _LEFT and _STARTED in output and _CONNECTED not in output
    return _CLOCK if refused else _MEANINGS[last]
