"""All that is known here of Flower's inside: bytes in its messages, tasks of its Runtime API.

With `--isolation process` SuperLink and SuperNode wait for somebody who takes tasks. Flower's own SuperExec starts a
process for each and runs the code that the server sent. Here the process that trains takes them itself: nothing is
started, nothing is compiled twice, and no code is run but what is installed.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("sottovoce.flower")
HEARTBEAT = 10.0  # seconds; Flower takes a task for lost after two of its own, of 30
TRIES = 4  # of a request whose connection breaks off
CALL = "train.sottovoce"  # Flower's type of the messages
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
    """Where tasks are taken: the Runtime API of a SuperLink or a SuperNode on this machine.

    `secret` keeps other users of the machine from taking them; `authority` is for TLS, which a SuperLink speaks.
    """

    def __init__(self, address: str, secret: bytes, authority: bytes | None = None):
        self._address, self._secret, self._authority = address, secret, authority

    def client(self, *interceptors: Any) -> Any:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        return RuntimeHttpClient.from_server_address(
            self._address, self._authority is None, self._authority,
            [RuntimeVersionHttpInterceptor(component_name="sottovoce"), *interceptors], retry_invoker=_retries(),
        )  # fmt: skip

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
