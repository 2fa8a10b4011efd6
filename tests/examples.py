"""How many cases a test has: in `make test` few, in `make test-slow` all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

THOROUGH = {"HYPOTHESIS_PROFILE": "thorough"}  # of the environment


def examples(count: int) -> settings:
    """As many examples of hypothesis, or a quarter of them."""
    thorough = THOROUGH.items() <= os.environ.items()
    return settings(max_examples=count if thorough else -(-count // 4), deadline=None)


def first_of(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first case, and the others as slow tests."""
    first, *others = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*first), *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]
