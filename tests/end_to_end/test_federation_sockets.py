"""A real SuperLink, its proxy and a SuperNode: what other users of the machine reach of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from real_processes import children

from sottovoce.commands import federate
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation.flower.sockets import private_folder
from sottovoce.federation.flower.subprocesses import free_port
from sottovoce.federation.flower.supernode_client import SuperNodeClient

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),
]  # fmt: skip

NOBODY = 65534
# As another user, once all is loaded: whom the SuperLink knows, and an end to what it runs.
SPEAK = """
import os, sys
import httpx
from pathlib import Path
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient
from sottovoce.federation.flower.task_queue import connect
client = connect(ControlHttpClient, Path(sys.argv[1]))
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    print("devices", len(client.ListNodes(ListNodesRequest()).nodes_info))
    for run in client.ListRuns(ListRunsRequest()).run_dict:
        print("stopped", client.StopRun(StopRunRequest(run_id=run)).success)
except httpx.ConnectError as error:
    print(error)
"""


def family(process: int) -> list[int]:
    return [process, *(one for child in children(process) for one in family(child))]


def listening(processes: list[int]) -> set[int]:
    """The TCP ports at which some processes listen."""
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            try:
                sockets.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except OSError:  # it was closed meanwhile
                continue
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            _, local, _, state = line.split()[:4]
            if state == "0A" and line.split()[9] in sockets:
                ports.add(int(local.rpartition(":")[2], 16))
    return ports


@contextmanager
def a_device(bundle: Path, server: str) -> Iterator[None]:
    """The SuperNode of a device, which has nothing to answer."""
    host = SuperNodeClient(bundle, server, lambda message: b"")
    with private_folder() as host._sockets:
        try:
            host._connect()
            host.supernode.wait_until_listening(host._sockets / "1")
            yield
        finally:
            host.supernode.stop()


def test_the_declared_port_is_all_that_listens_and_the_control_api_is_for_its_owner_alone(tmp_path):
    from sottovoce.federation.flower.superlink_server import SuperLinkServer
    from sottovoce.federation.transport import Serving

    settings = federate.FederationSettings(Vocabulary.from_words(["red", "green"]), 16, "127.0.0.1", free_port())
    roster = federate.create_federation(tmp_path / "federation", [("phone", 1)], settings)
    (tmp_path / "link").mkdir(mode=0o700)
    server = SuperLinkServer(roster, tmp_path / "link", Serving())
    with server as link, a_device(roster.bundle("phone"), roster.server):
        assert listening(family(os.getpid())) == {roster.port}
        if os.getuid() == 0:
            said = {}
            for user in (NOBODY, 0):
                run = subprocess.run(
                    [sys.executable, "-c", SPEAK, str(link._socket), str(user)], capture_output=True, text=True,
                    check=True,
                )  # fmt: skip
                said[user] = run.stdout.splitlines()
            assert said[NOBODY] == ["[Errno 13] Permission denied"]
            assert said[0] == ["devices 1", "stopped True"]  # what it could do, were it let in
