"""The builds of `benchmarks/audit.py`: single rounds contradict each that is broken, and the correct one is sound."""

from __future__ import annotations

from types import ModuleType

import jax
import pytest

from benchmark_modules import load_benchmark

BUILDS = (
    "correct",
    "noise at z/2",
    "clip at 2S",
    "users counted twice",
    "denominator of those who came",
    "the same noise in every round",
)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_benchmark("audit")


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS)
def test_single_rounds_contradict_every_broken_build_and_no_other(benchmark: ModuleType, build: str) -> None:
    assert set(benchmark.BUILDS) == set(BUILDS)
    jax.clear_caches()  # a fault may be in a compiled program
    world = benchmark.World.make(40, 0)
    with benchmark.BUILDS[build]():
        row = benchmark.attack_rounds(build, world, 120)
    jax.clear_caches()
    assert row.claimed < 2
    assert row.contradicted == (build != "correct")


@pytest.mark.slow
def test_one_run_of_the_correct_build_stays_below_its_claim_in_every_game(benchmark: ModuleType) -> None:
    rows = benchmark.attack_run("correct", benchmark.World.make(200, 1))
    assert [row.game for row in rows] == [
        "one run, noised updates",
        "one run, released weights",
        "one run, losses",
    ]
    for row in rows:
        assert 0 < row.by_curve < row.claimed
        assert not row.contradicted
