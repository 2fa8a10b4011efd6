"""Whole rounds of made-up users, timed."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from sottovoce.commands import bench
from sottovoce.training import cohort_sum
from sottovoce.training.types import Task
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

TINY = Recipe.load("demo").replace(model={"embedding": 4, "hidden": 4})


@pytest.mark.slow
def test_a_measurement_says_what_was_measured(monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    found = bench.measure(TINY, cohort=3)
    assert (found.cohort, found.precision) == (3, "float32")
    assert found.users_per_second > 0
    assert found.tokens_per_second == pytest.approx(found.users_per_second * 160)


@pytest.mark.slow
def test_a_cohort_of_many_blocks_holds_no_more_than_one_of_few(monkeypatch):
    """So that a cohort may be larger than memory: of a block that was added nothing stays but four numbers a user."""
    held = []
    real = cohort_sum._seated

    def seated(*block):
        held.append(sum(array.nbytes for array in jax.live_arrays()))
        return real(*block)

    monkeypatch.setattr(cohort_sum, "_seated", seated)
    store = bench.made_up_users(8, 500, 160)
    assembly = bench.assemble_timed(Recipe.load("demo").replace(run={"block": 8, "kernels": "off"}), store, 8)
    clip_norms = assembly.algorithm.mechanism.clip_norms(1, None)
    cohort = np.tile(np.arange(8), 20)
    assembly.sum_updates(assembly.algorithm, Task(assembly.model, cohort, clip_norms, jax.random.key(0)), store)
    assert len(held) == 20
    one_block_ahead = 4 * 8 * (160 + 2)
    # the largest of ten, not one of them: a block's old sum may just be gone and the new one not yet there
    assert max(held[10:]) - max(held[:10]) <= 8 * 20 * 16 + one_block_ahead < 4 * 8 * 10 * 160


def clocked(monkeypatch, seconds_a_round):
    """Rounds that take as long as a false clock says."""
    now = 0.0

    def play():
        nonlocal now
        now += seconds_a_round
        return None, 16

    monkeypatch.setattr(bench, "assemble_timed", lambda *given: None)
    monkeypatch.setattr(bench, "play_next", lambda assembly, store: play)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now)
    return lambda: now


@pytest.mark.parametrize(("a_round", "took"), [(0.5, 3.0), (8.0, 16.0), (30.0, 60.0)])
def test_a_rate_is_timed_within_its_seconds_or_in_one_round(monkeypatch, a_round, took):
    clock = clocked(monkeypatch, a_round)
    assert bench.users_per_second(Recipe.load("small"), seconds=20.0) == pytest.approx(16 / a_round)
    assert clock() == took


def test_a_recipe_that_reads_public_text_is_not_timed():
    with pytest.raises(SottoError, match="--no-bench"):
        bench.users_per_second(Recipe.load("small").replace(local={"objective": "rehearsal"}))


@pytest.mark.parametrize(
    "privacy",
    [
        {"noise": "banded", "noise_coefficients": (1.0, 0.5), "sampling": "in_turn"},
        {"noise": "banded", "noise_bands": 4, "sampling": "min_separation", "min_separation": 5, "participations": 2},
    ],
)
def test_a_recipe_with_correlated_noise_can_be_timed(privacy):
    """The made-up users join every round, which such noise is not for."""
    assembly = bench.assemble_timed(TINY.replace(privacy=privacy), bench.made_up_users(2, 40, 20), 2)
    assert assembly.recipe.privacy.noise == "independent"
    assert assembly.recipe.model.hidden == 4
