"""The builds of `benchmarks/audit.py`: the audit contradicts those that are broken, and the correct one is sound."""

from __future__ import annotations

from types import ModuleType

import jax
import pytest

from benchmark_modules import load_benchmark

BUILDS = (
    "correct",
    "noise at z/2",
    "noise at z/4",
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
@pytest.mark.timeout(600)
@pytest.mark.parametrize("build", ["correct", "noise at z/4"])
def test_one_run_contradicts_a_quarter_of_the_noise_and_not_the_correct_build(
    benchmark: ModuleType, build: str
) -> None:
    """From noised updates, from released weights, and from calibrated losses of the released model alone.

    Noise at z/2 is missed with some seeds even with 2,000 canaries (docs/results/audits.md), so it is no case for a
    test. At z/4 the margin is wide: 242 right guesses of 250 refute the claim, and with seeds 0 to 4 losses gave 249
    or 250. They left 0.65 to 0.73 of the claimed noise at z/4, and 1.58 to 2.36 of it for the correct build; below 1
    the claim is refuted.
    """
    jax.clear_caches()  # a fault may be in a compiled program
    world = benchmark.World.make(500, 0)
    with benchmark.BUILDS[build]():
        rows = benchmark.attack_run(build, world)
    jax.clear_caches()
    assert [row.game for row in rows] == [
        "one run, noised updates",
        "one run, released weights",
        "one run, losses",
    ]
    for row in rows:
        assert row.by_curve > 0
        assert row.contradicted == (build != "correct")
