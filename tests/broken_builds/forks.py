"""A process that has imported the libraries, and forks for each fault: importing them takes longer than most tests.

It reads a fault, a test and a file to write to from each line of its input, and answers with how pytest ended. Nothing
of the package is imported before the fork: a fault must be there before modules take names from each other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings

import pytest

LIBRARIES = "dp_accounting dp_accounting.pld equinox hypothesis jax jax.numpy optax randomgen scipy.signal scipy.stats"
PATIENCE = 280  # seconds; who dies of it has shown nothing


def run(fault: str, test: str, out: str) -> int:
    """The exit status of pytest, or minus the signal that ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(PATIENCE)
    output = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["SOTTOVOCE_FAULT"] = fault
    status = 70  # not one of pytest's
    try:
        # The alarm is ours, and that the libraries were imported before pytest could look at their asserts is as meant.
        quiet = ["--timeout", "0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = pytest.main(["-x", "-p", "no:xdist", *quiet, "-p", "plugin", test])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))


if __name__ == "__main__":
    for library in LIBRARIES.split():
        __import__(library)
    assert not any(name.partition(".")[0] == "sottovoce" for name in sys.modules)
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # of jax, which has no threads yet
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)
