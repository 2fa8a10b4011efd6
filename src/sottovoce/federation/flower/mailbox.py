"""Messages from the server to devices, and what they answer, by way of a SuperLink: nobody is waited for here."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sottovoce.federation.flower import internals

log = logging.getLogger("sottovoce.post")
MOST_HEADS = 4  # objects of an answer that are not a part of its bytes: a message, its content, a record, an array


class Reply(NamedTuple):
    to: str  # Flower's name of the message that is answered, as the SuperLink has it: a device may write another
    error: int | None  # Flower's code, where it answers in the name of a device
    data: bytes  # none where it cannot be read


@dataclass
class _Half:
    """A reply of which some parts have come."""

    name: str
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.contents.values()))


class Post:
    """Flower's grid, but for what comes back.

    Flower waits for every part of a reply, for three minutes after the last that came: meanwhile the time of the others
    runs out. And what a device wrote may be anything: Flower fails on what it cannot read.
    """

    def __init__(self, grid: Any, client: Any):
        self._grid, self._client = grid, client
        self._halves: dict[str, _Half] = {}  # by the message that they answer

    def online(self) -> Collection[int]:
        return self._grid.get_node_ids()

    def push(self, messages: Sequence[Any]) -> Sequence[str]:
        """Send messages; their names, or nothing for one that is not taken. The same again is not sent twice."""
        return self._grid.push_messages(messages) or [""] * len(messages)

    def pull(self, names: Collection[str], most: int) -> Iterator[Reply]:
        """What was answered to some messages, and came as a whole. Of more bytes than `most` nothing is read."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        if waiting := [name for name in names if name not in self._halves]:
            found = self._client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                parts = [part.object_id for part in iterate_object_tree(tree)]
                self._halves[message.metadata.reply_to_message_id] = _Half(message.metadata.message_id, parts)
        for name in [name for name in self._halves if name in names]:
            if (reply := self._complete(name, self._halves[name], most)) is not None:
                if reply.error is not None:
                    self._discard(name)
                del self._halves[name]  # last: the SuperLink does not tell of it again
                yield reply

    def _complete(self, name: str, half: _Half, most: int) -> Reply | None:
        from flwr.common.constant import ErrorCode
        from flwr.proto.message_pb2 import PullObjectRequest

        for part in half.parts:
            if part in half.contents:
                continue
            found = self._client.PullObject(
                PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=part)
            )
            if not found.object_found:  # the sender was lost halfway, and Flower gave it up
                return Reply(name, ErrorCode.NODE_UNAVAILABLE, b"")
            if not found.object_available:
                return None
            half.contents[part] = found.object_content
            if half.size > most + MOST_HEADS * internals.HEAD:
                break  # it is not read
        self._discard(half.name)
        return _read(name, half, most)

    def take_back(self, names: Collection[str]) -> None:
        """Let nobody begin with messages that are no longer waited for; and the SuperLink not keep them for ever."""
        import httpx

        late = [self._halves.pop(name).name for name in list(self._halves) if name in names]
        with suppress(httpx.HTTPError):
            for name in (*names, *late):
                self._discard(name)

    def _discard(self, name: str) -> None:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=name
            )
        )  # fmt: skip


def _read(name: str, half: _Half, most: int) -> Reply:
    try:
        return Reply(name, *internals.data_of(half.name, half.contents, most))
    except Exception:
        log.debug("an answer cannot be read", exc_info=True)
        return Reply(name, None, b"")
