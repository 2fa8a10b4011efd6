"""Processes that a server or a device starts."""

from __future__ import annotations

import sys

import pytest

from sottovoce.errors import LostProcess
from sottovoce.federation.children import Child, free_port


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
        part.wait_until_listening(port, "127.0.0.2", seconds=60)
        with pytest.raises(LostProcess, match="does not listen on port"):
            part.wait_until_listening(port, "127.0.0.3", seconds=0.3)
        assert part.ended is None
    finally:
        part.stop()
    assert part.ended is not None


def test_a_child_that_ends_says_why(tmp_path):
    part = child(tmp_path, "print('address already in use'); raise SystemExit(3)")
    with pytest.raises(LostProcess, match=r"status 3\): address already in use; its log is .*part.log"):
        part.wait_until_listening(free_port(), seconds=60)
    part.stop()
