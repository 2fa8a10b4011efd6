"""What `tests/conftest.py` says too, where these tests are run by themselves: nothing here needs the library."""

from __future__ import annotations

import os

from hypothesis import settings
from second_opinions import losses_once  # noqa: F401

# Where pytest takes itself to be on a CI machine, it writes out the whole difference of what an assert compares.
os.environ.pop("CI", None)
os.environ.pop("BUILD_NUMBER", None)

# The same examples every time: a test fails because of a change, not because of the day.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")
