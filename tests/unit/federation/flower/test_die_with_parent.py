"""A process ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STARTER = """
import sys, time
from pathlib import Path
from sottovoce.federation.flower.subprocesses import Child
Child("part", [sys.executable, "-S", "-c", sys.argv[2]], Path(sys.argv[1])).start()
time.sleep(600)
"""


SAY_WHO = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_a_child_ends_with_the_process_that_started_it_however_that_ends(tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path), SAY_WHO])
    log = tmp_path / "part.log"
    try:
        until(lambda: log.exists() and log.read_text().endswith("\n"))
        number = int(log.read_text())
        os.kill(number, 0)  # it is there
    finally:
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    until(lambda: not runs(number))


def runs(number: int) -> bool:
    status = Path(f"/proc/{number}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(happened) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
