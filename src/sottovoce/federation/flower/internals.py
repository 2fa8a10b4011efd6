"""All that is known here of Flower's inside: bytes in its messages, tasks of its Runtime API.

With `--isolation process` SuperLink and SuperNode wait for somebody who takes tasks. Flower's own SuperExec starts a
process for each and runs the code that the server sent. Here the process that trains takes them itself: nothing is
started, nothing is compiled twice, and no code is run but what is installed.
"""

from __future__ import annotations

import binascii
import json
import logging
import threading
from base64 import b64decode
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

log = logging.getLogger("sottovoce.flower")
HEARTBEAT = 10.0  # seconds; Flower takes a task for lost after two of its own, of 30
TRIES = 4  # of a request whose connection breaks off
CALL = "train.sottovoce"  # Flower's type of the messages
PART = 5 * 2**20  # bytes; what is larger Flower sends in parts of this size
HEAD = 2**16  # bytes, the most that is said of a message, or of what it holds, beside the parts themselves
_RECORD, _ARRAY = "sottovoce", "bytes"


def content_of(data: bytes) -> Any:
    """Bytes as the content of a message. As an array they are sent in pieces, and the same ones are sent once."""
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({_RECORD: ArrayRecord({_ARRAY: Array("uint8", (len(data),), "sottovoce", data)})})


def bytes_of(message: Any) -> bytes:
    """The bytes of a message; none where it holds something else."""
    try:
        return bytes(message.content[_RECORD][_ARRAY].data)
    except (KeyError, TypeError, AttributeError, ValueError):
        return b""


def data_of(name: str, contents: Mapping[str, bytes], most: int) -> tuple[int | None, bytes]:
    """The error and the bytes of a message that came in parts. Whatever is wrong with them is raised.

    An array may name one part any number of times: what that comes to is bounded before it is put together.
    """
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    total = 0
    for content in contents.values():
        kind, parts, _ = get_object_head_values_from_object_content(content)
        if kind != "ArrayChunk" and len(content) > HEAD:
            raise ValueError(f"{kind} of {len(content)} bytes")
        if kind == "Array":
            named = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[parts[number]]) for number in named)
    if total > most + HEAD:
        raise ValueError(f"{total} bytes")
    message: Any = inflate_object_from_contents(name, dict(contents))
    return (message.error.code if message.has_error() else None), bytes_of(message)


def is_one_answer(request: bytes) -> bool:
    """Does a device say of one answer which parts it has, each once?

    Parts that are named again and again would be looked for in twice as many places at every step. And what is no
    answer would be a message to another device.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from google.protobuf.message import DecodeError

    try:
        said = PushMessagesRequest.FromString(request)
    except DecodeError:
        return False
    if len(said.messages_list) != 1 or len(said.message_object_trees) != 1:
        return False
    parts = [part.object_id for part in iterate_object_tree(said.message_object_trees[0])]
    return bool(said.messages_list[0].metadata.reply_to_message_id) and len(parts) == len(set(parts))


def key_bytes(public_key: str) -> bytes:
    """A key of the roster, as Flower writes it."""
    from cryptography.hazmat.primitives import serialization
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    loaded: Any = serialization.load_ssh_public_key(public_key.encode())
    return public_key_to_bytes(loaded)


def signing_key(headers: Mapping[str, str]) -> bytes | None:
    """The key that a request of a SuperNode is signed with. The SuperLink looks at the time that was signed."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        when = headers[TIMESTAMP_HEADER].encode("ascii")
        return key if verify_signature(bytes_to_public_key(key), when, signature) else None
    except (KeyError, ValueError, TypeError, AttributeError, UnicodeError, binascii.Error):
        return None


def at_socket(kind: Any, socket: Path, interceptors: list[Any], retries: Any = None) -> Any:
    """A client of Flower's of some kind, for what listens at a socket of this machine."""
    import httpx
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    speaks = [RuntimeVersionHttpInterceptor(component_name="sottovoce"), *interceptors]
    client = kind("http://localhost", interceptors=speaks, verify=False, retry_invoker=retries)
    client._client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=client._client.timeout)
    return client


def why(code: int) -> str:
    """What Flower says in the name of a device that owes an answer."""
    from flwr.common.constant import ErrorCode

    words = {
        ErrorCode.MESSAGE_UNAVAILABLE: "time is up",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "time is up",
        ErrorCode.NODE_UNAVAILABLE: "the connection is lost",
    }
    return words.get(code, f"Flower's code {code}")


class Desk:
    """Where tasks are taken: the Runtime API of a SuperLink or a SuperNode, at a socket of this machine.

    `secret` is what it asks for before it gives one away.
    """

    def __init__(self, socket: Path, secret: bytes):
        self._socket, self._secret = socket, secret

    def client(self, *interceptors: Any) -> Any:
        from flwr.supercore.runtime import RuntimeHttpClient

        return at_socket(RuntimeHttpClient, self._socket, list(interceptors), _retries())

    def acquire(self, kind: str) -> str | None:
        """The token of the next task of a kind, if there is one."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        found = self._asking.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return found.token if found.HasField("task") and found.token else None

    def close(self) -> None:
        if "_asking" in self.__dict__:
            self._asking.close()
            del self._asking

    @cached_property
    def _asking(self) -> Any:
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        return self.client(
            SuperExecAuthHttpInterceptor(
                master_secret=self._secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
            )
        )

    @contextmanager
    def task(self, token: str) -> Iterator[Any]:
        """A client for one task, which is kept alive meanwhile."""
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

        client = self.client(RuntimeTokenHttpInterceptor(token))
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(client, over), daemon=True)
        beating.start()
        try:
            yield client
        finally:
            over.set()
            beating.join(1.0)  # it may wait for an answer that will not come
            client.close()


def finish(client: Any, context: Any) -> None:
    """Say that a task is done. One that is not finished is taken for crashed, and its end for that of the next."""
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.common.serde import context_to_proto
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    done = PushTaskOutputRequest(context=context_to_proto(context), sub_status=SubStatus.COMPLETED, details="")
    try:
        client.PushTaskOutput(done)
    except httpx.HTTPStatusError as error:
        log.debug("the task is over already: %s", error)


def _retries() -> Any:
    """Ask again when a connection breaks off.

    Flower's processes close a connection that was idle for five seconds, and httpx uses it until then: now and then a
    request meets the end of its connection. Flower's own retries end the process by a signal when they give up.
    """
    import httpx
    from flwr.supercore.retry import RetryInvoker, constant

    broken_off = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
    return RetryInvoker(lambda: constant(0.1), broken_off, max_tries=TRIES, max_time=None)


def _beat(client: Any, over: threading.Event) -> None:
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    while not over.is_set():
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
            log.debug("a heartbeat was not heard: %s", error)
        over.wait(HEARTBEAT)


# What Flower asks of an app. Nobody runs it: devices and server take their tasks themselves.
_APP = {
    "pyproject.toml": b"""[project]
name = "sottovoce"
version = "1.0.0"
description = "Carries tasks and answers between a sottovoce server and its devices"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sottovoce"

[tool.flwr.app.components]
serverapp = "sottovoce_app:server"
clientapp = "sottovoce_app:client"

[tool.flwr.app.config]
""",
    "sottovoce_app/__init__.py": b'''"""Not to be run: a device takes its tasks itself, with its own code."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()
''',
}


def app_bundle() -> Any:
    """The app as it is handed to a SuperLink."""
    import hashlib

    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.supercore.fab import Fab

    contents, _ = build_fab_from_files(_APP)
    return fab_to_proto(Fab(hashlib.sha256(contents).hexdigest(), contents, {}))
