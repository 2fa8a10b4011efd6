"""Puts the fault into the processes that a test starts. Python imports this by itself where its folder is a path."""

import os

from faults import FAULTS

FAULTS[os.environ["SOTTOVOCE_FAULT"]].apply()
