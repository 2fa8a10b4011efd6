"""The server as Flower's ServerApp: it registers the devices, starts a run, and takes the run's task."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_files
from flwr.common.serde import run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from sottovoce.federation.flower.mailbox import Mailbox
from sottovoce.federation.flower.task_queue import TaskQueue, connect
from sottovoce.federation.keys import public_key_pem
from sottovoce.federation.roster import Member

POLL = 0.3  # seconds between looks for a task
WAIT = 90.0  # seconds; a task whose token was lost is given again after 30

# Flower asks for an app. It is never run: devices and server take their tasks themselves.
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


def register(socket: Path, members: Sequence[Member]) -> dict[int, str]:
    """Register the devices, and start the run that carries their messages. Gives names by Flower's node number."""
    names = {}
    with closing(connect(ControlHttpClient, socket)) as client:
        known = {node.public_key: node.node_id for node in client.ListNodes(ListNodesRequest()).nodes_info}
        for member in members:
            key = public_key_pem(member.public_key)
            number = known.get(key) or client.RegisterNode(RegisterNodeRequest(public_key=key)).node_id
            names[number] = member.name
        app, _ = build_fab_from_files(_APP)
        client.StartRun(StartRunRequest(fab=Fab(hash_str=hashlib.sha256(app).hexdigest(), content=app)))
    return names


def wait_for_task(queue: TaskQueue) -> str | None:
    """The token of the ServerApp's task; none if it does not come."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        if (token := queue.acquire(TaskType.SERVER_APP)) is not None:
            return token
        time.sleep(POLL)
    return None


def open_mailbox(client: Any, token: str) -> Mailbox:
    """Become the ServerApp, by the client of its task."""
    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    grid = HttpGrid(token=token)
    grid._client = client  # with our own retries, and the socket
    grid.set_run(run_from_proto(given.run))
    return Mailbox(grid, client)
