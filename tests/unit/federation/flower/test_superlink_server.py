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
from sottovoce.errors import LostProcess, SottoError
from sottovoce.federation.flower import internals, superlink_server
from sottovoce.federation.flower.mailbox import Reply
from sottovoce.federation.flower.superlink_server import Link

NODES = {11: "alice", 12: "clinic", 13: "school"}


class Collected:
    """Stands for the real one: names and bytes are all that a link hands over."""

    most_bytes = 1000

    def __init__(self):
        self.taken: dict[str, bytes] = {}

    def missing(self) -> set[str]:
        return set(NODES.values()) - set(self.taken)

    def take(self, name: str, message: bytes) -> str:
        self.taken[name] = message
        return "joined"


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Post:
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
        assert most == Collected.most_bytes
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
    monkeypatch.setattr(internals, "content_of", lambda data: data)

    def message(content, dst, kind, ttl, group_id):
        return SimpleNamespace(dst=dst, ttl=ttl, metadata=SimpleNamespace(message_id=f"to {dst}"))

    monkeypatch.setattr("flwr.app.Message", message)

    def linked(post, *, ended=None, keeps_state=False) -> Link:
        made = object.__new__(Link)
        made._post, made._names, made._at_least = post, dict(NODES), 1
        made.said, made._stop = [], lambda: False
        made._say, made._state = made.said.append, None
        made.superlink = SimpleNamespace(ended=ended, log="log", keep_log_short=lambda: None)
        made.superlink.stop = lambda: setattr(made.superlink, "ended", -9)
        made.proxy = SimpleNamespace(ended=None, keep_log_short=lambda: None)
        made.admitted = []
        made._admit = made.admitted.append
        made._heard, made._refusals, made.restarts, made.joins = clock.now, 0, 0, 0

        def start():
            made.restarts += 1
            made.superlink.ended, made._heard = None, clock.now
            if not keeps_state:
                made._post = copy.copy(post)

        def join():
            made.joins += 1
            made._post = copy.copy(post)

        made._start, made._join = start, join
        return made

    return linked


def test_every_registered_device_that_is_there_is_asked_once(make):
    post, collected = Post(lambda node: b"answer %d" % node), Collected()
    make(post).ask(1, b"task", 100, collected)
    assert sorted(post.sent) == [11, 12, 13]  # not 99, which is on no roster
    assert collected.taken == {name: b"answer %d" % node for node, name in NODES.items()}
    assert post.taken_back == []


def test_a_slow_device_is_away_when_time_is_up_and_need_not_begin(make, clock, caplog):
    post, collected = Post(lambda node: None if node == 12 else b"x"), Collected()
    make(post).ask(1, b"task", 60, collected)
    assert collected.missing() == {"clinic"}
    assert post.sent.count(12) == 1
    assert post.taken_back == [12]
    assert 60 < clock.now - 1000 < 61
    assert [record.getMessage() for record in caplog.records] == ["round 1: no answer in 60 s (--seconds) from clinic"]


def test_a_device_that_flower_lost_is_known_by_the_message_it_owes(make):
    post, collected = Post(lambda node: 5 if node == 11 else b"x"), Collected()
    make(post).ask(1, b"task", 100, collected)
    assert collected.missing() == {"alice"}


def test_a_device_that_is_lost_as_the_last_one_may_come_back(make, clock):
    """The slowest is the last: without a word more, its part would be lost whenever its connection is."""
    answers = {11: [b"x"], 12: [5, b"x"], 13: [b"x"]}
    post, collected = Post(lambda node: answers[node].pop(0)), Collected()
    make(post).ask(1, b"task", 100, collected)
    assert collected.missing() == set()
    assert post.sent == [11, 12, 13, 12]
    assert clock.now - 1000 < 6


@pytest.mark.parametrize(("seconds", "waited"), [(100, superlink_server.GRACE), (10, 10 - superlink_server.AGAIN)])
def test_a_device_that_does_not_come_back_is_not_waited_for_long(make, clock, seconds, waited):
    """However often it fails; nor when no time is left to ask it."""
    post, collected = Post(lambda node: 5 if node == 12 else b"x"), Collected()
    make(post).ask(1, b"task", seconds, collected)
    assert collected.missing() == {"clinic"}
    assert waited <= clock.now - 1000 < waited + 1


def test_a_round_does_not_end_before_somebody_was_asked(make, clock):
    """The only device may leave for a moment just then: a round is paid for."""
    post, collected = Post(lambda node: b"x"), Collected()
    here = iter([[11], [], [], [11, 12, 13]])
    post.online = lambda: next(here, [11, 12, 13])
    make(post).ask(1, b"task", 100, collected)
    assert collected.missing() == set()


def test_a_device_that_fails_at_once_is_asked_again_now_and_then(make, clock):
    """Not at every look; and not when so little time is left that it would work for nothing."""
    post, collected = Post(lambda node: {11: 5, 12: None, 13: b"x"}[node]), Collected()
    make(post).ask(1, b"task", 61, collected)
    assert post.sent.count(12) == 1
    assert 9 <= post.sent.count(11) <= 11
    assert min(post.ttl) >= superlink_server.AGAIN


def test_in_a_short_round_everybody_is_asked_all_the_same(make):
    post, collected = Post(lambda node: b"x"), Collected()
    make(post).ask(1, b"task", 2, collected)
    assert collected.missing() == set()


def test_messages_that_were_sent_in_part_are_sent_again_as_they_are(make):
    """Others would be further messages: a device would wait for the contents of the first, which never come."""
    faults = [httpx.ReadTimeout("slow"), ObjectPushError("part", 1, "session")]

    def fault(messages):
        if faults:
            raise faults.pop()

    post, collected = Post(lambda node: b"x", fault), Collected()
    linked = make(post)
    linked.ask(1, b"task", 100, collected)
    assert len(post.pushed) == 3
    assert post.pushed[0] == post.pushed[1] == post.pushed[2]
    assert (collected.missing(), linked.restarts, linked.joins) == (set(), 0, 0)


def test_messages_that_could_only_be_sent_in_part_are_taken_back(make):
    """A device would wait for the rest, and be away in the next round too."""

    def fault(messages):
        raise ObjectPushError("part", 1, "session")

    post, collected = Post(lambda node: b"x", fault), Collected()
    make(post).ask(1, b"task", 20, collected)
    assert post.taken_back == [11, 12, 13]


@pytest.mark.parametrize("keeps_state", [False, True])
def test_a_superlink_that_is_gone_is_started_again_and_whoever_owes_an_answer_is_asked_again(make, keeps_state):
    """What came before is kept. With a state of its own the link still has the messages: nothing is sent twice."""
    gone = [httpx.ConnectError("gone")]
    post, collected = Post(lambda node: gone.pop() if node == 13 and gone else b"x"), Collected()
    linked = make(post, ended=247, keeps_state=keeps_state)
    linked.ask(1, b"task", 100, collected)
    assert linked.restarts == 1
    assert collected.missing() == set()
    assert post.sent == ([11, 12, 13] if keeps_state else [11, 12, 13, 13])


def test_those_who_owed_an_answer_when_the_superlink_was_lost_may_come_back_to_it(make, clock):
    """Also if the first that is back is one who has answered: the round would be over without them."""
    gone = [httpx.ConnectError("gone")]
    post, collected = Post(lambda node: gone.pop() if node == 13 and gone else b"x"), Collected()
    linked = make(post, ended=247)
    start = linked._start

    def lost_all():
        start()
        back = clock.now + 10
        linked._post.online = lambda: [11] if clock.now < back else [*NODES]

    linked._start = lost_all
    linked.ask(1, b"task", 100, collected)
    assert collected.missing() == set()
    assert post.sent == [11, 12, 13, 13]


def test_one_who_does_not_come_back_to_a_superlink_that_was_lost_is_not_waited_for_long(make, clock):
    gone = [httpx.ConnectError("gone")]
    post, collected = Post(lambda node: gone.pop() if node == 13 and gone else b"x"), Collected()
    linked = make(post, ended=247)
    start = linked._start
    linked._start = lambda: start() or setattr(linked._post, "nodes", [11])
    linked.ask(1, b"task", 100, collected)
    assert collected.missing() == {"school"}
    assert superlink_server.GRACE <= clock.now - 1000 < superlink_server.GRACE + 2


def test_a_superlink_that_is_lost_again_and_again_in_a_round_is_an_error(make):
    """It may not have the memory that the round needs, and would be started for ever."""
    linked = make(Post(lambda node: httpx.ReadError("gone")))
    pull = linked._post.pull
    linked._post.pull = lambda *asked: setattr(linked.superlink, "ended", -9) or pull(*asked)
    with pytest.raises(LostProcess, match="lost 6 times in round 3"):
        linked.ask(3, b"task", 100, Collected())


def test_a_superlink_that_is_lost_while_it_is_joined_again_is_started_again(make):
    post, faults = Post(lambda node: b"x"), [refused()]
    reply = post.reply
    post.reply = lambda node: faults.pop() if faults else reply(node)
    linked, join = make(post), []
    real = linked._join

    def lost_once():
        join.append(len(join))
        if len(join) == 1:
            linked._post, linked.superlink.ended = None, 1
            raise httpx.ConnectError("gone")
        real()

    linked._join = lost_once
    collected = Collected()
    linked.ask(1, b"task", 100, collected)
    assert (linked.restarts, join, collected.missing()) == (1, [0], set())


def test_a_superlink_that_cannot_be_joined_at_the_start_is_an_error_that_says_so(make):
    linked = make(Post(lambda node: b"x"))

    def join():
        raise httpx.ConnectError("certificate verify failed")

    linked._start = linked._join = join
    linked._post, linked._secret, linked._inside = None, b"", ExitStack()
    linked.__class__ = type("Linked", (Link,), {"__exit__": lambda *_: linked._inside.close()})
    with pytest.raises(LostProcess, match="cannot be reached: certificate verify failed; its log is log"):
        linked.__enter__()


def test_a_superlink_that_runs_but_cannot_be_joined_is_an_error_that_says_so(make):
    linked = make(Post(lambda node: refused()))

    def join():
        linked._post = None
        raise httpx.ReadTimeout("timed out")

    linked._join = join
    with pytest.raises(LostProcess, match="cannot be reached: timed out; its log is log"):
        linked.ask(1, b"task", 100, Collected())


def test_a_superlink_that_runs_and_does_not_answer_is_started_again(make, clock):
    """It was stopped, say, or hangs: a server would wait for it for ever."""
    silent = [True]
    clock.now += 2 * superlink_server.SILENT  # nobody asked it between two rounds

    def reply(node):
        clock.now += 30
        return httpx.ReadTimeout("timed out") if silent[0] else b"x"

    post, collected = Post(reply), Collected()
    linked = make(post)
    linked._heard = 1000.0
    start = linked._start
    linked._start = lambda: silent.clear() or silent.append(False) or start()
    linked.ask(1, b"task", 1000, collected)
    assert linked.restarts == 1
    assert clock.now - 1000 > 3 * superlink_server.SILENT
    assert linked.said[0] == "the SuperLink does not answer for 300 s"
    assert collected.missing() == set()


def test_a_superlink_that_refuses_again_and_again_is_an_error(make):
    linked = make(Post(lambda node: refused()))
    with pytest.raises(LostProcess, match="refuses its server"):
        linked.ask(1, b"task", 100, Collected())
    assert linked.joins == superlink_server.MOST_REFUSALS


def test_a_server_that_was_taken_for_lost_begins_anew_and_keeps_what_came(make):
    faults = [refused()]
    post, collected = Post(lambda node: faults.pop() if node == 13 and faults else b"x"), Collected()
    linked = make(post)
    linked.ask(1, b"task", 100, collected)
    assert (linked.joins, linked.restarts) == (1, 0)
    assert post.sent == [11, 12, 13, 13]
    assert collected.missing() == set()


def test_a_server_may_be_taken_for_lost_in_any_number_of_rounds(make):
    """A machine that sleeps every night is no fault that adds up."""
    faults = []
    linked = make(Post(lambda node: faults.pop() if faults else b"x"))
    for number in range(1, 3 * superlink_server.MOST_REFUSALS):
        faults.append(refused())
        linked.ask(number, b"task", 100, Collected())
    assert linked.joins == 3 * superlink_server.MOST_REFUSALS - 1


def test_without_devices_the_server_waits_and_can_be_stopped(make):
    post = Post(lambda node: b"x")
    post.nodes = []
    linked = make(post)
    asked = iter([False, False, True])
    linked._stop = lambda: next(asked)
    with pytest.raises(KeyboardInterrupt):
        linked.ask(1, b"task", 100, Collected())
    assert linked.said == ["0 of 1 devices are here; waiting for more"]


@pytest.mark.parametrize("nodes", [[], [*NODES]])
def test_a_proxy_that_is_gone_is_started_again(make, nodes):
    """Nobody would come in any more, nor an answer of those who are here."""
    post = Post(lambda node: None if linked.proxy.ended else b"x")
    post.nodes, collected = nodes, Collected()
    linked = make(post)
    linked.proxy.ended = 1

    def opened():
        linked.proxy.ended, post.nodes = None, [*NODES]

    linked._open = opened
    linked.ask(1, b"task", 100, collected)
    assert collected.missing() == set()
    assert "the proxy is gone (status 1), and is started again" in linked.said


def test_a_port_that_somebody_listens_on_is_refused(make, monkeypatch):
    """Whoever knocks there finds somebody, and would take that for the proxy."""
    monkeypatch.setattr("sottovoce.federation.flower.subprocesses.FREE_IN", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        linked = make(Post(lambda node: b"x"))
        linked._bind, linked._roster = "127.0.0.1", SimpleNamespace(port=other.getsockname()[1])
        linked.proxy.start = lambda socket: pytest.fail("a proxy was started")
        with pytest.raises(SottoError, match="taken by another process"):
            linked._open()


@pytest.mark.parametrize(
    ("bind", "knocked"),
    [("192.0.2.7", "192.0.2.7"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("localhost", "localhost")],
)
def test_the_proxy_is_waited_for_at_the_address_it_listens_on(bind, knocked, monkeypatch):
    """Which devices know: on a server of its own that is not the loopback."""
    seen = []
    monkeypatch.setattr(superlink_server, "check_not_taken", lambda port, host: seen.append((port, host)))
    made = object.__new__(Link)
    made._start, made._bind, made._roster = lambda: None, bind, SimpleNamespace(port=8443)
    made._secret, made._inside, made._admit = b"", ExitStack(), lambda answer: None
    made.proxy = SimpleNamespace(start=lambda socket: None, wait_until_listening=lambda *address: seen.append(address))
    made.__enter__()
    made._inside.close()
    assert seen == [(8443, bind), (8443, knocked)]


def test_a_superlink_is_for_this_machine_alone_keeps_its_state_in_memory_and_lets_known_devices_in(tmp_path):
    words = Vocabulary.from_words(["red", "green"])
    roster = federate.found_federation(
        tmp_path / "f", [("phone", 1)], vocabulary=words, tokens_per_user=16, host="192.0.2.7", port=1234
    )
    (tmp_path / "link").mkdir()
    made = Link(roster, tmp_path / "link", bind=roster.host)
    command = made.superlink._command
    assert "sottovoce.federation.flower.superlink" in command
    assert command[command.index("--database") + 1] == ":flwr-in-memory:"
    assert command[command.index("--isolation") + 1] == "process"
    assert {"--enable-supernode-auth", "--ssl-certfile", "--superexec-auth-secret-file"} <= set(command)
    assert "--insecure" not in command
    assert (tmp_path / "link" / "desk.secret").stat().st_mode & 0o077 == 0
    assert "192.0.2.7" in made.proxy._command


def test_the_state_of_a_link_is_its_own_for_its_owner_alone_and_goes_with_it(tmp_path, monkeypatch):
    """Updates in it are not noised; and another federation may keep its own in the same folder."""
    words = Vocabulary.from_words(["red", "green"])
    monkeypatch.setattr(superlink_server, "in_memory", lambda folder: folder)
    for name in ("state", "link"):
        (tmp_path / name).mkdir()

    def linked(roster) -> tuple[Link, Path]:
        made = Link(roster, tmp_path / "link", bind=roster.host, state=tmp_path / "state")
        made._start = made._open = lambda: None
        command = made.superlink._command
        return made, Path(command[command.index("--database") + 1])

    one, other = (
        federate.found_federation(
            tmp_path / name, [("phone", 1)], vocabulary=words, tokens_per_user=16, host="192.0.2.7", port=1234
        )
        for name in ("f", "g")
    )
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
