"""Messages to devices and back, through Flower's own state of a SuperLink, without a network between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr")
import httpx
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from sottovoce.federation.flower import mailbox, payload
from sottovoce.federation.flower.mailbox import Mailbox, Reply

MOST = 1000  # bytes of an answer
LARGE = b"x" * (payload.SMALL + 1)  # goes as an array
HANDLERS = {
    "GetNodes": "get_nodes", "PushMessages": "push_messages", "PullMessages": "pull_messages",
    "PushObject": "push_object", "PullObject": "pull_object", "ConfirmMessageReceived": "confirm_message_received",
}  # fmt: skip


class SuperLink:
    """What a SuperLink does with requests. `fault` may raise in place of one, or after it was served."""

    def __init__(self):
        self.state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()).state()
        run = self.state.create_run("a", "1", "h", {}, NOOP_FEDERATION_ID, None, "me", TaskType.SERVER_APP)
        (self.task,) = self.state.get_tasks(run_ids=[run])
        assert self.state.claim_task(self.task.task_id)
        assert self.state.activate_task(self.task.task_id)
        self.run_id = run
        self.fault: Callable[[str], None] = lambda name: None

    def __getattr__(self, name: str) -> Any:
        handler = getattr(runtime_handlers, HANDLERS[name])

        def serve(request: Any) -> Any:
            answer = handler(request, self.state, self.task)
            self.fault(name)
            return answer

        return serve

    def device(self, key: bytes) -> Device:
        number = self.state.create_node("me", "me", key, 0)
        assert self.state.activate_node(number, 1000)
        return Device(self, number)

    @property
    def objects(self) -> int:
        return len(self.state.object_store)


class Device:
    def __init__(self, link: SuperLink, number: int):
        self.link, self.number, self.node = link, number, Node(node_id=number)

    def receive(self) -> Message | None:
        found = fleet_handlers.pull_messages(
            PullMessagesRequest(node=self.node), self.link.state, self.link.state.object_store
        )
        if not found.messages_list:
            return None
        contents = {}
        for part in iterate_object_tree(found.message_object_trees[0]):
            request = PullObjectRequest(node=self.node, run_id=self.link.run_id, object_id=part.object_id)
            answer = fleet_handlers.pull_object(request, self.link.state)
            assert answer.object_available
            contents[part.object_id] = answer.object_content
        name = found.messages_list[0].metadata.message_id
        message: Any = inflate_object_from_contents(name, contents)
        message.metadata.__dict__["_message_id"] = name
        self.link.state.object_store.delete(name)
        return message

    def reply(self, to: Message, content: Any, parts: int | None = None) -> list[Callable[[], None]]:
        """Send an answer, or some parts of it; how to send the others."""
        message = Message(content, reply_to=to)
        return self.push(message, message, parts)

    def push(self, said: Message, message: Any, parts: int | None = None) -> list[Callable[[], None]]:
        """What is said of a message to the SuperLink, and the object that is handed over as it."""
        said.metadata.__dict__["_src_node_id"] = self.number
        said.metadata.__dict__["_message_id"] = message.object_id
        said = said if said.has_error() else remove_content_from_message(said)
        proto = message_to_proto(said)
        assert message_from_proto(proto).metadata.reply_to_message_id
        request = PushMessagesRequest(
            node=self.node, messages_list=[proto], message_object_trees=[get_object_tree(message)]
        )
        session = fleet_handlers.push_messages(request, self.link.state).session_id

        def sender(name: str, data: bytes) -> Callable[[], None]:
            request = PushObjectRequest(
                node=self.node, run_id=self.link.run_id, object_id=name, object_content=data, session_id=session
            )
            return lambda: fleet_handlers.push_object(request, self.link.state)

        senders = [sender(name, part.deflate()) for name, part in get_all_nested_objects(message).items()]
        parts = len(senders) if parts is None else parts
        for send in senders[:parts]:
            send()
        return senders[parts:]


@pytest.fixture
def link() -> SuperLink:
    return SuperLink()


@pytest.fixture
def post(link) -> Mailbox:
    from flwr.supercore.run import Run

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = link.task.task_id, link.run_id, 1
    grid = HttpGrid(token="t")
    grid._client = link
    grid.set_run(Run.create_empty(link.run_id))
    return Mailbox(grid, link)


def task_for(*devices: Device, data: bytes = b"task") -> list[Message]:
    content = payload.pack(data)
    return [Message(content, device.number, payload.CALL, ttl=100.0, group_id="1") for device in devices]


def test_a_task_goes_there_and_an_answer_comes_back_and_nothing_is_left(link, post):
    device = link.device(b"a")
    assert list(post.online()) == [device.number]
    (name,) = post.push(task_for(device))
    assert list(post.pull([name], MOST)) == []
    message = device.receive()
    assert payload.unpack(message) == b"task"
    device.reply(message, payload.pack(b"answer"))
    assert list(post.pull([name], MOST)) == [Reply(name, None, b"answer")]
    assert link.objects == 0


def test_an_answer_of_which_parts_are_missing_holds_nobody_up(link, post):
    """Flower would wait for them for minutes, until the time of all the others is up."""
    slow, quick = link.device(b"a"), link.device(b"b")
    names = post.push(task_for(slow, quick))
    rest = slow.reply(slow.receive(), payload.pack(b"at last"), parts=2)
    quick.reply(quick.receive(), payload.pack(b"at once"))
    assert list(post.pull(names, MOST)) == [Reply(names[1], None, b"at once")]
    assert list(post.pull(names[:1], MOST)) == []
    for send in rest:
        send()
    assert list(post.pull(names[:1], MOST)) == [Reply(names[0], None, b"at last")]
    assert link.objects == 0


def test_an_answer_whose_sender_is_lost_halfway_is_given_up_when_flower_does(link, post, monkeypatch):
    device = link.device(b"a")
    (name,) = post.push(task_for(device))
    device.reply(device.receive(), payload.pack(b"x"), parts=2)
    assert list(post.pull([name], MOST)) == []
    link.state.object_store.clear()
    assert list(post.pull([name], MOST)) == [Reply(name, ErrorCode.NODE_UNAVAILABLE, b"")]


def test_a_part_that_flower_has_already_is_a_fault_that_passes(link, post):
    """A request that is made again after its answer was lost; the next time the part is not asked for."""
    device = link.device(b"a")
    messages, push, times = task_for(device), link.PushObject, []

    def twice(request: Any) -> Any:
        times.append(push(request))
        return push(request) if len(times) == 1 else times[-1]

    link.PushObject = twice
    with pytest.raises(ObjectPushError):
        post.push(messages)
    (name,) = post.push(messages)
    device.reply(device.receive(), payload.pack(b"answer"))
    assert list(post.pull([name], MOST)) == [Reply(name, None, b"answer")]


def test_answers_that_were_fetched_outlive_a_connection_that_breaks_off(link, post):
    one, other = link.device(b"a"), link.device(b"b")
    names = post.push(task_for(one, other))
    for device in (one, other):
        device.reply(device.receive(), payload.pack(b"answer"))
    left = ["PullObject"]

    def broken(name: str) -> None:
        if name in left and len(replies) == 1:
            left.remove(name)
            raise httpx.ReadError("reset")

    replies: list[Reply] = []
    link.fault = broken
    with pytest.raises(httpx.ReadError):
        collect(post.pull(names, MOST), replies)
    missing = [name for name in names if name != replies[0].to]
    replies += post.pull(missing, MOST)
    assert {reply.to for reply in replies} == set(names)
    assert {reply.data for reply in replies} == {b"answer"}


def collect(replies, taken: list[Reply]) -> None:
    for reply in replies:
        taken.append(reply)


def test_what_is_taken_back_is_not_begun_with_and_not_kept(link, post):
    busy, away, sending = link.device(b"a"), link.device(b"b"), link.device(b"c")
    names = post.push(task_for(busy, away, sending))
    message = busy.receive()
    sending.reply(sending.receive(), payload.pack(LARGE), parts=3)
    assert list(post.pull(names, MOST)) == []
    post.take_back(names)
    assert away.receive() is None
    assert link.objects == 0
    busy.reply(message, payload.pack(b"late"))  # it is not waited for
    assert list(post.pull([], MOST)) == []


def test_an_error_is_passed_on_and_what_was_asked_is_not_kept(link, post):
    there, lost = link.device(b"a"), link.device(b"b")
    names = post.push(task_for(there, lost))
    there.reply(there.receive(), Error(ErrorCode.CLIENT_APP_CRASHED, "x"))
    link.state.deactivate_node(lost.number)
    assert {reply.to: reply.error for reply in post.pull(names, MOST)} == {
        names[0]: ErrorCode.CLIENT_APP_CRASHED, names[1]: ErrorCode.NODE_UNAVAILABLE,
    }  # fmt: skip
    assert link.objects == 0


def test_an_answer_that_is_no_message_counts_as_noise(link, post):
    device = link.device(b"a")
    (name,) = post.push(task_for(device))
    said = Message(RecordDict(), reply_to=device.receive())
    device.push(said, payload.pack(b"x"))  # an object of another kind
    assert list(post.pull([name], MOST)) == [Reply(name, None, b"")]


def test_an_answer_is_that_of_the_device_which_the_superlink_knows_to_have_sent_it(link, post):
    """Whatever is written inside."""
    alice, rogue = link.device(b"a"), link.device(b"b")
    names = post.push(task_for(alice, rogue))
    to_alice, to_rogue = alice.receive(), rogue.receive()
    forged = Message(payload.pack(b"forged"), reply_to=to_alice)
    rogue.push(Message(RecordDict(), reply_to=to_rogue), forged)
    assert list(post.pull(names, MOST)) == [Reply(names[1], None, b"forged")]


def test_a_message_that_was_sent_in_part_is_known_by_the_name_it_was_to_have(link, post):
    """By which it can be taken back."""
    device = link.device(b"a")
    (message,) = messages = task_for(device)

    def broken(name: str) -> None:
        if name == "PushObject":
            raise httpx.ReadError("reset")

    link.fault = broken
    with pytest.raises(httpx.ReadError):
        post.push(messages)
    post.take_back([message.metadata.message_id])
    assert device.receive() is None
    assert link.objects == 0


def parts_of(content: Any, to: Message) -> tuple[Message, dict[str, bytes]]:
    message: Any = Message(content, reply_to=to)
    return message, {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


def test_an_answer_of_more_bytes_than_are_allowed_is_not_read(link, post):
    device = link.device(b"a")
    (name,) = post.push(task_for(device))
    device.reply(device.receive(), payload.pack(b"x" * (MOST + 5 * payload.MAX_HEAD)))
    assert list(post.pull([name], MOST)) == [Reply(name, None, b"")]
    assert link.objects == 0


def test_an_array_that_names_a_part_again_and_again_is_not_put_together(link, post):
    """A megabyte that is named ten million times."""
    device = link.device(b"a")
    post.push(task_for(device))
    message, contents = parts_of(payload.pack(LARGE), device.receive())
    assert payload.unpack_parts(message.object_id, contents, len(LARGE)) == (None, LARGE)
    (array,) = (part for part, content in contents.items() if content.startswith(b"Array "))
    head, body = contents[array].split(b"\x00", 1)
    body = body.replace(b"[0]", b"[" + b",".join([b"0"] * 100) + b"]")
    contents[array] = head.rpartition(b" ")[0] + b" %d\x00" % len(body) + body
    with pytest.raises(ValueError, match="bytes"):
        payload.unpack_parts(message.object_id, contents, len(LARGE))
    contents[array] = head.rpartition(b" ")[0] + b" %d\x00" % payload.MAX_HEAD + b"[" * payload.MAX_HEAD
    with pytest.raises(ValueError, match="Array of"):
        payload.unpack_parts(message.object_id, contents, len(LARGE))


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, payload.SMALL + 1])
def test_parts_of_any_bytes_are_an_answer_or_are_refused(link, post, caplog, size):
    """Thousands of answers with one thing wrong in Flower's own layers: nothing is raised."""
    import numpy as np

    device, generator = link.device(b"a"), np.random.default_rng(5)
    post.push(task_for(device))
    message, honest = parts_of(payload.pack(b"x" * size), device.receive())
    for _ in range(2000):
        contents = dict(honest)
        part = str(generator.choice([*contents]))
        found = bytearray(contents[part])
        start, end = sorted(generator.integers(len(found) + 1, size=2).tolist())
        what = generator.integers(5)
        if what == 0:
            found[start - 1] ^= 1 << int(generator.integers(8))
        elif what == 1:
            del found[start:end]
        elif what == 2:
            found[start:start] = found[start:end] * int(generator.integers(1, 50))
        elif what == 3:
            found[start:start] = b"[" * 5000
        else:
            found[start:end] = contents[str(generator.choice([*contents]))]
        contents[part] = bytes(found)
        half = mailbox._Partial(message.object_id, [*contents], contents)
        read = post._complete("name", half, size)
        assert (read.to, type(read.data)) == ("name", bytes)
        assert len(read.data) <= size + payload.MAX_HEAD
