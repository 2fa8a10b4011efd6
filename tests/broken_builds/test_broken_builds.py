"""A build with a fault must fail: each fault is put in, and the test named beside it must notice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FAULTS

HERE = Path(__file__).parent
TESTS = HERE.parent


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    paths = filter(None, [os.environ.get("PYTHONPATH", ""), str(HERE)])
    with subprocess.Popen(
        [sys.executable, str(HERE / "forks.py")],
        cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_caught(name, forks, tmp_path):
    out = tmp_path / "output"
    forks.stdin.write(json.dumps([name, str(TESTS / FAULTS[name].test), str(out)]) + "\n")
    forks.stdin.flush()
    status, output = forks.stdout.readline(), out.read_text(encoding="utf-8")
    # 1: a test failed. Anything else (2: broken off, 4: no such test, 5: nothing ran) shows nothing.
    assert status == "1\n", output[-3000:]
    assert re.search(r"\d+ failed", output)
    assert " error" not in output.splitlines()[-1], output[-2000:]


def test_the_table_is_as_long_as_promised():
    assert len(FAULTS) >= 12
    for fault in FAULTS.values():
        path, _, name = fault.test.partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, fault.test
