"""What `benchmarks/kernels.py` counts, and what it calls the same."""

from __future__ import annotations

import pytest

from benchmark_modules import load_benchmark


@pytest.fixture(scope="module")
def benchmark():
    return load_benchmark("kernels")


def test_a_kernel_that_differs_from_its_twin_or_from_itself_is_not_sound(benchmark):
    found = {"differences": [0.001, 0.019], "same_again": True}
    assert benchmark.is_sound(found)
    assert not benchmark.is_sound({**found, "same_again": False})
    assert not benchmark.is_sound({**found, "differences": [0.001, 0.021]})
    assert not benchmark.is_sound({**found, "differences": [float("nan")]})


def test_the_floor_is_the_slowest_of_bytes_operations_and_exponentials(benchmark):
    works = benchmark.works(10_000)
    # The table's update is read and written, with two bytes a number; outputs and gradients of words are read.
    assert works["head_b"].bytes == 2 * 2 * 10_000 * 96 + 2 * 2 * 80 * 96
    assert works["head_b"].operations == 2 * 2 * 80 * 10_000 * 96  # two products
    assert benchmark.floor_of(works["head_b"], 1024) == pytest.approx(1024 * works["head_b"].bytes / 4.0e6)
    slow = works["head_b"]._replace(bytes=0)
    assert benchmark.floor_of(slow, 1) == pytest.approx(slow.operations / 790e6)
    assert benchmark.floor_of(slow._replace(operations=0), 1) == pytest.approx(80 * 10_000 / 3.6e6)


@pytest.mark.slow
def test_the_plain_twins_are_their_own(benchmark, capsys):
    assert (
        benchmark.main(["--plain", "--users", "2", "--words", "90", "--calls", "1", "--only", "head_b", "sgd96"]) == 0
    )
    assert capsys.readouterr().out.count('"ok": true') == 2
