"""A build with a fault must fail: each fault is put in, and the test named beside it must notice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS

HERE = Path(__file__).parent
TESTS = HERE.parent


def run(name: str | None, tests: list[str]) -> subprocess.CompletedProcess[str]:
    plugin = ["-p", "plugin"] if name else []
    paths = [os.environ.get("PYTHONPATH", ""), str(HERE)]
    environment = {**os.environ, "SOTTOVOCE_FAULT": name or "", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", *plugin, *(str(TESTS / test) for test in tests)]
    return subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_caught(name):
    ended = run(name, [FAULTS[name].test])
    # 1: a test failed. Anything else (2: broken off, 4: no such test, 5: nothing ran) shows nothing.
    assert ended.returncode == 1, ended.stdout[-2000:] + ended.stderr[-1000:]
    assert re.search(r"\d+ failed", ended.stdout)
    assert " error" not in ended.stdout.splitlines()[-1], ended.stdout[-2000:]


def test_the_table_is_as_long_as_promised():
    assert len(FAULTS) >= 12
    for fault in FAULTS.values():
        path, _, name = fault.test.partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, fault.test
