"""The server's place at a SuperLink: who else may come in, and the task that lets it send messages to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sottovoce.federation.flower import internals
from sottovoce.federation.flower.mailbox import Post
from sottovoce.federation.roster import Member

POLL = 0.3  # seconds between looks for a task
WAIT = 90.0  # seconds; a task whose token was lost is given again after 30


def register(socket: Path, members: Sequence[Member]) -> dict[int, str]:
    """Let devices in, and nobody else, and start the run that carries their messages; names by Flower's number."""
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
    from flwr.supercore.control import ControlHttpClient

    client = internals.at_socket(ControlHttpClient, socket, [])
    names = {}
    try:
        there = {node.public_key: node.node_id for node in client.ListNodes(ListNodesRequest()).nodes_info}
        for member in members:
            key = internals.key_bytes(member.public_key)
            number = there.get(key) or client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
            names[number] = member.name
        client.StartRun(StartRunRequest(fab=internals.app_bundle()))
    finally:
        client.close()
    return names


def wait_for_task(desk: internals.Desk) -> str | None:
    """The token of the task of what Flower calls the ServerApp; none if it does not come."""
    from flwr.supercore.constant import TaskType

    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        if (token := desk.acquire(TaskType.SERVER_APP)) is not None:
            return token
        time.sleep(POLL)
    return None


def open_post(client: Any, token: str) -> Post:
    """Become the ServerApp, by the client of its task."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid = HttpGrid(token=token)
    grid._client = client  # with our own retries, and the socket
    grid.set_run(run_from_proto(given.run))
    return Post(grid, client)
