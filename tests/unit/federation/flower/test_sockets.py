"""Who on the same machine can speak to Flower's processes: their owner alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import httpx

from sottovoce.federation.flower import sockets
from sottovoce.federation.flower.sockets import check_private, private_folder
from sottovoce.federation.flower.subprocesses import Child
from sottovoce_evidence.errors import SottoError

NOBODY = 65534
# A server as Flower starts its own: it asks for a port of every address.
SERVER = """
import sys, uvicorn
from sottovoce.federation.flower.run_at_socket import listen_at

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the Control API"})

listen_at(sys.argv[2])
uvicorn.run(app, host="0.0.0.0", port=int(sys.argv[1]), ssl_certfile="none", lifespan="off", log_level="warning")
"""
SPEAK = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    print("reached")
except PermissionError:
    print("refused")
"""


@contextmanager
def serving(folder: Path):
    """A process that listens at a socket, and the port that it was told to listen on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with private_folder() as private:
        child = Child("server", [sys.executable, "-c", SERVER, str(port)], folder)
        child.start(private / "socket")
        try:
            child.wait_until_listening(private / "socket", seconds=60)
            yield private / "socket", port
        finally:
            child.stop()


def test_a_server_listens_at_its_socket_and_at_no_port(tmp_path):
    with serving(tmp_path) as (path, port):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://localhost/").text == "the Control API"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_does_not_reach_it(tmp_path):
    """The lock is the folder: the socket itself is open to all."""
    with serving(tmp_path) as (path, _):
        said = {}
        for user in (0, NOBODY):
            run = subprocess.run(
                [sys.executable, "-S", "-c", SPEAK, str(path), str(user)], capture_output=True, text=True, check=True
            )
            said[user] = run.stdout.strip()
        assert said == {0: "reached", NOBODY: "refused"}


def test_where_others_could_enter_or_the_name_is_too_long_it_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o750)
    with pytest.raises(SottoError, match="other users of the machine could see who takes part and stop the run"):
        check_private(tmp_path)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sockets, "MAX_NAME", 5)
    with pytest.raises(SottoError, match="too long a name for a socket"):
        check_private(tmp_path)
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(SottoError, match="has no unix sockets"):
        check_private(tmp_path)


def test_what_the_environment_says_to_flower_is_not_passed_on(tmp_path, monkeypatch):
    """It has switches that open its interfaces at further ports."""
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    child = Child("part", [sys.executable, "-S", "-c", "import os; print(sorted(os.environ))"], tmp_path)
    child.start()
    assert child._process is not None
    child._process.wait(60)
    child.stop()
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" not in child.output()
    assert "FLWR_HOME" in child.output()
