"""The server's end of Flower: a SuperLink on this machine, the proxy before it, and messages to the devices."""

from __future__ import annotations

import logging
import secrets as os_entropy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sottovoce.errors import LostProcess, SottoError
from sottovoce.federation import flower
from sottovoce.federation.children import Child, command, free_port
from sottovoce.federation.collecting import Collected
from sottovoce.federation.keys import AUTHORITY, SERVER, SERVER_KEY
from sottovoce.federation.roster import Roster
from sottovoce.files import write_aside

log = logging.getLogger("sottovoce.link")
POLL = 0.3  # seconds between looks for answers
IN_MEMORY = ":flwr-in-memory:"
MOST_REFUSALS = 5
MOUNTS = Path("/proc/mounts")
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where to knock when a process listens on every address


class Link:
    """A fleet reached through Flower.

    State of the link, which holds updates without noise, is in the memory of the SuperLink, or in a file of a folder
    that is itself in memory. When the SuperLink is lost it is started again, and whoever has not answered is asked
    again: the same task, so the same answer.
    """

    def __init__(
        self, roster: Roster, folder: Path, *, bind: str, state: Path | None = None, at_least: int = 1,
        say: Callable[[str], None] = lambda text: None, stop: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        self._roster, self._say, self._stop, self._at_least = roster, say, stop, at_least
        keys = roster.keys
        self._authority = (keys / AUTHORITY).read_bytes()
        secret_file = folder / "desk.secret"
        write_aside(secret_file, os_entropy.token_bytes(32), private=True)
        self._port = free_port()
        self._address = f"127.0.0.1:{self._port}"
        self._keeps_state = state is not None
        self._desk = flower.Desk(self._address, secret_file.read_bytes(), self._authority)
        database = IN_MEMORY if state is None else str(_in_memory(state) / "link.db")
        self.superlink = Child(
            "superlink",
            [
                command("flower-superlink"), "--host", "127.0.0.1", "--port", str(self._port), "--isolation", "process",
                "--database", database, "--ssl-ca-certfile", keys / AUTHORITY, "--ssl-certfile", keys / SERVER,
                "--ssl-keyfile", keys / SERVER_KEY, "--enable-supernode-auth", "--superexec-auth-secret-file",
                secret_file,
            ],
            folder,
        )  # fmt: skip
        self._bind = bind
        proxy = [sys.executable, "-m", "sottovoce.federation.proxy", bind, str(roster.port), f"https://{self._address}"]
        self.proxy = Child("proxy", [*proxy, keys], folder)
        self._names: dict[int, str] = {}  # of devices, by Flower's number
        self._refusals = 0
        self._task: Any = None
        self._grid: Any = None

    def __enter__(self) -> Link:
        try:
            self._start()
            self.proxy.start()
            self.proxy.wait_until_listening(self._roster.port, _ANY.get(self._bind, self._bind))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.proxy.stop()
        # First: the SuperLink ends when the last connection to it does.
        self._forget()
        self._desk.close()
        self.superlink.stop()

    def _start(self) -> None:
        self.superlink.start()
        self.superlink.wait_until_listening(self._port)
        if self._grid is None or not self._keeps_state:
            self._forget()
            self._join()

    def _join(self) -> None:
        self._register()
        self._take_task()

    def _register(self) -> None:
        """Let the devices of the roster in, and nobody else; and start the run that carries their messages."""
        from cryptography.hazmat.primitives import serialization
        from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        client = ControlHttpClient.from_server_address(
            self._address, False, self._authority, [RuntimeVersionHttpInterceptor(component_name="sottovoce")]
        )
        try:
            there = {node.public_key: node.node_id for node in client.ListNodes(ListNodesRequest()).nodes_info}
            for member in self._roster.members:
                loaded: Any = serialization.load_ssh_public_key(member.public_key.encode())
                key = public_key_to_bytes(loaded)
                number = there.get(key) or client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
                self._names[number] = member.name
            client.StartRun(StartRunRequest(fab=flower.app_bundle()))
        finally:
            client.close()

    def _take_task(self) -> None:
        """Become what Flower calls the ServerApp."""
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        token = None
        for _ in range(100):
            if (token := self._desk.acquire(TaskType.SERVER_APP)) is not None:
                break
            time.sleep(POLL)
        if token is None:
            raise LostProcess(f"the SuperLink has no task for its server; its log is {self.superlink.log}")
        self._task = self._desk.task(token)
        client = self._task.__enter__()
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid = HttpGrid(self._address, False, self._authority, token=token)
        grid._client = client  # with our own retries: none
        grid.set_run(run_from_proto(given.run))
        self._grid = grid

    def _forget(self) -> None:
        if self._task is not None:
            self._task.__exit__(None, None, None)
        self._task = self._grid = None
        self._names = {}

    def online(self) -> dict[int, str]:
        """The devices that are connected now, by Flower's number."""
        return {number: self._names[number] for number in self._grid.get_node_ids() if number in self._names}

    def ask(self, number: int, message: bytes, seconds: float, collected: Collected) -> None:
        import httpx

        self._wait_for_devices()
        deadline = time.monotonic() + seconds
        sent: dict[str, str] = {}  # Flower's names of messages that are not answered, and whom they went to
        while True:
            try:
                self._send(number, message, deadline, collected, sent)
                self._receive(collected, sent)
                if not sent:
                    return
            except httpx.HTTPError as error:
                if self._recover(error):
                    sent = {}
                    self._wait_for_devices()
                    deadline = time.monotonic() + seconds
            if time.monotonic() > deadline:
                log.warning("round %d: no answer in time from %s", number, ", ".join(sorted(sent.values())))
                return
            time.sleep(POLL)

    def _send(self, number: int, message: bytes, deadline: float, collected: Collected, sent: dict[str, str]) -> None:
        """To whoever is connected and was not asked: devices may come while a round is on, or come back."""
        from flwr.app import Message

        waiting = collected.missing() - set(sent.values())
        there = [(node, name) for node, name in self.online().items() if name in waiting]
        if not there:
            return
        content, left = flower.content_of(message), max(1.0, deadline - time.monotonic())
        messages = [Message(content, node, flower.CALL, ttl=left, group_id=str(number)) for node, _ in there]
        for name, identity in zip((name for _, name in there), self._grid.push_messages(messages), strict=True):
            if identity:
                sent[identity] = name

    def _receive(self, collected: Collected, sent: dict[str, str]) -> None:
        if not sent:
            return
        for reply in self._grid.pull_messages(list(sent)):
            # By what it replies to: Flower answers in the name of a device that is lost.
            name = sent.pop(reply.metadata.reply_to_message_id, None)
            if name is None:
                continue
            if reply.has_error():
                log.warning("%s did not answer: %s", name, flower.why(reply.error.code))
                continue
            code = collected.take(name, flower.bytes_of(reply))
            if code not in ("joined", "nobody"):
                log.warning("%s contributes nothing: %s", name, code)

    def _wait_for_devices(self) -> None:
        import httpx

        said = False
        while True:
            here = 0
            try:
                here = len(self.online())
            except httpx.HTTPError as error:
                self._recover(error)
            if here >= self._at_least:
                return
            if not said:
                self._say(f"{here} of {self._at_least} devices are here; waiting for more")
                said = True
            if self._stop():
                raise KeyboardInterrupt
            time.sleep(POLL)

    def _recover(self, error: Exception) -> bool:
        """Start the SuperLink again if it is gone. True if it forgot what it held: then all is to be asked again."""
        import httpx

        time.sleep(POLL)
        if self.superlink.ended is None:
            if isinstance(error, httpx.TransportError):
                return False
            self._refusals += 1
            if self._refusals > MOST_REFUSALS:
                raise LostProcess(
                    f"the SuperLink refuses its server: {error}; its log is {self.superlink.log}"
                ) from error
            # This process was held up for so long that Flower took it for lost: a run of Flower's is begun anew.
            self._say("the SuperLink took this server for lost; going on with it anew")
            self._forget()
            self._join()
            return True
        self._say(f"the SuperLink is gone (status {self.superlink.ended}), and is started again")
        self._start()
        return not self._keeps_state


def _in_memory(folder: Path) -> Path:
    """A folder that is in memory: updates that are not noised must not reach a disk."""
    if not folder.is_dir():
        raise SottoError(
            f"{folder} is not a folder; make one in memory (on Linux below /dev/shm), for the link's state"
        )
    place = folder.resolve()
    kinds = {}
    for line in MOUNTS.read_text().splitlines() if MOUNTS.exists() else ():
        _, mounted, kind, *_ = line.split()
        kinds[Path(mounted)] = kind
    kind = next((kinds[parent] for parent in (place, *place.parents) if parent in kinds), "unknown")
    if kind not in ("tmpfs", "ramfs"):
        raise SottoError(
            f"{folder} is on {kind}, and what devices send is not noised yet: it must not reach a disk; use a folder "
            f"in memory (tmpfs), such as one below /dev/shm"
        )
    return place
