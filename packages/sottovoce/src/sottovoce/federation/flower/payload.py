"""Bytes as the content of Flower's messages, and back. A message from a device may hold anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from google.protobuf.message import DecodeError

CALL = "train.sottovoce"  # Flower's type of the messages
MAX_PART = 5 * 2**20  # bytes; Flower sends larger arrays in parts of this size
MAX_HEAD = 2**16  # bytes of a message, or of a part of it, apart from the data
SMALL = 3 * 2**14  # bytes that go as one value of a record: a message is then three objects to Flower, not five
_RECORD, _ARRAY = "sottovoce", "bytes"


def pack(data: bytes) -> RecordDict:
    """Bytes as the content of a message. Flower sends an array in parts, and equal parts once.

    Each object is a call or two of its own on the way, and most messages of a masked round are small.
    """
    if len(data) <= SMALL:
        return RecordDict({_RECORD: ConfigRecord({_ARRAY: data})})
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: Array("uint8", (len(data),), "sottovoce", data)})})


def unpack(message: Any) -> bytes:
    """The bytes of a message; none if it holds something else."""
    try:
        found = message.content[_RECORD][_ARRAY]
        return found if isinstance(found, bytes) else bytes(found.data)
    except (KeyError, TypeError, AttributeError, ValueError):
        return b""


def parts_of(tree: Any) -> list[str]:
    """The names of all parts of a message, from Flower's tree of them."""
    return [part.object_id for part in inflatable_object.iterate_object_tree(tree)]


def unpack_parts(name: str, contents: Mapping[str, bytes], max_bytes: int) -> tuple[int | None, bytes]:
    """The error code and the bytes of a message that came in parts. Raises any error if they are wrong.

    An array may name one part any number of times: its size is bounded before it is put together.
    """
    total = 0
    for content in contents.values():
        kind, parts, _ = inflatable_object.get_object_head_values_from_object_content(content)
        if kind != "ArrayChunk" and len(content) > MAX_HEAD:
            raise ValueError(f"{kind} of {len(content)} bytes")
        if kind == "Array":
            named = json.loads(inflatable_object.get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[parts[number]]) for number in named)
    if total > max_bytes + MAX_HEAD:
        raise ValueError(f"{total} bytes")
    message: Any = inflatable_utils.inflate_object_from_contents(name, dict(contents))
    return (message.error.code if message.has_error() else None), unpack(message)


def is_one_answer(request: bytes) -> bool:
    """Does a device announce exactly one answer, and each part of it once?

    A SuperLink follows repeated parts again and again: the work doubles at every level. And a message that is no
    answer would go to another device.
    """
    try:
        announced = PushMessagesRequest.FromString(request)
    except DecodeError:
        return False
    if len(announced.messages_list) != 1 or len(announced.message_object_trees) != 1:
        return False
    parts = parts_of(announced.message_object_trees[0])
    return bool(announced.messages_list[0].metadata.reply_to_message_id) and len(parts) == len(set(parts))
