"""How many examples hypothesis makes of a test: all in `make test-slow`, a quarter in `make test`."""

from __future__ import annotations

import os

from hypothesis import settings

THOROUGH = {"HYPOTHESIS_PROFILE": "thorough"}  # of the environment


def examples(count: int) -> settings:
    thorough = THOROUGH.items() <= os.environ.items()
    return settings(max_examples=count if thorough else -(-count // 4), deadline=None)
