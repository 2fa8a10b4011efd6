"""The device's end of Flower: a SuperNode, and this process, which takes its messages and answers them."""

from __future__ import annotations

import logging
import secrets as os_entropy
import time
from collections.abc import Callable
from pathlib import Path

from sottovoce.federation import flower
from sottovoce.federation.children import Child, command, free_port
from sottovoce.federation.device import Device
from sottovoce.federation.keys import AUTHORITY, NODE_KEY
from sottovoce.files import write_aside

log = logging.getLogger("sottovoce.host")
POLL = 0.25  # seconds between looks for a message
AGAIN = 5.0  # seconds before a SuperNode that ended is started again


class Host:
    """Stays connected to the server and answers its tasks, one after another, until it is told to stop.

    A SuperNode that the server does not let in yet (it was here a minute ago, and is still thought to be) is started
    again and again.
    """

    def __init__(self, bundle: Path, server: str, device: Device, say: Callable[[str], None] = lambda text: None):
        self._device, self._say = device, say
        folder = bundle / "host"
        folder.mkdir(mode=0o700, exist_ok=True)
        secret_file = folder / "desk.secret"
        write_aside(secret_file, os_entropy.token_bytes(32), private=True)
        self._port = free_port()
        self._desk = flower.Desk(f"127.0.0.1:{self._port}", secret_file.read_bytes())
        self.supernode = Child(
            "supernode",
            [
                command("flower-supernode"), "--superlink", server, "--root-certificates", bundle / AUTHORITY,
                "--auth-supernode-private-key", bundle / NODE_KEY, "--isolation", "process", "--host", "127.0.0.1",
                "--port", str(self._port), "--superexec-auth-secret-file", secret_file,
            ],
            folder,
        )  # fmt: skip

    def run(self, stop: Callable[[], bool]) -> None:
        started = 0.0
        try:
            while not stop():
                if self.supernode.ended is not None and time.monotonic() > started + AGAIN:
                    if started:
                        self._say(f"not connected (status {self.supernode.ended}); trying again")
                    self.supernode.start()
                    started = time.monotonic()
                if not self._answer_one():
                    time.sleep(POLL)
        finally:
            self.supernode.stop()

    def _answer_one(self) -> bool:
        """Answer a message, if there is one."""
        import httpx
        from flwr.supercore.constant import TaskType

        try:
            token = self._desk.acquire(TaskType.CLIENT_APP)
        except httpx.HTTPError as error:  # the SuperNode is not there yet, or no longer
            log.debug("the SuperNode does not listen: %s", error)
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
        from flwr.common.constant import SubStatus
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

        with self._desk.task(token) as client:
            message, context, _, _ = pull_task_input(client)  # the app that came with it is left alone
            answer = self._device.answer(flower.bytes_of(message))
            push_message(client, Message(flower.content_of(answer), reply_to=message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
