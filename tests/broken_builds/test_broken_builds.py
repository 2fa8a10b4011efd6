"""A build with a fault must fail: each fault is put in, and the test named beside it must notice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FAULTS
from selection import ALWAYS, rooms_of, selected, touched

from examples import THOROUGH
from forks import Forks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


# A fault must be there before modules of the package take names from one another, so none is imported before. The
# libraries are, and pytest could not look at their asserts. How long is too long is decided outside: a test that hangs
# does not fail.
TEST = """
import os, pytest, sys
assert not any(name.startswith("sottovoce") for name in sys.modules)
os.environ["SOTTOVOCE_FAULT"], test = sys.argv[1:]
quiet = ["--timeout", "0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
sys.exit(pytest.main(["-x", "-p", "no:xdist", *quiet, "-p", "plugin", test]))
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(HERE)]))
    # With a fault an assert fails: what pytest does then on a CI machine (see tests/conftest.py) must happen here too.
    with Forks(environment={**os.environ, **THOROUGH, "PYTHONPATH": paths, "CI": "true"}) as forks:
        yield forks


@pytest.mark.slow
@pytest.mark.parametrize("name", selected())
def test_the_fault_is_caught(name, forks):
    ended = forks.run(TEST, name, str(ROOT / FAULTS[name].test))
    # 1: a test failed. Anything else (2: broken off, 4: no such test, 5: nothing ran) shows nothing.
    assert ended.returncode == 1, ended.stdout[-3000:]
    assert re.search(r"\d+ failed", ended.stdout)
    assert " error" not in ended.stdout.splitlines()[-1], ended.stdout[-2000:]


def test_the_table_is_as_long_as_promised():
    assert len(FAULTS) >= 12
    for fault in FAULTS.values():
        path, _, name = fault.test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, fault.test


@pytest.mark.slow
def test_a_fault_is_tried_when_what_it_patches_or_who_catches_it_changes():
    assert set(ALWAYS) <= set(FAULTS)
    for name in FAULTS:
        assert rooms_of(name), f"{name} patches no room: it would be tried after no change"
    before = (HERE / "faults.py").read_text(encoding="utf-8")
    assert touched([], before) == set()
    assert "half_the_noise" in touched(["packages/sottovoce/src/sottovoce/privacy/noise.py"], before)
    assert "half_the_noise" in touched(["tests/statistical/test_noise.py"], before)
    assert "half_the_noise" not in touched(
        ["packages/evidence/src/sottovoce_evidence/ledger.py", "docs/index.md"], before
    )
    assert touched([], before.replace("/ 2, real(*args)[1])", "/ 3, real(*args)[1])")) == {
        "half_the_noise",
        "half_the_noise_said_too",
        "half_the_noise_under_audit",
    }
    assert touched([], "") == set(FAULTS)
