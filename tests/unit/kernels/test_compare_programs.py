"""What `benchmarks/compare_programs.py` calls the same."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_modules import load_benchmark


@pytest.fixture(scope="module")
def benchmark():
    return load_benchmark("compare_programs")


UPDATES = {"difference": 0.003, "twin": None, "within_clip": True, "empty_user_sends_nothing": True}


def test_updates_that_differ_or_are_too_long_are_not_sound(benchmark):
    assert benchmark.is_sound(UPDATES)
    assert not benchmark.is_sound({**UPDATES, "difference": 0.03})
    assert benchmark.is_sound({**UPDATES, "difference": 0.03, "twin": 0.02})
    assert not benchmark.is_sound({**UPDATES, "difference": 0.05, "twin": 0.02})
    assert not benchmark.is_sound({**UPDATES, "within_clip": False})
    assert not benchmark.is_sound({**UPDATES, "empty_user_sends_nothing": False})


def test_accuracy_may_differ_by_chance_and_not_always_in_one_direction(benchmark):
    slow = np.full(6, 0.5)

    def is_sound(*points):
        return benchmark.is_sound({**UPDATES, **benchmark.spread(slow + np.array(points) / 100, slow)})

    assert is_sound(2, -2, 1, -1, 2, -2)
    assert is_sound(-0.4, -0.4, -0.4, -0.4, -0.4, -0.4)
    assert not is_sound(-2, -2, -1, -1, -2, -2)
    assert not is_sound(2, 2, 1, 1, 2, 2)
