"""A pytest plugin that puts one fault into the package before any test runs."""

from __future__ import annotations

import os

from faults import FAULTS


def pytest_sessionstart(session):
    FAULTS[os.environ["SOTTOVOCE_FAULT"]].apply()
