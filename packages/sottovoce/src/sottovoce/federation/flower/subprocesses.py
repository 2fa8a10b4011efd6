"""The processes that a server or a device starts, watches and ends."""

from __future__ import annotations

import errno
import os
import secrets as os_entropy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sottovoce.files import write_aside
from sottovoce_evidence.errors import LostProcess, SottoError

# By default Flower reports its use and asks for newer versions. Neither happens here.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
MAX_LOG = 10_000_000  # bytes; a device may be connected for years
PORT_WAIT = 10.0  # seconds in which the processes of a killed server release their port


class Child:
    """A process with a log of its own. It ends with this process, for any reason."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path):
        self.name, self._command, self._folder = name, [str(part) for part in command], folder
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen | None = None
        self._log_start = self._log_size()  # the size of the log when the process was last started

    def start(self, *more: str | Path) -> None:
        """Start the process, with more arguments at the end."""
        self.stop()
        self.keep_log_short()
        self._log_start = self._log_size()
        # Settings for Flower in the environment could open more of its interfaces.
        mine = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        environment = {**mine, **QUIET, "FLWR_HOME": str(self._folder / "flower"), "PYTHONUNBUFFERED": "1"}
        wrapper = [sys.executable, "-S", str(Path(__file__).with_name("die_with_parent.py"))]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*wrapper, *self._command, *map(str, more)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process alone
            )

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
            last = (self.output().strip() or "without output").split("\n")[-1].strip()
            raise LostProcess(f"{self.name} ended (status {self.ended}): {last}; its log is {self.log}")

    def wait_until_listening(self, address: Path | tuple[str, int], seconds: float = 120.0) -> None:
        """Wait until the process takes connections at a unix socket, or at a host and port of this machine."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check_running()
            with suppress(OSError):
                return _try_to_connect(address)
            time.sleep(0.2)
        raise LostProcess(f"{self.name} does not listen at {address} after {seconds:g} s; its log is {self.log}")

    def output(self, max_bytes: int = 10_000) -> str:
        """The end of what it wrote since its start."""
        with suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(self._log_start, self._log_size() - max_bytes))
            return log.read().decode(errors="replace")
        return ""

    def _log_size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def keep_log_short(self) -> None:
        """Empty a long log. One copy of its contents is kept, as `.old`."""
        if self._log_size() > MAX_LOG:
            with suppress(OSError):  # the disk may be full, because of the log
                shutil.copyfile(self.log, self.log.with_suffix(".old"))
            os.truncate(self.log, 0)  # the process appends, so it goes on from here
            self._log_start = 0


class FlowerChild(Child):
    """`flower-superlink` or `flower-supernode`. `start` takes the unix socket at which it listens."""

    def __init__(self, name: str, options: Mapping[str, str | Path], folder: Path, *flags: str):
        self.secret = os_entropy.token_bytes(32)  # it gives its tasks to a process that has this
        secret_file = folder / "desk.secret"
        write_aside(secret_file, self.secret, private=True)
        command = [sys.executable, "-m", "sottovoce.federation.flower.run_at_socket", f"flower-{name}", *flags]
        options = {**options, "--isolation": "process", "--superexec-auth-secret-file": secret_file}
        super().__init__(name, [*command, *(part for option in options.items() for part in option)], folder)


def _try_to_connect(address: Path | tuple[str, int]) -> None:
    if isinstance(address, Path):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(address))
    else:
        socket.create_connection(address, timeout=1).close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def check_not_taken(port: int, host: str) -> None:
    """Refuse a port at which another process listens."""
    family, deadline = socket.AF_INET6 if ":" in host else socket.AF_INET, time.monotonic() + PORT_WAIT
    while True:
        try:
            return socket.create_server((host, port), family=family).close()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return None  # the process that is to listen reports it better
        if time.monotonic() > deadline:
            raise SottoError(f"port {port} of {host} is taken by another process (another server?); stop it first")
        time.sleep(0.2)
