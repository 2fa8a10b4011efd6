"""How the server asks devices through Flower: late ones, lost ones, a SuperLink that is gone. Flower is played here."""

from __future__ import annotations

import copy
import socket
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from sottovoce.commands import federate
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation.flower import payload, superlink_server
from sottovoce.federation.flower.mailbox import Reply
from sottovoce.federation.flower.superlink_server import SuperLinkServer
from sottovoce.federation.roster import FederationSettings
from sottovoce.federation.transport import Exchange, Serving
from sottovoce_evidence.errors import LostProcess, SottoError

NODES = {11: "alice", 12: "clinic", 13: "school"}
SETTINGS = FederationSettings(Vocabulary.from_words(["red", "green"]), 16, "192.0.2.7", 1234)


MAX_ANSWER = 1000


class Answers:
    """What a transport gave for the messages of an exchange."""

    def __init__(self):
        self.taken: dict[str, bytes] = {}

    def missing(self) -> set[str]:
        return set(NODES.values()) - set(self.taken)


def ask(linked, number: int, message: bytes, seconds: float, answers: Answers) -> None:
    exchange = Exchange(f"round {number}", dict.fromkeys(NODES.values(), message), seconds, MAX_ANSWER)
    for name, answer in linked.exchange(exchange):
        assert name not in answers.taken
        answers.taken[name] = answer


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Mailbox:
    """Messages by number. `reply` says what comes back for a node: bytes, an error code, an exception, or nothing."""

    def __init__(self, reply, fault=lambda messages: None):
        self.reply, self.fault, self.nodes = reply, fault, [*NODES, 99]
        self.sent, self.ttl, self.pushed, self.taken_back = [], [], [], []

    def online(self):
        return self.nodes

    def push(self, messages):
        self.pushed.append([id(message) for message in messages])
        self.fault(messages)
        first = len(self.sent)
        self.sent += [message.dst for message in messages]
        self.ttl += [message.ttl for message in messages]
        return [f"m{number}" for number in range(first, len(self.sent))]

    def pull(self, names, most):
        assert most == MAX_ANSWER
        for name in names:
            answer = self.reply(self.sent[int(name[1:])])
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                yield Reply(name, None, answer) if isinstance(answer, bytes) else Reply(name, answer, b"")

    def take_back(self, names):
        self.taken_back += [int(name[3:]) if name.startswith("to ") else self.sent[int(name[1:])] for name in names]


def refused() -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://x")
    return httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(superlink_server, "time", clock)
    return clock


@pytest.fixture
def make(monkeypatch, clock):
    monkeypatch.setattr(payload, "pack", lambda data: data)

    def message(content, dst, kind, ttl, group_id):
        return SimpleNamespace(dst=dst, ttl=ttl, metadata=SimpleNamespace(message_id=f"to {dst}"))

    monkeypatch.setattr(superlink_server, "Message", message)

    def linked(mailbox, *, ended=None, keeps_state=False) -> SuperLinkServer:
        made = object.__new__(SuperLinkServer)
        made._mailbox, made._names, made._at_least = mailbox, dict(NODES), 1
        made.said, made._stop = [], lambda: False
        made._notify, made._state = made.said.append, None
        made.superlink = SimpleNamespace(ended=ended, log="log", keep_log_short=lambda: None, secret=b"")
        made.superlink.stop = lambda: setattr(made.superlink, "ended", -9)
        made.proxy = SimpleNamespace(ended=None, keep_log_short=lambda: None, stop=lambda: None)
        made.admitted = []
        made._set_quota = made.admitted.append
        made.rung = []
        made._line = SimpleNamespace(ring=made.rung.append)
        made._last_reply, made._refusals, made.restarts, made.joins, made._unanswered = clock.now, 0, 0, 0, {}

        def start():
            made.restarts += 1
            made.superlink.ended, made._last_reply = None, clock.now
            if not keeps_state:
                made._mailbox = copy.copy(mailbox)

        def join():
            made.joins += 1
            made._mailbox = copy.copy(mailbox)

        made._start, made._join = start, join
        return made

    return linked


def test_every_registered_device_that_is_there_is_asked_once(make):
    mailbox, answers = Mailbox(lambda node: b"answer %d" % node), Answers()
    ask(make(mailbox), 1, b"task", 100, answers)
    assert sorted(mailbox.sent) == [11, 12, 13]  # not 99, which is on no roster
    assert answers.taken == {name: b"answer %d" % node for node, name in NODES.items()}
    assert mailbox.taken_back == []


def test_each_device_gets_its_own_message_and_one_without_a_message_is_not_asked(make, monkeypatch):
    packed = []
    monkeypatch.setattr(payload, "pack", lambda data: packed.append(data) or data)
    message = lambda content, dst, *_, **__: SimpleNamespace(dst=dst, ttl=1, content=content)  # noqa: E731
    monkeypatch.setattr(superlink_server, "Message", message)
    mailbox, contents = Mailbox(lambda node: contents[node]), {}
    mailbox.fault = lambda messages: contents.update({message.dst: message.content for message in messages})
    exchange = Exchange("round 1", {"alice": b"a", "clinic": b"b"}, 100, MAX_ANSWER)
    assert dict(make(mailbox).exchange(exchange)) == {"alice": b"a", "clinic": b"b"}
    assert mailbox.sent == [11, 12]
    assert sorted(packed) == [b"a", b"b"]


def test_a_slow_device_is_away_when_time_is_up_and_need_not_begin(make, clock, caplog):
    mailbox, answers = Mailbox(lambda node: None if node == 12 else b"x"), Answers()
    ask(make(mailbox), 1, b"task", 60, answers)
    assert answers.missing() == {"clinic"}
    assert mailbox.sent.count(12) == 1
    assert mailbox.taken_back == [12]
    assert 60 < clock.now - 1000 < 61
    assert [record.getMessage() for record in caplog.records] == ["round 1: no answer in 60 s (--seconds) from clinic"]


def test_a_later_phase_goes_on_with_the_devices_that_are_left(make):
    """Whoever left would not be in its round any more, so it is not waited for."""
    linked, everybody = make(Mailbox(lambda node: b"x")), dict.fromkeys(NODES.values(), b"phase")
    linked._at_least, linked._stop = len(NODES) + 1, lambda: True
    assert set(dict(linked.exchange(Exchange("round 1", everybody, 60, MAX_ANSWER, begins=False)))) == set(everybody)
    with pytest.raises(KeyboardInterrupt):  # the first phase waits, until it is stopped
        list(linked.exchange(Exchange("round 1", everybody, 60, MAX_ANSWER)))


class Lines:
    """The lines of devices, played: each gives its answer after so many seconds; None is never."""

    def __init__(self, clock: Clock, after: dict[str, float | None], unreached: tuple[str, ...] = ()):
        self.clock, self.after, self.unreached, self.began = clock, after, unreached, 0.0

    def ask(self, messages):
        self.left, self.began = dict.fromkeys(messages), self.clock.now

    def answers(self, seconds):
        self.clock.now += seconds
        for name in list(self.left):
            after = self.after[name]
            if after is not None and self.clock.now >= self.began + after:
                del self.left[name]
                yield name, b"x"

    def silent(self, name):
        return self.clock.now - self.began

    def has(self, name):
        return name not in self.unreached


def test_messages_that_devices_wait_for_go_on_their_lines_and_not_by_flower(make, clock):
    mailbox = Mailbox(lambda node: b"by Flower")
    linked, everybody = make(mailbox), dict.fromkeys(NODES.values(), b"phase")
    linked._line = Lines(clock, dict.fromkeys(NODES.values(), 1.0))
    urgent = Exchange("round 1", everybody, 60, MAX_ANSWER, begins=False, urgent=True)
    assert dict(linked.exchange(urgent)) == dict.fromkeys(NODES.values(), b"x")
    assert (mailbox.sent, linked.admitted) == ([], [MAX_ANSWER])
    assert clock.now - 1000 < 2


@pytest.mark.parametrize(
    ("works", "unreached", "here", "waited"),
    [
        (100.0, (), [*NODES], 100),  # it has its message, is connected, and works for long
        (None, (), [*NODES], 300),  # and never answers: until time is up
        (None, (), [11, 12], superlink_server.GRACE),  # it left
        (None, ("school",), [*NODES], superlink_server.GRACE),  # its line does not come back
    ],
)
def test_a_device_that_left_its_line_is_not_waited_for_long_and_one_that_works_is(
    make, clock, works, unreached, here, waited
):
    mailbox = Mailbox(lambda node: b"by Flower")
    mailbox.nodes = here
    linked = make(mailbox)
    linked._line = Lines(clock, {"alice": 1.0, "clinic": 1.0, "school": works}, unreached)
    exchange = Exchange("round 1", dict.fromkeys(NODES.values(), b"phase"), 300, MAX_ANSWER, urgent=True)
    answered = dict(linked.exchange(exchange))
    assert set(answered) == ({"alice", "clinic", "school"} if works else {"alice", "clinic"})
    assert waited <= clock.now - 1000 < waited + 2 * superlink_server.AGAIN


def test_devices_are_told_that_a_message_waits_at_flower(make):
    linked = make(Mailbox(lambda node: b"x"))
    ask(linked, 1, b"task", 100, Answers())
    assert linked.rung == [[*NODES.values()]]


def test_a_device_that_flower_lost_is_known_by_the_message_it_owes(make):
    mailbox, answers = Mailbox(lambda node: 5 if node == 11 else b"x"), Answers()
    ask(make(mailbox), 1, b"task", 100, answers)
    assert answers.missing() == {"alice"}


def test_a_device_that_is_lost_as_the_last_one_may_come_back(make, clock):
    """The slowest is the last: without a word more, its part would be lost whenever its connection is."""
    replies = {11: [b"x"], 12: [5, b"x"], 13: [b"x"]}
    mailbox, answers = Mailbox(lambda node: replies[node].pop(0)), Answers()
    ask(make(mailbox), 1, b"task", 100, answers)
    assert answers.missing() == set()
    assert mailbox.sent == [11, 12, 13, 12]
    assert clock.now - 1000 < 6


@pytest.mark.parametrize(("seconds", "waited"), [(100, superlink_server.GRACE), (10, 10 - superlink_server.AGAIN)])
def test_a_device_that_does_not_come_back_is_not_waited_for_long(make, clock, seconds, waited):
    """However often it fails; nor when no time is left to ask it."""
    mailbox, answers = Mailbox(lambda node: 5 if node == 12 else b"x"), Answers()
    ask(make(mailbox), 1, b"task", seconds, answers)
    assert answers.missing() == {"clinic"}
    assert waited <= clock.now - 1000 < waited + 1


def test_a_round_does_not_end_before_somebody_was_asked(make, clock):
    """The only device may leave for a moment just then: a round is paid for."""
    mailbox, answers = Mailbox(lambda node: b"x"), Answers()
    here = iter([[11], [], [], [11, 12, 13]])
    mailbox.online = lambda: next(here, [11, 12, 13])
    ask(make(mailbox), 1, b"task", 100, answers)
    assert answers.missing() == set()


def test_a_device_that_fails_at_once_is_asked_again_now_and_then(make, clock):
    """Not at every look; and not when so little time is left that it would work for nothing."""
    mailbox, answers = Mailbox(lambda node: {11: 5, 12: None, 13: b"x"}[node]), Answers()
    ask(make(mailbox), 1, b"task", 61, answers)
    assert mailbox.sent.count(12) == 1
    assert 9 <= mailbox.sent.count(11) <= 11
    assert min(mailbox.ttl) >= superlink_server.AGAIN


def test_messages_that_were_sent_in_part_are_sent_again_as_they_are(make):
    """Others would be further messages: a device would wait for the contents of the first, which never come."""
    faults = [httpx.ReadTimeout("slow"), ObjectPushError("part", 1, "session")]

    def fault(messages):
        if faults:
            raise faults.pop()

    mailbox, answers = Mailbox(lambda node: b"x", fault), Answers()
    linked = make(mailbox)
    ask(linked, 1, b"task", 100, answers)
    assert len(mailbox.pushed) == 3
    assert mailbox.pushed[0] == mailbox.pushed[1] == mailbox.pushed[2]
    assert (answers.missing(), linked.restarts, linked.joins) == (set(), 0, 0)


def test_messages_that_could_only_be_sent_in_part_are_taken_back(make):
    """A device would wait for the rest, and be away in the next round too."""

    def fault(messages):
        raise ObjectPushError("part", 1, "session")

    mailbox, answers = Mailbox(lambda node: b"x", fault), Answers()
    ask(make(mailbox), 1, b"task", 20, answers)
    assert mailbox.taken_back == [11, 12, 13]


@pytest.mark.parametrize("keeps_state", [False, True])
def test_a_superlink_that_is_gone_is_started_again_and_whoever_owes_an_answer_is_asked_again(make, keeps_state):
    """What came before is kept. With a state of its own the link still has the messages: nothing is sent twice."""
    gone = [httpx.ConnectError("gone")]
    mailbox, answers = Mailbox(lambda node: gone.pop() if node == 13 and gone else b"x"), Answers()
    linked = make(mailbox, ended=247, keeps_state=keeps_state)
    ask(linked, 1, b"task", 100, answers)
    assert linked.restarts == 1
    assert answers.missing() == set()
    assert mailbox.sent == ([11, 12, 13] if keeps_state else [11, 12, 13, 13])


def test_those_who_owed_an_answer_when_the_superlink_was_lost_may_come_back_to_it(make, clock):
    """Also if the first that is back is one who has answered: the round would be over without them."""
    gone = [httpx.ConnectError("gone")]
    mailbox, answers = Mailbox(lambda node: gone.pop() if node == 13 and gone else b"x"), Answers()
    linked = make(mailbox, ended=247)
    start = linked._start

    def lost_all():
        start()
        back = clock.now + 10
        linked._mailbox.online = lambda: [11] if clock.now < back else [*NODES]

    linked._start = lost_all
    ask(linked, 1, b"task", 100, answers)
    assert answers.missing() == set()
    assert mailbox.sent == [11, 12, 13, 13]


def test_a_superlink_that_is_lost_again_and_again_in_a_round_is_an_error(make):
    """It may not have the memory that the round needs, and would be started for ever."""
    linked = make(Mailbox(lambda node: httpx.ReadError("gone")))
    pull = linked._mailbox.pull
    linked._mailbox.pull = lambda *asked: setattr(linked.superlink, "ended", -9) or pull(*asked)
    with pytest.raises(LostProcess, match="lost 6 times in round 3"):
        ask(linked, 3, b"task", 100, Answers())


def test_a_superlink_that_cannot_be_joined_at_the_start_is_an_error_that_says_so(make):
    linked = make(Mailbox(lambda node: b"x"))

    def join():
        raise httpx.ConnectError("certificate verify failed")

    linked._start = linked._join = join
    linked._mailbox, linked._task = None, ExitStack()
    with pytest.raises(LostProcess, match="cannot be reached: certificate verify failed; its log is log"):
        linked.__enter__()


def test_a_superlink_that_runs_and_does_not_answer_is_started_again(make, clock):
    """It was stopped, say, or hangs: a server would wait for it for ever."""
    silent = [True]
    clock.now += 2 * superlink_server.SILENT  # nobody asked it between two rounds

    def reply(node):
        clock.now += 30
        return httpx.ReadTimeout("timed out") if silent[0] else b"x"

    mailbox, answers = Mailbox(reply), Answers()
    linked = make(mailbox)
    linked._last_reply = 1000.0
    start = linked._start
    linked._start = lambda: silent.clear() or silent.append(False) or start()
    ask(linked, 1, b"task", 1000, answers)
    assert linked.restarts == 1
    assert clock.now - 1000 > 3 * superlink_server.SILENT
    assert linked.said[0] == "the SuperLink does not answer for 300 s"
    assert answers.missing() == set()


def test_a_superlink_that_refuses_again_and_again_is_an_error(make):
    linked = make(Mailbox(lambda node: refused()))
    with pytest.raises(LostProcess, match="refuses its server"):
        ask(linked, 1, b"task", 100, Answers())
    assert linked.joins == superlink_server.MAX_REFUSALS


def test_a_server_that_was_taken_for_lost_begins_anew_and_keeps_what_came(make):
    faults = [refused()]
    mailbox, answers = Mailbox(lambda node: faults.pop() if node == 13 and faults else b"x"), Answers()
    linked = make(mailbox)
    ask(linked, 1, b"task", 100, answers)
    assert (linked.joins, linked.restarts) == (1, 0)
    assert mailbox.sent == [11, 12, 13, 13]
    assert answers.missing() == set()


def test_without_devices_the_server_waits_and_can_be_stopped(make):
    mailbox = Mailbox(lambda node: b"x")
    mailbox.nodes = []
    linked = make(mailbox)
    asked = iter([False, False, True])
    linked._stop = lambda: next(asked)
    with pytest.raises(KeyboardInterrupt):
        ask(linked, 1, b"task", 100, Answers())
    assert linked.said == ["devices that are here: 0 of 1; waiting for more"]


@pytest.mark.parametrize("nodes", [[], [*NODES]])
def test_a_proxy_that_is_gone_is_started_again(make, nodes):
    """Nobody would come in any more, nor an answer of those who are here."""
    mailbox = Mailbox(lambda node: None if linked.proxy.ended else b"x")
    mailbox.nodes, answers = nodes, Answers()
    linked = make(mailbox)
    linked.proxy.ended = 1

    def opened():
        linked.proxy.ended, mailbox.nodes = None, [*NODES]

    linked._open = opened
    ask(linked, 1, b"task", 100, answers)
    assert answers.missing() == set()
    assert "the proxy is gone (status 1), and is started again" in linked.said


def test_a_port_that_somebody_listens_on_is_refused(make, monkeypatch):
    """Whoever knocks there finds somebody, and would take that for the proxy."""
    monkeypatch.setattr("sottovoce.federation.flower.subprocesses.PORT_WAIT", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        linked = make(Mailbox(lambda node: b"x"))
        linked._bind, linked._roster = "127.0.0.1", SimpleNamespace(port=other.getsockname()[1])
        linked.proxy.start = lambda socket: pytest.fail("a proxy was started")
        with pytest.raises(SottoError, match="taken by another process"):
            linked._open()


def test_a_superlink_is_for_this_machine_alone_keeps_its_state_in_memory_and_lets_known_devices_in(tmp_path):
    roster = federate.create_federation(tmp_path / "f", [("phone", 1)], SETTINGS)
    (tmp_path / "link").mkdir()
    made = SuperLinkServer(roster, tmp_path / "link", Serving())
    command = made.superlink._command
    assert "flower-superlink" in command
    assert command[command.index("--database") + 1] == ":flwr-in-memory:"
    assert command[command.index("--isolation") + 1] == "process"
    assert {"--enable-supernode-auth", "--ssl-certfile", "--superexec-auth-secret-file"} <= set(command)
    assert "--insecure" not in command
    assert (tmp_path / "link" / "desk.secret").stat().st_mode & 0o077 == 0
    assert "192.0.2.7" in made.proxy._command


def test_the_state_of_a_link_is_its_own_for_its_owner_alone_and_goes_with_it(tmp_path, monkeypatch):
    """Updates in it are not noised; and another federation may keep its own in the same folder."""
    monkeypatch.setattr(superlink_server, "in_memory", lambda folder: folder)
    for name in ("state", "link"):
        (tmp_path / name).mkdir()

    def linked(roster) -> tuple[SuperLinkServer, Path]:
        made = SuperLinkServer(roster, tmp_path / "link", Serving(state=tmp_path / "state"))
        made._start = made._open = lambda: None
        command = made.superlink._command
        return made, Path(command[command.index("--database") + 1])

    one, other = (federate.create_federation(tmp_path / name, [("phone", 1)], SETTINGS) for name in ("f", "g"))
    _, others = linked(other)
    _, killed = linked(one)
    Path(f"{killed}-wal").touch()
    made, database = linked(one)
    with made:
        assert set((tmp_path / "state").iterdir()) == {others, database}
        assert killed != database
        assert database.stat().st_mode & 0o077 == 0
        Path(f"{database}-wal").touch()
    assert list((tmp_path / "state").iterdir()) == [others]
