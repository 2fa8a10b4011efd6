"""Processes that a server or a device starts."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from sottovoce.federation.flower import subprocesses
from sottovoce.federation.flower.subprocesses import Child, free_port
from sottovoce_evidence.errors import LostProcess


def child(folder, code: str, *arguments: str) -> Child:
    made = Child("part", [sys.executable, "-S", "-c", code, *arguments], folder)
    made.start()
    return made


LISTEN = "import socket, sys, time; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); time.sleep(600)"


def test_a_child_is_waited_for_where_it_listens(tmp_path):
    """Also if that is not the loopback: a server that others reach listens on the address they know."""
    port = free_port()
    part = child(tmp_path, LISTEN, "127.0.0.2", str(port))
    try:
        part.wait_until_listening(("127.0.0.2", port), seconds=60)
        with pytest.raises(LostProcess, match="does not listen at"):
            part.wait_until_listening(("127.0.0.3", port), seconds=0.3)
        assert part.ended is None
    finally:
        part.stop()
    assert part.ended is not None


def test_a_child_that_ends_says_why(tmp_path):
    part = child(tmp_path, "print('address already in use'); raise SystemExit(3)")
    with pytest.raises(LostProcess, match=r"status 3\): address already in use; its log is .*part.log"):
        part.wait_until_listening(("127.0.0.1", free_port()), seconds=60)
    part.stop()


def test_flower_reports_nothing_and_asks_for_no_updates(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    names = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")
    part = child(tmp_path, f"import os; print([os.environ[name] for name in {names}])")
    with pytest.raises(LostProcess, match=r"\['0', '1'\]"):
        part.wait_until_listening(("127.0.0.1", free_port()), seconds=60)
    part.stop()


def test_a_port_that_is_given_back_in_time_is_not_refused(monkeypatch):
    """The processes of a server that was killed end a moment after it."""
    other = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(subprocesses.time, "sleep", lambda seconds: other.close())
    subprocesses.check_not_taken(other.getsockname()[1], "127.0.0.1")
    assert other.fileno() == -1


def test_a_log_does_not_grow_for_ever(tmp_path, monkeypatch):
    """Not even that of a process that goes on: it appends to what is left."""
    monkeypatch.setattr(subprocesses, "MAX_LOG", 100)
    part = child(tmp_path, "for _ in range(3): print('x' * 60)")
    until(lambda: part.ended is not None)
    assert part.output().count("x" * 60) == 3
    part.keep_log_short()
    assert (part.log.read_text(), part.output()) == ("", "")
    assert part.log.with_suffix(".old").read_text().count("\n") == 3
    part.start()
    until(lambda: part.ended is not None)
    part.start("more")
    until(lambda: part.ended is not None)
    assert part.output().count("\n") == 3  # of the last start alone
    assert Child("part", [], tmp_path).output() == ""  # nor of an earlier process
    assert part.log.with_suffix(".old").read_text().count("\n") == 3
    part.stop()


def test_a_log_that_cannot_be_kept_is_begun_anew_all_the_same(tmp_path, monkeypatch):
    """A device whose disk its log has filled would end."""
    monkeypatch.setattr(subprocesses, "MAX_LOG", 10)
    part = Child("part", [], tmp_path)
    part.log.write_text("x" * 60)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(subprocesses.shutil, "copyfile", full)
    part.keep_log_short()
    assert part.log.read_text() == ""


def until(happened) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
