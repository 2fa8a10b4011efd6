"""The server's end of Flower: a SuperLink on this machine, the proxy before it, and messages to the devices."""

from __future__ import annotations

import logging
import secrets as os_entropy
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sottovoce.errors import LostProcess
from sottovoce.federation.aggregation import Collected
from sottovoce.federation.flower import internals, joining
from sottovoce.federation.flower.mailbox import Post
from sottovoce.federation.flower.quota import write_gate
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.subprocesses import Child, check_not_taken
from sottovoce.federation.flower.tmpfs import in_memory, new_state, remove_states
from sottovoce.federation.keys import AUTHORITY, SERVER, SERVER_KEY
from sottovoce.federation.roster import Roster
from sottovoce.files import write_aside

log = logging.getLogger("sottovoce.link")
POLL = 0.3  # seconds between looks for answers
IN_MEMORY = ":flwr-in-memory:"
MOST_REFUSALS = 5  # of a SuperLink, one after another
MOST_LOSSES = 5  # of a SuperLink in one round
SILENT = 300.0  # seconds without an answer, after which a SuperLink that runs is taken for lost
AGAIN = 5.0  # seconds before a device that failed is asked again; and those that must be left for it
GRACE = 20.0  # seconds in which a device may come back to a round that would be over without it
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where to knock when a process listens on every address


@dataclass
class Asking:
    """A round's task on its way to devices."""

    number: int
    task: bytes
    seconds: float
    until: float = 0.0  # when time is up
    asked: bool = False  # somebody was
    sent: dict[str, str] = field(default_factory=dict)  # messages that are not answered, and whom they went to
    unsent: list[tuple[Any, str]] = field(default_factory=list)  # such as the SuperLink may have in part
    lost: dict[str, float] = field(default_factory=dict)  # devices that failed, and when they did first
    pause: dict[str, float] = field(default_factory=dict)  # and when they may be asked again

    def begin(self) -> None:
        """From now on, and anew if the SuperLink forgot all: then whoever was asked has to find back to it."""
        now = time.monotonic()
        asked = [*self.lost, *self.sent.values(), *(name for _, name in self.unsent)]
        self.until, self.lost = now + self.seconds, dict.fromkeys(asked, now)
        self.sent, self.unsent = {}, []

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    @property
    def late(self) -> bool:
        """Whoever is asked now would work for nothing."""
        return self.left < min(AGAIN, self.seconds / 2)

    @property
    def over(self) -> bool:
        """Nobody owes an answer, nor may come back with one."""
        if self.sent or not self.asked:
            return False
        return self.late or all(time.monotonic() > lost + GRACE for lost in self.lost.values())

    def may_ask(self, name: str) -> bool:
        return not self.late and time.monotonic() >= self.pause.get(name, 0.0)

    def failed(self, name: str) -> None:
        now = time.monotonic()
        self.lost.setdefault(name, now)
        self.pause[name] = now + AGAIN


class Link:
    """A fleet reached through Flower.

    State of the link, which holds updates without noise, is in the memory of the SuperLink, or in a file of a folder
    that is itself in memory, and goes with the link. When the SuperLink is lost it is started again, and whoever has
    not answered is asked again: the same task, so the same answer.
    """

    def __init__(
        self, roster: Roster, folder: Path, *, bind: str, state: Path | None = None, at_least: int = 1,
        say: Callable[[str], None] = lambda text: None, stop: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        self._roster, self._say, self._stop, self._at_least = roster, say, stop, at_least
        keys = roster.keys
        self._folder, self._inside = folder, ExitStack()
        secret_file = folder / "desk.secret"
        self._secret = os_entropy.token_bytes(32)
        write_aside(secret_file, self._secret, private=True)
        self._socket = Path()  # none yet
        self._state = None if state is None else in_memory(state)
        database = IN_MEMORY if self._state is None else new_state(self._state, roster.federation)
        self._desk = internals.Desk(self._socket, self._secret)
        self.superlink = Child(
            "superlink",
            [
                sys.executable, "-m", "sottovoce.federation.flower.superlink", "--isolation", "process", "--database",
                database, "--ssl-ca-certfile", keys / AUTHORITY, "--ssl-certfile", keys / SERVER, "--ssl-keyfile",
                keys / SERVER_KEY, "--enable-supernode-auth", "--superexec-auth-secret-file", secret_file,
            ],
            folder,
        )  # fmt: skip
        self._bind = bind
        proxy = [sys.executable, "-m", "sottovoce.federation.flower.proxy", bind, str(roster.port)]
        self.proxy = Child("proxy", [*proxy, keys, folder], folder)
        self._names: dict[int, str] = {}  # of devices, by Flower's number
        self._refusals = 0
        self._heard = 0.0  # when the SuperLink last answered
        self._task: Any = None
        self._post: Post | None = None

    def __enter__(self) -> Link:
        import httpx

        try:
            self._socket = self._inside.enter_context(private_folder()) / "superlink"
            self._desk = internals.Desk(self._socket, self._secret)
            self._admit(0)
            try:
                self._start()
            except httpx.HTTPError as error:
                self._recover(error)
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        """Let devices in: until the proxy runs, nobody reaches the SuperLink."""
        check_not_taken(self._roster.port, self._bind)  # somebody else who listens there would be taken for the proxy
        self.proxy.start(self._socket)
        self.proxy.wait_until_listening(self._roster.port, _ANY.get(self._bind, self._bind))

    def __exit__(self, *error: object) -> None:
        self.proxy.stop()
        # First: the SuperLink ends when the last connection to it does.
        self._forget()
        self._desk.close()
        self.superlink.stop()
        if self._state is not None:
            remove_states(self._state, self._roster.federation)
        self._inside.close()

    def _admit(self, answer: int) -> None:
        """Let every device send answers of so many bytes, from now on."""
        write_gate(self._folder, {member.name: member.public_key for member in self._roster.members}, answer)

    def _start(self) -> None:
        self.superlink.start(self._socket)
        self.superlink.wait_until_at(self._socket)
        self._heard = time.monotonic()
        if self._post is None or self._state is None:
            self._join()

    def _join(self) -> None:
        self._forget()
        self._names = joining.register(self._socket, self._roster.members)
        token = joining.wait_for_task(self._desk)
        if token is None:
            raise LostProcess(f"the SuperLink has no task for its server; its log is {self.superlink.log}")
        self._task = self._desk.task(token)
        self._post = joining.open_post(self._task.__enter__(), token)

    def _forget(self) -> None:
        if self._task is not None:
            self._task.__exit__(None, None, None)
        self._task = self._post = None
        self._names = {}

    def online(self) -> dict[int, str]:
        """The devices that are connected now, by Flower's number."""
        assert self._post is not None
        return {number: self._names[number] for number in self._post.online() if number in self._names}

    def ask(self, number: int, message: bytes, seconds: float, collected: Collected) -> None:
        import httpx
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        self._heard = time.monotonic()  # between rounds it is not asked
        self._admit(collected.most_bytes)
        self._wait_for_devices()
        asking, losses = Asking(number, message, seconds), 0
        asking.begin()
        while True:
            try:
                self._send(asking, collected)
                self._receive(asking, collected)
                self._refusals, self._heard = 0, time.monotonic()
                if asking.over:
                    return
            except (httpx.HTTPError, ObjectPushError) as error:
                if self._recover(error):
                    losses += 1
                    if losses > MOST_LOSSES:
                        raise LostProcess(
                            f"the SuperLink was lost {losses} times in round {number}; its log is {self.superlink.log}"
                        ) from error
                    self._wait_for_devices()
                    asking.begin()
            if asking.left < 0:
                break
            self._look_after_proxy()
            time.sleep(POLL)
        if asking.sent:
            late = ", ".join(sorted(asking.sent.values()))
            log.warning("round %d: no answer in %g s (--seconds) from %s", number, seconds, late)
        if self._post is not None:
            # Of one that was sent in part, a device would wait for the rest into the next round.
            self._post.take_back([*asking.sent, *(message.metadata.message_id for message, _ in asking.unsent)])

    def _send(self, asking: Asking, collected: Collected) -> None:
        """To whoever is connected and was not asked: devices may come while a round is on, or come back."""
        assert self._post is not None
        if not asking.unsent:
            asking.unsent = self._messages(asking, collected)
        if not asking.unsent or asking.left <= 0:
            return
        # The same ones until they are sent: of another, a device would have two, one of them without its contents.
        identities = self._post.push([message for message, _ in asking.unsent])
        for identity, (_, name) in zip(identities, asking.unsent, strict=True):
            if identity:
                asking.sent[identity], asking.asked = name, True
            else:
                asking.failed(name)
        asking.unsent = []

    def _messages(self, asking: Asking, collected: Collected) -> list[tuple[Any, str]]:
        from flwr.app import Message

        waiting = collected.missing() - set(asking.sent.values())
        there = [(node, name) for node, name in self.online().items() if name in waiting and asking.may_ask(name)]
        if not there:
            return []
        content, group = internals.content_of(asking.task), str(asking.number)
        return [(Message(content, node, internals.CALL, ttl=asking.left, group_id=group), name) for node, name in there]

    def _receive(self, asking: Asking, collected: Collected) -> None:
        assert self._post is not None
        if not asking.sent:
            return
        for reply in self._post.pull(list(asking.sent), collected.most_bytes):
            # By what it replies to: Flower answers in the name of a device that is lost.
            name = asking.sent.pop(reply.to, None)
            if name is None:
                continue
            if reply.error is not None:
                log.warning("%s did not answer: %s", name, internals.why(reply.error))
                asking.failed(name)
                continue
            asking.lost.pop(name, None)
            code = collected.take(name, reply.data)
            if code not in ("joined", "nobody"):
                log.warning("%s contributes nothing: %s", name, code)

    def _wait_for_devices(self) -> None:
        import httpx

        said = False
        while True:
            here = 0
            try:
                here, self._heard = len(self.online()), time.monotonic()
            except httpx.HTTPError as error:
                self._recover(error)
            if here >= self._at_least:
                return
            if not said:
                self._say(f"{here} of {self._at_least} devices are here; waiting for more")
                said = True
            if self._stop():
                raise KeyboardInterrupt
            self._look_after_proxy()
            time.sleep(POLL)

    def _look_after_proxy(self) -> None:
        self.proxy.keep_log_short()
        self.superlink.keep_log_short()  # it writes a line for every request, and devices make any number of them
        if self.proxy.ended is not None:
            self._say(f"the proxy is gone (status {self.proxy.ended}), and is started again")
            self._open()

    def _recover(self, error: Exception) -> bool:
        """Start the SuperLink again if it is gone. True if it forgot what it held: then all is to be asked again."""
        import httpx

        before = self._post
        for _ in range(MOST_REFUSALS):
            time.sleep(POLL)
            try:
                self._mend(error)
                return self._post is not before
            except httpx.HTTPError as another:  # it is lost again
                error = another
        raise LostProcess(f"the SuperLink cannot be reached: {error}; its log is {self.superlink.log}") from error

    def _mend(self, error: Exception) -> None:
        import httpx

        if self.superlink.ended is None and not isinstance(error, httpx.HTTPStatusError):
            if self._post is None:
                return self._join()
            if time.monotonic() < self._heard + SILENT:
                return None  # it was a moment's trouble
            self._say(f"the SuperLink does not answer for {SILENT:g} s")
            self.superlink.stop()
        if self.superlink.ended is not None:
            self._say(f"the SuperLink is gone (status {self.superlink.ended}), and is started again")
            return self._start()
        self._refusals += 1
        if self._refusals > MOST_REFUSALS:
            raise LostProcess(f"the SuperLink refuses its server: {error}; its log is {self.superlink.log}") from error
        # This process was held up for so long that Flower took it for lost: a run of Flower's is begun anew.
        self._say("the SuperLink took this server for lost; going on with it anew")
        return self._join()
