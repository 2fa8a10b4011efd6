"""Processes that find their libraries imported: forks of one that imported them. Importing takes two seconds.

What they do is done by a process of its own, as with `python -c`: it may patch, be killed, or take memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping

PATIENCE = 280  # seconds
LIBRARIES = "dp_accounting.pld equinox hypothesis jax.numpy optax randomgen scipy.signal scipy.stats"


class Forks:
    """Starts one process that imports `libraries`, modules by their names, and forks for every `run`."""

    def __init__(self, libraries: str = LIBRARIES, environment: Mapping[str, str] | None = None):
        self._process = subprocess.Popen(
            [sys.executable, __file__, *libraries.split()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The program's output and errors come together. Its status is 70 if it ends with an exception."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile() as file:
            print(json.dumps([program, arguments, file.name]), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(["-c", *arguments], status, file.read().decode())

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.__exit__(None, None, None)


def _run(program: str, arguments: list[str], out: str) -> int:
    """The exit status, or minus the signal that ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
        signal.alarm(PATIENCE)
        output = os.open(out, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<fork>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as exit:
        status = int(exit.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()  # and no more: the rest of this file is the parent's
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    for library in sys.argv[1:]:
        __import__(library)
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # of jax, which has no threads before its first array
    for line in sys.stdin:
        print(_run(*json.loads(line)), flush=True)
