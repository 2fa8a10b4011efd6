"""The tasks that a SuperLink or a SuperNode gives away, by its Runtime API at a unix socket.

With `--isolation process` both wait for a process that takes tasks. Flower's own SuperExec starts a process for each
task and runs the code that the server sent. Here the process that trains takes the tasks itself: no process is started,
nothing is compiled twice, and only installed code runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import SubStatus
from flwr.common.serde import context_to_proto
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.supercore import interceptors
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.runtime import RuntimeHttpClient

log = logging.getLogger("sottovoce.flower")
HEARTBEAT = 10.0  # seconds; Flower takes a task for lost after two of its own, of 30
TRIES = 4  # of a request whose connection breaks


class TaskQueue:
    """Takes tasks at a socket. `secret` is what the process that listens there asks for."""

    def __init__(self, socket: Path, secret: bytes):
        self._socket, self._secret = socket, secret

    def acquire(self, kind: str) -> str | None:
        """The token of the next task of a kind, if there is one."""
        answer = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return answer.token if answer.HasField("task") and answer.token else None

    @contextmanager
    def task(self, token: str) -> Iterator[Any]:
        """A client for one task. Heartbeats keep the task alive meanwhile."""
        client = self._connect(interceptors.RuntimeTokenHttpInterceptor(token))
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(client, over), daemon=True)
        beating.start()
        try:
            yield client
        finally:
            over.set()
            beating.join(1.0)  # it may wait for an answer that will not come
            client.close()

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()
            del self._client

    @cached_property
    def _client(self) -> Any:
        methods = {"/flwr.proto.Runtime/AcquireTask"}
        authentication = interceptors.SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=methods
        )
        return self._connect(authentication)

    def _connect(self, interceptor: Any) -> Any:
        """A client that asks again when a connection breaks.

        Flower's processes close a connection that was idle for five seconds, and httpx uses it until then. Flower's own
        retries end the process by a signal when they give up.
        """
        broken = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
        retries = RetryInvoker(lambda: constant(0.1), broken, max_tries=TRIES, max_time=None)
        return connect(RuntimeHttpClient, self._socket, interceptor, retries=retries)


def connect(kind: Any, socket: Path, *authentication: Any, retries: Any = None) -> Any:
    """One of Flower's HTTP clients, for a process that listens at a unix socket."""
    used = [interceptors.RuntimeVersionHttpInterceptor(component_name="sottovoce"), *authentication]
    client = kind("http://localhost", interceptors=used, verify=False, retry_invoker=retries)
    client._client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=client._client.timeout)
    return client


def finish(client: Any, context: Any) -> None:
    """Report that a task is done. Flower takes a task without a report for crashed, and blames the next one."""
    done = PushTaskOutputRequest(context=context_to_proto(context), sub_status=SubStatus.COMPLETED, details="")
    try:
        client.PushTaskOutput(done)
    except httpx.HTTPStatusError as error:
        log.debug("the task is over already: %s", error)


def _beat(client: Any, over: threading.Event) -> None:
    while not over.is_set():
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
            log.debug("a heartbeat failed: %s", error)
        over.wait(HEARTBEAT)
