"""The server's end of Flower: a SuperLink on this machine, the proxy in front of it, and messages to the devices."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from sottovoce.federation.flower import payload, serverapp
from sottovoce.federation.flower.line import SOCKET, Line
from sottovoce.federation.flower.mailbox import Mailbox
from sottovoce.federation.flower.proxy import write_quota
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.subprocesses import Child, FlowerChild, check_not_taken
from sottovoce.federation.flower.task_queue import TaskQueue
from sottovoce.federation.flower.tmpfs import in_memory, new_state, remove_states
from sottovoce.federation.keys import AUTHORITY, SERVER, SERVER_KEY
from sottovoce.federation.roster import Roster
from sottovoce.federation.transport import Exchange, Serving
from sottovoce_evidence.errors import LostProcess

log = logging.getLogger("sottovoce.flower")
POLL = 0.3  # seconds between looks for answers
IN_MEMORY = ":flwr-in-memory:"
MAX_REFUSALS = 5  # of a SuperLink, one after another
MAX_LOSSES = 5  # of a SuperLink in one exchange
SILENT = 300.0  # seconds without an answer, after which a running SuperLink counts as lost
AGAIN = 5.0  # seconds before a failed device is asked again; if less time is left, it is not asked
GRACE = 20.0  # seconds in which a lost device may come back, if the exchange would end without it
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # the address to connect to if a process listens on every address


@dataclass
class PendingTask:
    """An exchange that is under way: who has been asked, who owes an answer, who is lost."""

    exchange: Exchange
    until: float = 0.0  # when time is up
    asked: bool = False  # at least one device was
    answered: set[str] = field(default_factory=set)
    sent: dict[str, str] = field(default_factory=dict)  # unanswered messages, and their devices
    unsent: list[tuple[Any, str]] = field(default_factory=list)  # the SuperLink may have a part of them
    lost: dict[str, float] = field(default_factory=dict)  # devices that failed, and when they first did
    pause: dict[str, float] = field(default_factory=dict)  # and when they may be asked again

    def begin(self) -> None:
        """Start the clock. Also after the SuperLink lost its state: then devices have to connect again."""
        now = time.monotonic()
        asked = [*self.lost, *self.sent.values(), *(name for _, name in self.unsent)]
        self.until, self.lost = now + self.exchange.seconds, dict.fromkeys(asked, now)
        self.sent, self.unsent = {}, []

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    @property
    def late(self) -> bool:
        """Is it too late for a device to begin?"""
        return self.left < min(AGAIN, self.exchange.seconds / 2)

    @property
    def over(self) -> bool:
        """No device owes an answer, or may come back with one."""
        if not self.asked or self.sent:
            return False
        return self.late or all(time.monotonic() > lost + GRACE for lost in self.lost.values())

    def may_ask(self, name: str) -> bool:
        if name not in self.exchange.messages or name in self.answered or name in self.sent.values():
            return False
        return not self.late and time.monotonic() >= self.pause.get(name, 0.0)

    def failed(self, name: str) -> None:
        now = time.monotonic()
        self.lost.setdefault(name, now)
        self.pause[name] = now + AGAIN


class SuperLinkServer:
    """A `Transport` by Flower.

    The SuperLink's state holds updates without noise. It is in the SuperLink's memory, or in a file in a folder in
    memory, and is removed at the end. If the SuperLink is lost, it is started again, and devices that have not answered
    are asked again: the same task, so the same answer.
    """

    def __init__(self, roster: Roster, folder: Path, serving: Serving, stop: Callable[[], bool] = lambda: False):
        self._roster, self._folder, self._stop = roster, folder, stop
        self._at_least, self._notify, self._bind = serving.at_least, serving.notify, serving.bind or roster.host
        self._task = ExitStack()
        self._state = None if serving.state is None else in_memory(serving.state)
        database = IN_MEMORY if self._state is None else new_state(self._state, roster.federation)
        options = {
            "--database": database,
            "--ssl-ca-certfile": roster.keys / AUTHORITY,
            "--ssl-certfile": roster.keys / SERVER,
            "--ssl-keyfile": roster.keys / SERVER_KEY,
        }
        self.superlink = FlowerChild("superlink", options, folder, "--enable-supernode-auth")
        proxy = [sys.executable, "-m", "sottovoce.federation.flower.proxy", self._bind, str(roster.port)]
        self.proxy = Child("proxy", [*proxy, roster.keys, folder], folder)
        self._names: dict[int, str] = {}  # of devices, by Flower's node number
        self._refusals, self._last_reply = 0, 0.0  # in a row; when the SuperLink last answered
        self._mailbox: Mailbox | None = None

    def __enter__(self) -> SuperLinkServer:
        with ExitStack() as stack:  # these happen at the end, the last one first
            folder = stack.enter_context(private_folder())
            self._socket = folder / "superlink"
            self._line = stack.enter_context(Line(folder / SOCKET))
            self._queue = TaskQueue(self._socket, self.superlink.secret)
            if self._state is not None:
                stack.callback(remove_states, self._state, self._roster.federation)
            stack.callback(self.superlink.stop)
            stack.callback(self._queue.close)  # earlier: the SuperLink ends when its last connection does
            stack.callback(self._leave)
            stack.callback(self.proxy.stop)
            self._set_quota(0)
            try:
                self._start()
            except httpx.HTTPError as error:
                self._recover(error)
            self._open()
            self._at_end = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._at_end.close()

    def _open(self) -> None:
        """Start the proxy: until it runs, no device reaches the SuperLink."""
        check_not_taken(self._roster.port, self._bind)  # another process that listens there would pass for the proxy
        self.proxy.start(self._socket)
        self.proxy.wait_until_listening((_LOOPBACK.get(self._bind, self._bind), self._roster.port))

    def _set_quota(self, answer: int) -> None:
        """Let every device send answers of up to `answer` bytes, from now on."""
        write_quota(self._folder, {member.name: member.public_key for member in self._roster.members}, answer)

    def _start(self) -> None:
        self.superlink.start(self._socket)
        self.superlink.wait_until_listening(self._socket)
        self._last_reply = time.monotonic()
        if self._mailbox is None or self._state is None:
            self._join()

    def _join(self) -> None:
        self._leave()
        self._names = serverapp.register(self._socket, self._roster.members)
        token = serverapp.wait_for_task(self._queue)
        if token is None:
            raise self._lost("has no task for its server")
        self._mailbox = serverapp.open_mailbox(self._task.enter_context(self._queue.task(token)), token)

    def _leave(self) -> None:
        self._mailbox, self._names = None, {}
        self._task.close()

    def online(self) -> dict[int, str]:
        """The devices that are connected now, by Flower's node number."""
        assert self._mailbox is not None
        return {number: self._names[number] for number in self._mailbox.online() if number in self._names}

    def here(self) -> set[str]:
        self._last_reply = time.monotonic()  # it is not asked between exchanges
        self._wait_for_devices()
        try:
            return set(self.online().values())
        except httpx.HTTPError as error:
            self._recover(error)
            return set(self._names.values())

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        return self._on_lines(exchange) if exchange.urgent else self._by_flower(exchange)

    def _on_lines(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        """An exchange with devices that wait for it, on their lines."""
        self._set_quota(exchange.max_answer_bytes)
        self._line.ask(exchange.messages)
        began = time.monotonic()
        owing, looked = set(exchange.messages), began
        while owing and time.monotonic() < began + exchange.seconds:
            for name, answer in self._line.answers(POLL):
                owing.discard(name)
                yield name, answer
            if owing and time.monotonic() > looked + AGAIN:
                looked = time.monotonic()
                self._look_after_processes()
                gone = self._gone(owing, looked - began)
                owing -= gone
                for name in sorted(gone):
                    exchange.say(f"{name} did not answer: the connection is lost")
        if late := ", ".join(sorted(owing)):
            exchange.say(f"{exchange.name}: no answer in {exchange.seconds:g} s (--seconds) from {late}")

    def _gone(self, owing: set[str], seconds: float) -> set[str]:
        """Devices that left, of those that owe an answer since some seconds.

        A device is not heard while it works. One that is connected to Flower, and has its message, is waited for.
        """
        silent = {name for name in owing if min(seconds, self._line.silent(name)) > GRACE}
        try:
            here = set(self.online().values()) if silent else set()
        except httpx.HTTPError as error:  # the next exchange by Flower sees to it
            log.debug("the SuperLink does not answer: %s", error)
            here = silent
        return {name for name in silent if name not in here or not self._line.has(name)}

    def _by_flower(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        self._last_reply = time.monotonic()  # it is not asked between exchanges
        self._set_quota(exchange.max_answer_bytes)
        if exchange.begins:
            self._wait_for_devices()
        pending, losses = PendingTask(exchange), 0
        pending.begin()
        while True:
            try:
                self._send(pending)
                yield from self._receive(pending)
                self._refusals, self._last_reply = 0, time.monotonic()
                if pending.over:
                    break
            except (httpx.HTTPError, ObjectPushError) as error:
                if self._recover(error):
                    losses += 1
                    if losses > MAX_LOSSES:
                        raise self._lost(f"was lost {losses} times in {exchange.name}") from error
                    self._wait_for_devices()
                    pending.begin()
            if pending.left < 0:
                break
            self._look_after_processes()
            time.sleep(POLL)
        self._finish(pending)

    def _finish(self, pending: PendingTask) -> None:
        """Withdraw what was waited for in vain."""
        exchange = pending.exchange
        if pending.sent:
            names = ", ".join(sorted(pending.sent.values()))
            exchange.say(f"{exchange.name}: no answer in {exchange.seconds:g} s (--seconds) from {names}")
        if self._mailbox is not None:
            # A device would wait into the next exchange for the rest of a message that was sent in part.
            self._mailbox.take_back([*pending.sent, *(message.metadata.message_id for message, _ in pending.unsent)])

    def _send(self, pending: PendingTask) -> None:
        """Send to connected devices that were not asked: devices may connect during an exchange, or come back."""
        assert self._mailbox is not None
        if not pending.unsent:
            here = [(node, name) for node, name in self.online().items() if pending.may_ask(name)]
            pending.unsent = _messages(pending, here)
        if not pending.unsent or pending.left <= 0:
            return
        # The same objects until they are sent: with new ones, a device would have two, one of them without contents.
        identities = self._mailbox.push([message for message, _ in pending.unsent])
        for identity, (_, name) in zip(identities, pending.unsent, strict=True):
            if identity:
                pending.sent[identity], pending.asked = name, True
            else:
                pending.failed(name)
        self._line.ring([name for _, name in pending.unsent])
        pending.unsent = []

    def _receive(self, pending: PendingTask) -> Iterator[tuple[str, bytes]]:
        assert self._mailbox is not None
        if not pending.sent:
            return
        for reply in self._mailbox.pull(list(pending.sent), pending.exchange.max_answer_bytes):
            # By the message that it replies to: Flower answers for a device that is lost.
            name = pending.sent.pop(reply.to, None)
            if name is not None and reply.error is not None:
                pending.exchange.say(f"{name} did not answer: {reply.error_text}")
                pending.failed(name)
            elif name is not None:
                pending.lost.pop(name, None)
                pending.answered.add(name)
                yield name, reply.data

    def _wait_for_devices(self) -> None:
        notified = False
        while (here := self._count_devices()) < self._at_least:
            if not notified:
                self._notify(f"devices that are here: {here} of {self._at_least}; waiting for more")
                notified = True
            if self._stop():
                raise KeyboardInterrupt
            self._look_after_processes()
            time.sleep(POLL)

    def _count_devices(self) -> int:
        try:
            here, self._last_reply = len(self.online()), time.monotonic()
        except httpx.HTTPError as error:
            self._recover(error)
            return 0
        return here

    def _look_after_processes(self) -> None:
        self.proxy.keep_log_short()
        self.superlink.keep_log_short()  # it writes a line for every request of a device
        if self.proxy.ended is not None:
            self._notify(f"the proxy is gone (status {self.proxy.ended}), and is started again")
            self._open()

    def _recover(self, error: Exception) -> bool:
        """Start the SuperLink again if it is gone. True if it lost its state: then all devices must be asked again."""
        before = self._mailbox
        for _ in range(MAX_REFUSALS):
            time.sleep(POLL)
            try:
                self._repair(error)
                return self._mailbox is not before
            except httpx.HTTPError as another:  # it is lost again
                error = another
        raise self._lost(f"cannot be reached: {error}") from error

    def _repair(self, error: Exception) -> None:
        if self.superlink.ended is None and not isinstance(error, httpx.HTTPStatusError):
            if self._mailbox is None:
                return self._join()
            if time.monotonic() < self._last_reply + SILENT:
                return None  # a short failure
            self._notify(f"the SuperLink does not answer for {SILENT:g} s")
            self.superlink.stop()
        if self.superlink.ended is not None:
            self._notify(f"the SuperLink is gone (status {self.superlink.ended}), and is started again")
            return self._start()
        self._refusals += 1
        if self._refusals > MAX_REFUSALS:
            raise self._lost(f"refuses its server: {error}") from error
        # This process was suspended for so long that Flower took it for lost: begin another run of Flower's.
        self._notify("the SuperLink took this server for lost; going on with it anew")
        return self._join()

    def _lost(self, problem: str) -> LostProcess:
        return LostProcess(f"the SuperLink {problem}; its log is {self.superlink.log}")


def _messages(pending: PendingTask, nodes: list[tuple[int, str]]) -> list[tuple[Any, str]]:
    """Flower's messages to nodes, and the names of their devices. Devices that get the same bytes share one content."""
    exchange = pending.exchange
    contents = {data: payload.pack(data) for data in {exchange.messages[name] for _, name in nodes}}
    return [
        (Message(contents[exchange.messages[name]], node, payload.CALL, ttl=pending.left, group_id=exchange.name), name)
        for node, name in nodes
    ]
