"""A pytest plugin that puts one fault into the package before any test runs."""

from __future__ import annotations

import os
from pathlib import Path

from faults import FAULTS

CHILDREN = Path(__file__).with_name("children")


def pytest_sessionstart(session):
    fault = FAULTS[os.environ["SOTTOVOCE_FAULT"]]
    fault.apply()
    if fault.test.startswith("tests/black_box/"):  # these start the command in processes of its own
        os.environ["PYTHONPATH"] = os.pathsep.join([str(CHILDREN), os.environ.get("PYTHONPATH", "")])
