"""A build with a fault must fail: each fault is put in, and the test named beside it must notice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import FAULTS
from selection import ALWAYS, rooms_of, selected

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


def test_every_fault_names_a_test_that_exists_and_patches_a_room():
    assert set(ALWAYS) <= set(FAULTS)
    for name, fault in FAULTS.items():
        path, _, test = fault.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), fault.test
        assert rooms_of(name), f"{name} patches no room: it would be tried after no change"
