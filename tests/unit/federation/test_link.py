"""How the server asks devices through Flower: late ones, lost ones, a SuperLink that is gone. Flower is played here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import LostProcess
from sottovoce.federation import flower, link
from sottovoce.federation.link import Link
from sottovoce.jobs import federating

NODES = {11: "alice", 12: "clinic", 13: "school"}


class Collected:
    """Stands for the real one: names and bytes are all that a link hands over."""

    def __init__(self):
        self.taken: dict[str, bytes] = {}

    def missing(self) -> set[str]:
        return set(NODES.values()) - set(self.taken)

    def take(self, name: str, message: bytes) -> str:
        self.taken[name] = message
        return "joined"


class Grid:
    """Messages by number. `reply` says what comes back for a node: bytes, an error code, an exception, or nothing."""

    def __init__(self, reply):
        self.reply, self.sent, self.online = reply, [], [*NODES, 99]

    def get_node_ids(self):
        return self.online

    def push_messages(self, messages):
        first = len(self.sent)
        self.sent += [message.dst for message in messages]
        return [f"m{number}" for number in range(first, len(self.sent))]

    def pull_messages(self, names):
        for name in names:
            answer = self.reply(self.sent[int(name[1:])])
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                continue
            error = SimpleNamespace(code=answer) if isinstance(answer, int) else None
            data = SimpleNamespace(data=answer)
            yield SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=name, src_node_id=1),  # Flower's own number for the lost
                has_error=lambda error=error: error is not None, error=error, content={"sottovoce": {"bytes": data}},
            )  # fmt: skip


@pytest.fixture
def make(monkeypatch):
    monkeypatch.setattr(link, "POLL", 0.01)
    monkeypatch.setattr(flower, "content_of", lambda data: data)
    monkeypatch.setattr("flwr.app.Message", lambda content, dst, kind, ttl, group_id: SimpleNamespace(dst=dst, ttl=ttl))

    def linked(grid, *, ended=None, keeps_state=False) -> Link:
        made = object.__new__(Link)
        made._grid, made._names, made._at_least = grid, dict(NODES), 1
        made._say = made.said = lambda text: None
        made._stop = lambda: False
        made._keeps_state = keeps_state
        made.superlink = SimpleNamespace(ended=ended, log="log")
        made.restarts = 0

        def start():
            made.restarts += 1
            made.superlink.ended = None

        made._start = start
        made._refusals = made.joins = 0
        made._forget = lambda: None

        def join():
            made.joins += 1

        made._join = join
        return made

    return linked


def test_every_registered_device_that_is_there_is_asked_once(make):
    grid, collected = Grid(lambda node: b"answer %d" % node), Collected()
    make(grid).ask(1, b"task", 100, collected)
    assert sorted(grid.sent) == [11, 12, 13]  # not 99, which is on no roster
    assert collected.taken == {name: b"answer %d" % node for node, name in NODES.items()}


def test_a_slow_device_is_away_when_time_is_up(make):
    grid, collected = Grid(lambda node: None if node == 12 else b"x"), Collected()
    make(grid).ask(1, b"task", 0.2, collected)
    assert collected.missing() == {"clinic"}
    assert grid.sent.count(12) == 1


def test_a_device_that_flower_lost_is_known_by_the_message_it_owes(make):
    grid, collected = Grid(lambda node: 5 if node == 11 else b"x"), Collected()
    make(grid).ask(1, b"task", 100, collected)
    assert collected.missing() == {"alice"}


def test_an_answer_of_another_kind_is_handed_over_as_nothing(make):
    grid, collected = Grid(lambda node: b"x"), Collected()
    real = grid.pull_messages
    grid.pull_messages = lambda names: [SimpleNamespace(**{**vars(reply), "content": {}}) for reply in real(names)]
    make(grid).ask(1, b"task", 100, collected)
    assert set(collected.taken.values()) == {b""}


@pytest.mark.parametrize("keeps_state", [False, True])
def test_a_superlink_that_is_gone_is_started_again_and_whoever_owes_an_answer_is_asked_again(make, keeps_state):
    """What came before is kept. With a state of its own the link still has the messages: nothing is sent twice."""
    gone = [httpx.ConnectError("gone")]
    grid, collected = Grid(lambda node: gone.pop() if node == 13 and gone else b"x"), Collected()
    linked = make(grid, ended=247, keeps_state=keeps_state)
    linked.ask(1, b"task", 100, collected)
    assert linked.restarts == 1
    assert collected.missing() == set()
    assert grid.sent == ([11, 12, 13] if keeps_state else [11, 12, 13, 13])


def test_a_superlink_that_refuses_again_and_again_is_an_error(make):
    request = httpx.Request("POST", "https://x")
    refused = httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))
    linked = make(Grid(lambda node: refused))
    with pytest.raises(LostProcess, match="refuses its server"):
        linked.ask(1, b"task", 100, Collected())
    assert linked.joins == link.MOST_REFUSALS


def test_a_server_that_was_taken_for_lost_begins_anew_and_keeps_what_came(make):
    request = httpx.Request("POST", "https://x")
    refused = [httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))]
    grid, collected = Grid(lambda node: refused.pop() if node == 13 and refused else b"x"), Collected()
    linked = make(grid)
    linked.ask(1, b"task", 100, collected)
    assert (linked.joins, linked.restarts) == (1, 0)
    assert grid.sent == [11, 12, 13, 13]
    assert collected.missing() == set()


def test_without_devices_the_server_waits_and_can_be_stopped(make):
    grid = Grid(lambda node: b"x")
    grid.online = []
    linked = make(grid)
    said, asked = [], iter([False, False, True])
    linked._say, linked._stop = said.append, lambda: next(asked)
    with pytest.raises(KeyboardInterrupt):
        linked.ask(1, b"task", 100, Collected())
    assert said == ["0 of 1 devices are here; waiting for more"]


@pytest.mark.parametrize(
    ("bind", "knocked"),
    [("192.0.2.7", "192.0.2.7"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("localhost", "localhost")],
)
def test_the_proxy_is_waited_for_at_the_address_it_listens_on(bind, knocked):
    """Which devices know: on a server of its own that is not the loopback."""
    seen = []
    made = object.__new__(Link)
    made._start, made._bind, made._roster = lambda: None, bind, SimpleNamespace(port=8443)
    made.proxy = SimpleNamespace(start=lambda: None, wait_until_listening=lambda *address: seen.append(address))
    made.__enter__()
    assert seen == [(8443, knocked)]


def test_a_superlink_is_for_this_machine_alone_keeps_its_state_in_memory_and_lets_known_devices_in(tmp_path):
    words = Vocabulary.from_words(["red", "green"])
    roster = federating.found_federation(
        tmp_path / "f", [("phone", 1)], vocabulary=words, tokens_per_user=16, host="192.0.2.7", port=1234
    )
    (tmp_path / "link").mkdir()
    made = Link(roster, tmp_path / "link", bind=roster.host)
    command = made.superlink._command
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--database") + 1] == ":flwr-in-memory:"
    assert command[command.index("--isolation") + 1] == "process"
    assert {"--enable-supernode-auth", "--ssl-certfile", "--superexec-auth-secret-file"} <= set(command)
    assert "--insecure" not in command
    assert (tmp_path / "link" / "desk.secret").stat().st_mode & 0o077 == 0
    assert "192.0.2.7" in made.proxy._command
