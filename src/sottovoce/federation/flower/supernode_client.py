"""The device's end of Flower: a SuperNode, and this process, which takes its messages and answers them."""

from __future__ import annotations

import logging
import secrets as os_entropy
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sottovoce.federation.device import Device
from sottovoce.federation.flower import internals
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.subprocesses import Child
from sottovoce.federation.keys import AUTHORITY, NODE_KEY
from sottovoce.files import write_aside

log = logging.getLogger("sottovoce.host")
POLL = 0.25  # seconds between looks for a message
AGAIN = 5.0  # seconds before a SuperNode that ended is started again

# What a SuperNode writes, and what that means to the owner of a device.
_STARTED, _CONNECTED, _LEFT = "Starting Flower SuperNode", "SuperNode ID:", "terminated gracefully"
_MEANS = {
    _CONNECTED: "connected",
    "Connection successful": "connected",
    "Connection attempt failed": "the server does not answer; trying again",
    "Failed to activate": "the server does not let this device in: it is not on the roster, or is thought to be here "
    "still, from a minute ago or from another machine; trying again",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not that of the federation, or is no longer valid; "
    "trying again. If it was renewed, put the new authority.pem into this device's folder",
    _LEFT: "the connection was lost; connecting again",
    "failed to start": "the SuperNode cannot listen on this machine; trying again",
}
_CLOCK = "the server does not accept what this device signs: their clocks must agree to 5 s; trying again"


class Host:
    """Stays connected to the server and answers its tasks, one after another, until it is told to stop.

    A SuperNode that the server does not let in yet (it was here a minute ago, and is still thought to be) is started
    again and again.
    """

    def __init__(self, bundle: Path, server: str, device: Device, say: Callable[[str], None] = lambda text: None):
        self._device, self._say, self._said = device, say, ""
        folder = bundle / "host"
        folder.mkdir(mode=0o700, exist_ok=True)
        secret_file = folder / "desk.secret"
        self._secret = os_entropy.token_bytes(32)
        write_aside(secret_file, self._secret, private=True)
        self._sockets = Path()  # none yet
        self._starts = 0
        self._desk = internals.Desk(self._sockets, self._secret)
        self.supernode = Child(
            "supernode",
            [
                sys.executable, "-m", "sottovoce.federation.flower.supernode", "--superlink", server,
                "--root-certificates", bundle / AUTHORITY, "--auth-supernode-private-key", bundle / NODE_KEY,
                "--isolation", "process", "--superexec-auth-secret-file", secret_file,
            ],
            folder,
        )  # fmt: skip

    def run(self, stop: Callable[[], bool]) -> None:
        with private_folder() as self._sockets:
            self._run(stop)

    def _run(self, stop: Callable[[], bool]) -> None:
        looked = -AGAIN
        try:
            while not stop():
                if time.monotonic() > looked + AGAIN:
                    self._look_after()
                    looked = time.monotonic()
                if not self._answer_one():
                    time.sleep(POLL)
        finally:
            self._desk.close()  # first: the SuperNode ends when the last connection to it does
            self.supernode.stop()

    def _look_after(self) -> None:
        """Say how the SuperNode fares when that changes, and start it if it does not run."""
        self.supernode.keep_log_short()
        said, ended = self.supernode.said(), self.supernode.ended
        means = meaning(said)
        if said and ended is not None and means in ("", _MEANS[_CONNECTED]):
            means = f"the SuperNode ended (status {ended}); its log is {self.supernode.log}; trying again"
        if means not in ("", self._said):
            self._say(means)
            self._said = means
        if ended is not None:
            self._connect()

    def _connect(self) -> None:
        self._desk.close()
        self._starts += 1
        socket = self._sockets / str(self._starts)  # another one each time: the last may still be in use
        self._desk = internals.Desk(socket, self._secret)
        self.supernode.start(socket)

    def _answer_one(self) -> bool:
        """Answer a message, if there is one."""
        import httpx
        from flwr.supercore.constant import TaskType

        try:
            token = self._desk.acquire(TaskType.CLIENT_APP)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # it is not there yet, or no longer
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
        except Exception:  # whatever Flower raises
            # The SuperNode may have a part of the answer, and would wait for the rest for ever. The server hears that
            # it left, and asks again.
            log.exception("an answer was not handed over; connecting anew")
            self.supernode.stop()
        return True

    def _answer(self, token: str) -> None:
        from flwr.app import Message
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

        with self._desk.task(token) as client:
            message, context, _, _ = pull_task_input(client)  # the app that came with it is left alone
            answer = self._device.answer(internals.bytes_of(message))
            push_message(client, Message(internals.content_of(answer), reply_to=message), context)
            internals.finish(client, context)


def meaning(said: str) -> str:
    """What the last that a SuperNode said means to the owner of the device; nothing when that is unknown."""
    last = max(_MEANS, key=said.rfind)
    if last not in said:
        return ""
    refused = last == _LEFT and _STARTED in said and _CONNECTED not in said
    return _CLOCK if refused else _MEANS[last]
