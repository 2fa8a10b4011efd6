"""Bytes as the content of Flower's messages, and back. A message from a device may hold anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CALL = "train.sottovoce"  # Flower's type of the messages
MAX_PART = 5 * 2**20  # bytes; Flower sends larger arrays in parts of this size
MAX_HEAD = 2**16  # bytes of a message, or of a part of it, apart from the data
_RECORD, _ARRAY = "sottovoce", "bytes"


def pack(data: bytes) -> Any:
    """Bytes as the content of a message. Flower sends an array in parts, and equal parts once."""
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({_RECORD: ArrayRecord({_ARRAY: Array("uint8", (len(data),), "sottovoce", data)})})


def unpack(message: Any) -> bytes:
    """The bytes of a message; none if it holds something else."""
    try:
        return bytes(message.content[_RECORD][_ARRAY].data)
    except (KeyError, TypeError, AttributeError, ValueError):
        return b""


def unpack_parts(name: str, contents: Mapping[str, bytes], max_bytes: int) -> tuple[int | None, bytes]:
    """The error code and the bytes of a message that came in parts. Raises any error if they are wrong.

    An array may name one part any number of times: its size is bounded before it is put together.
    """
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    total = 0
    for content in contents.values():
        kind, parts, _ = get_object_head_values_from_object_content(content)
        if kind != "ArrayChunk" and len(content) > MAX_HEAD:
            raise ValueError(f"{kind} of {len(content)} bytes")
        if kind == "Array":
            named = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[parts[number]]) for number in named)
    if total > max_bytes + MAX_HEAD:
        raise ValueError(f"{total} bytes")
    message: Any = inflate_object_from_contents(name, dict(contents))
    return (message.error.code if message.has_error() else None), unpack(message)


def is_one_answer(request: bytes) -> bool:
    """Does a device announce exactly one answer, and each part of it once?

    A SuperLink follows repeated parts again and again: the work doubles at every level. And a message that is no
    answer would go to another device.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from google.protobuf.message import DecodeError

    try:
        announced = PushMessagesRequest.FromString(request)
    except DecodeError:
        return False
    if len(announced.messages_list) != 1 or len(announced.message_object_trees) != 1:
        return False
    parts = [part.object_id for part in iterate_object_tree(announced.message_object_trees[0])]
    return bool(announced.messages_list[0].metadata.reply_to_message_id) and len(parts) == len(set(parts))
