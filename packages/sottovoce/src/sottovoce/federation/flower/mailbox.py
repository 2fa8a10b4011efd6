"""Messages from the server to devices, and their answers, through a SuperLink. Nothing here waits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest

from sottovoce.federation.flower.payload import MAX_HEAD, parts_of, unpack_parts

log = logging.getLogger("sottovoce.flower")
MAX_HEADS = 4  # objects of an answer that hold no data: a message, its content, a record, an array
_ERRORS: dict[int | None, str] = {
    ErrorCode.MESSAGE_UNAVAILABLE: "time is up",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "time is up",
    ErrorCode.NODE_UNAVAILABLE: "the connection is lost",
}


class Reply(NamedTuple):
    to: str  # Flower's name of the answered message, from the SuperLink: a device may write another one
    error: int | None  # Flower's code, if Flower answers for a device
    data: bytes  # none if it cannot be read

    @property
    def error_text(self) -> str:
        return _ERRORS.get(self.error, f"Flower's code {self.error}")


@dataclass
class _Partial:
    """A reply that has come in part."""

    name: str
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)


class Mailbox:
    """Flower's grid, with another way to fetch replies.

    Flower waits for every part of a reply, up to three minutes after the last one, while the time of the others runs
    out. And a device may have written anything: Flower fails on a reply that it cannot read.
    """

    def __init__(self, grid: Any, client: Any):
        self._grid, self._client = grid, client
        self._partial: dict[str, _Partial] = {}  # by the message that they answer

    def online(self) -> Collection[int]:
        return self._grid.get_node_ids()

    def push(self, messages: Sequence[Any]) -> Sequence[str]:
        """Send messages. Gives their names; an empty one if Flower refuses a message. Resending does not duplicate."""
        return self._grid.push_messages(messages) or [""] * len(messages)

    def pull(self, names: Collection[str], max_bytes: int) -> Iterator[Reply]:
        """The complete replies to some messages. A reply of more than `max_bytes` is not read."""
        if waiting := [name for name in names if name not in self._partial]:
            found = self._client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                partial = _Partial(message.metadata.message_id, parts_of(tree))
                self._partial[message.metadata.reply_to_message_id] = partial
        for name in [name for name in self._partial if name in names]:
            if (reply := self._complete(name, self._partial[name], max_bytes)) is not None:
                if reply.error is not None:
                    self._discard(name)
                del self._partial[name]  # last: the SuperLink announces a reply once
                yield reply

    def _complete(self, name: str, partial: _Partial, max_bytes: int) -> Reply | None:
        for part in [part for part in partial.parts if part not in partial.contents]:
            request = PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=part)
            found = self._client.PullObject(request)
            if not found.object_found:  # the sender was lost, and Flower dropped its reply
                return Reply(name, ErrorCode.NODE_UNAVAILABLE, b"")
            if not found.object_available:
                return None
            partial.contents[part] = found.object_content
            if sum(map(len, partial.contents.values())) > max_bytes + MAX_HEADS * MAX_HEAD:
                break  # it will not be read
        self._discard(partial.name)
        try:
            return Reply(name, *unpack_parts(partial.name, partial.contents, max_bytes))
        except Exception:
            log.debug("an answer cannot be read", exc_info=True)
            return Reply(name, None, b"")

    def take_back(self, names: Collection[str]) -> None:
        """Withdraw messages: no device begins with them, and the SuperLink does not keep them."""
        late = [self._partial.pop(name).name for name in list(self._partial) if name in names]
        with suppress(httpx.HTTPError):
            for name in (*names, *late):
                self._discard(name)

    def _discard(self, name: str) -> None:
        node, run = self._grid.node, self._grid.run.run_id
        request = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
        self._client.ConfirmMessageReceived(request)
