"""Flower's own commands, at a socket."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from sottovoce.federation.flower import run_at_socket
from sottovoce.federation.flower.bell import ring, supernode_bell
from sottovoce.federation.flower.sockets import private_folder


@pytest.mark.parametrize("command", ["flower-superlink", "flower-supernode"])
def test_flower_has_the_commands(command):
    (script,) = run_at_socket.entry_points(group="console_scripts", name=command)
    assert callable(script.load())


def test_a_supernode_whose_connection_is_given_up_ends(monkeypatch):
    """The process of Flower's goes on, and nobody would start it again."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr("sys.argv", ["run_at_socket", "flower-supernode", "--option", "socket"])
    monkeypatch.setattr(run_at_socket, "listen_at", lambda path: ended.append(path))
    monkeypatch.setattr(run_at_socket, "look_soon", lambda socket: None)
    script = SimpleNamespace(load=lambda: lambda: ended.append(sys.argv[1:]))
    monkeypatch.setattr(run_at_socket, "entry_points", lambda group, name: [script] if "supernode" in name else [])
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    run_at_socket.main()
    assert ended == ["socket", ["--option"], 1]


def test_a_supernode_looks_soon_after_a_message_and_less_often_while_none_comes(monkeypatch):
    """And rings the bell of its device as long as it waits for an answer."""
    waited, rung = [], []
    monkeypatch.setattr(run_at_socket.time, "sleep", waited.append)
    monkeypatch.setattr(run_at_socket, "ring", rung.append)
    with private_folder() as folder:
        waits = run_at_socket.Waits(folder / "1")
        monkeypatch.setattr(waits._bell, "wait", lambda seconds: bool(waited.append(seconds)))
        for seconds in (3, 3, 3, 3, 3, 0.5, 0.5, 3, 3):
            waits.sleep(seconds)
        waits.close()
    assert waited == [0.5, 1, 2, 3, 3, 0.05, 0.05, 0.5, 1]
    assert rung == [folder / "device.bell"] * 2
    assert waits.monotonic() > 0


def test_a_supernode_looks_at_once_when_its_bell_rings():
    with private_folder() as folder:
        waits = run_at_socket.Waits(folder / "1")
        waits._next = 3.0
        ring(supernode_bell(folder / "1"))
        began = time.monotonic()
        waits.sleep(3)
        assert time.monotonic() - began < 2
        assert waits._next == run_at_socket.SOON
        waits.close()


def test_flower_waits_by_the_clock_that_is_replaced(monkeypatch):
    from flwr.supernode import start_client_internal

    monkeypatch.setattr(start_client_internal, "time", start_client_internal.time)
    with private_folder() as folder:
        run_at_socket.look_soon(folder / "1")
        start_client_internal.time.close()
    assert isinstance(start_client_internal.time, run_at_socket.Waits)
    source = inspect.getsource(start_client_internal)
    assert "import time\n" in source
    assert source.count("time.sleep(3)") == 1


def test_a_supernode_whose_heartbeat_fails_ends(monkeypatch, capsys):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    sent = []
    monkeypatch.setattr("os.kill", lambda process, signal: sent.append((process, signal)))
    run_at_socket.end_with_any_thread()
    beating = threading.Thread(target=lambda: 1 / 0)
    beating.start()
    beating.join()
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert "ZeroDivisionError" in capsys.readouterr().err
