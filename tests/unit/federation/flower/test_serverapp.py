"""How the server becomes Flower's ServerApp. The SuperLink is played here; messages and the app are Flower's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.proto.runtime_pb2 import PullTaskInputResponse
from flwr.supercore.task_identity import TaskIdentity

from sottovoce.federation import keys
from sottovoce.federation.flower import serverapp
from sottovoce.federation.members import BY_SERVER
from sottovoce.federation.roster import Member


class Control:
    """The Control API of a SuperLink that knows some devices."""

    def __init__(self, *known: bytes):
        self.nodes = {key: number for number, key in enumerate(known, 1)}
        self.started, self.closed = [], False

    def ListNodes(self, request):
        nodes = [SimpleNamespace(public_key=key, node_id=number) for key, number in self.nodes.items()]
        return SimpleNamespace(nodes_info=nodes)

    def RegisterNode(self, request):
        assert request.public_key not in self.nodes
        self.nodes[request.public_key] = len(self.nodes) + 1
        return SimpleNamespace(node_id=self.nodes[request.public_key])

    def StartRun(self, request):
        self.started.append(request.fab)

    def close(self):
        self.closed = True


@pytest.fixture
def members(tmp_path) -> list[Member]:
    made = []
    for number, name in enumerate(("phone", "clinic")):
        (tmp_path / name).mkdir()
        made.append(Member(name, number, 1, keys.write_node_key(tmp_path / name), BY_SERVER))
    return made


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")
def test_devices_are_registered_once_and_a_run_is_started(members, monkeypatch):
    """A SuperLink that kept its state knows them already."""
    control = Control(keys.public_key_pem(members[1].public_key))
    monkeypatch.setattr(serverapp, "connect", lambda kind, socket: control)
    assert serverapp.register(Path("socket"), members) == {2: "phone", 1: "clinic"}
    assert serverapp.register(Path("socket"), members) == {2: "phone", 1: "clinic"}
    assert [bool(fab.content) for fab in control.started] == [True, True]
    assert control.closed


def test_the_connection_is_closed_when_the_superlink_fails(members, monkeypatch):
    control = Control()
    control.ListNodes = lambda request: 1 / 0
    monkeypatch.setattr(serverapp, "connect", lambda kind, socket: control)
    with pytest.raises(ZeroDivisionError):
        serverapp.register(Path("socket"), members)
    assert control.closed


def test_a_task_is_waited_for_and_not_for_ever(monkeypatch):
    now, tokens = [0.0], iter([None, None, "token"])
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(serverapp, "time", clock)
    assert serverapp.wait_for_task(SimpleNamespace(acquire=lambda kind: next(tokens))) == "token"
    assert now[0] == pytest.approx(2 * serverapp.POLL)
    assert serverapp.wait_for_task(SimpleNamespace(acquire=lambda kind: None)) is None
    assert serverapp.WAIT <= now[0] < serverapp.WAIT + 2


def test_a_mailbox_sends_in_the_name_of_the_task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    given = PullTaskInputResponse(task_id=5)
    given.run.run_id, given.context.node_id = 17, 1
    client = SimpleNamespace(PullTaskInput=lambda request: given)
    mailbox = serverapp.open_mailbox(client, "token")
    assert (TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id) == (5, 17, 1)
    assert (mailbox._client, mailbox._grid._client, mailbox._grid.run.run_id) == (client, client, 17)
