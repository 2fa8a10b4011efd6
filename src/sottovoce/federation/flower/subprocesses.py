"""The processes of Flower that a server or a device needs, started, watched and ended by it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from sottovoce.errors import LostProcess, SottoError

# Flower reports its use and asks for newer versions unless told otherwise. Neither happens.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
LONGEST_LOG = 10_000_000  # bytes; a device may be connected for years
FREE_IN = 10.0  # seconds in which the processes of a server that was killed give their port back


class Child:
    """A process with a log of its own; it ends with this process, whatever ends that."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path):
        self.name, self._command, self._folder = name, [str(part) for part in command], folder
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen | None = None
        self._begun = self._written()  # where in the log this start of it begins

    def start(self, *more: str | Path) -> None:
        """Start it, with more arguments than it was made with."""
        self.stop()
        self.keep_log_short()
        self._begun = self._written()
        # What others set for Flower could open further doors of it.
        mine = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        environment = {**mine, **QUIET, "FLWR_HOME": str(self._folder / "flower"), "PYTHONUNBUFFERED": "1"}
        tether = Path(__file__).with_name("tether.py")
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", str(tether), *self._command, *map(str, more)], stdin=subprocess.PIPE,
                stdout=log, stderr=log, env=environment, start_new_session=True,  # Ctrl-C is for this process alone
            )  # fmt: skip

    @property
    def ended(self) -> int | None:
        """The status it ended with; None while it runs."""
        return self._process.poll() if self._process else -1

    def stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check_running(self) -> None:
        if self.ended is not None:
            raise LostProcess(f"{self.name} ended (status {self.ended}): {self._last_words()}; its log is {self.log}")

    def wait_until_listening(self, port: int, host: str = "127.0.0.1", seconds: float = 120.0) -> None:
        """Until the process takes connections at an address of this machine."""
        connect = partial(socket.create_connection, (host, port), timeout=1)
        self._wait_until(connect, f"on port {port} of {host}", seconds)

    def wait_until_at(self, path: Path, seconds: float = 120.0) -> None:
        """Until the process takes connections at a socket."""
        self._wait_until(partial(_connect_at, path), f"at {path}", seconds)

    def _wait_until(self, connect: Callable[[], socket.socket], where: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check_running()
            with suppress(OSError), connect():
                return
            time.sleep(0.2)
        raise LostProcess(f"{self.name} does not listen {where} after {seconds:g} s; its log is {self.log}")

    def said(self, most: int = 10_000) -> str:
        """The end of what it wrote since it was started."""
        with suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(self._begun, self._written() - most))
            return log.read().decode(errors="replace")
        return ""

    def _written(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def keep_log_short(self) -> None:
        """Begin the log anew when it is long. What was in it is kept once, beside it."""
        if self._written() > LONGEST_LOG:
            with suppress(OSError):  # the disk may be full, and what fills it is the log
                shutil.copyfile(self.log, self.log.with_suffix(".old"))
            os.truncate(self.log, 0)  # who writes to it appends, so goes on from there
            self._begun = 0

    def _last_words(self) -> str:
        lines = self.said().split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _connect_at(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def check_not_taken(port: int, host: str) -> None:
    """Refuse a port at which somebody else listens."""
    family, deadline = socket.AF_INET6 if ":" in host else socket.AF_INET, time.monotonic() + FREE_IN
    while True:
        try:
            return socket.create_server((host, port), family=family).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return None  # whoever is to listen says it better
        if time.monotonic() > deadline:
            raise SottoError(
                f"port {port} of {host} is taken by another process (another server?), and devices look for this one "
                f"there; stop it first"
            )
        time.sleep(0.2)
