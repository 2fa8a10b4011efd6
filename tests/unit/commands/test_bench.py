from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from sottovoce.commands import bench
from sottovoce.kernels import lstm_cuda
from sottovoce.local.update import FedAvg
from sottovoce.models.lora import Adapters, Survey, adapt
from sottovoce.models.lstm import LSTM
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training import cohort_sum
from sottovoce.training.types import Task
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.mark.slow
def test_a_measurement_says_what_was_measured(monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "_product_rate", lambda kind: 1e12)
    monkeypatch.setattr(bench, "_copy_rate", lambda: 1e11)
    found = bench.measure("demo", cohort=6)
    assert (found.workload, found.cohort, found.precision) == ("demo", 6, "float32")
    assert found.users_per_second > 0
    assert found.tokens_per_second == pytest.approx(found.users_per_second * 160)
    assert found.arithmetic_share == pytest.approx(found.flops_a_user * found.users_per_second / 1e12)


def test_the_papers_user_costs_thirteen_thousand_million_operations():
    """80 tokens a step against 10,000 words of 96 numbers, and the gates; forwards once, backwards twice."""
    model = jax.eval_shape(lambda: LSTM(10_000, key=jax.random.key(0)))
    by_hand = 6 * 1600 * (10_000 * 96 + 4 * 256 * (96 + 256) + 96 * 256)
    assert by_hand == pytest.approx(12.9e9, rel=0.01)
    weights = sum(leaf.size for leaf in jax.tree.leaves(model) if leaf.ndim == 2)
    assert 6 * 1600 * weights == by_hand


def test_bytes_are_counted_for_what_is_trained_and_as_often():
    """FedSGD has one gradient a user, FedAvg an update in each of 20 steps; adapters alone move, not what is frozen."""

    model = LSTM(50, embedding=4, hidden=4, key=jax.random.key(0))
    adapted = adapt(Survey(model, Adapters(rank=1)), jax.random.key(1))

    def moved(model: LSTM, algorithm: str) -> int:
        recipe = Recipe.load("mcmahan2018").replace(run={"algorithm": algorithm})
        return bench._bytes_moved(
            SimpleNamespace(recipe=recipe, model=model, sum_updates=SimpleNamespace(products=None)), 1600
        )

    size = sum(leaf.size for leaf in jax.tree.leaves(model))
    assert moved(model, "fedavg") == 20 * moved(model, "fedsgd") == 20 * 3 * 4 * size
    assert 0 < moved(adapted, "fedavg") < moved(model, "fedavg")


def test_an_unknown_workload_is_refused():
    with pytest.raises(SottoError, match="mcmahan-lstm"):
        bench.measure("mcmahan-lsmt")
    with pytest.raises(SottoError, match="1 or more"):
        bench.measure("demo", cohort=-3)


@pytest.mark.slow
def test_rounds_of_any_size_share_one_program():
    """A guard that counts work, not seconds."""
    assembly = bench.assemble_workload(bench.WORKLOADS["demo"], 30, 8, "auto")
    cohort_sum._add_block.clear_cache()
    clip_norms = assembly.algorithm.mechanism.clip_norms(1, None)
    store = bench.make_users(bench.WORKLOADS["demo"], 30)
    for size in (0, 3, 8, 9, 22):
        key = jax.random.key(size)
        summed = assembly.sum_updates(assembly.algorithm, Task(assembly.model, np.arange(size), clip_norms, key), store)
        assert summed.users == size
    assert cohort_sum._add_block._cache_size() == 1


@pytest.mark.slow
def test_the_second_round_compiles_nothing():
    assembly = bench.assemble_workload(bench.WORKLOADS["demo"], 8, 8, "off")
    play = bench.play_next(assembly, bench.make_users(bench.WORKLOADS["demo"], 8))
    cohort_sum._add_block.clear_cache()
    play()
    play()
    assert cohort_sum._add_block._cache_size() == 1


@pytest.mark.slow
def test_a_cohort_of_many_blocks_holds_no_more_than_one_of_few(monkeypatch):
    """So that a cohort may be larger than memory: of a block that was added nothing stays but four numbers a user."""
    held = []
    real = cohort_sum._seated

    def seated(*block):
        held.append(sum(array.nbytes for array in jax.live_arrays()))
        return real(*block)

    monkeypatch.setattr(cohort_sum, "_seated", seated)
    assembly = bench.assemble_workload(bench.WORKLOADS["demo"], 8, 8, "off")
    clip_norms = assembly.algorithm.mechanism.clip_norms(1, None)
    store = bench.make_users(bench.WORKLOADS["demo"], 8)
    cohort = np.tile(np.arange(8), 20)
    assembly.sum_updates(assembly.algorithm, Task(assembly.model, cohort, clip_norms, jax.random.key(0)), store)
    assert len(held) == 20
    one_block_ahead = 4 * 8 * (160 + 2)
    # the largest of ten, not one of them: a block's old sum may just be gone and the new one not yet there
    assert max(held[10:]) - max(held[:10]) <= 8 * 20 * 16 + one_block_ahead < 4 * 8 * 10 * 160


@pytest.mark.slow
def test_a_cohort_is_drawn_from_a_population_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "_product_rate", lambda kind: 1e12)
    monkeypatch.setattr(bench, "_copy_rate", lambda: 1e11)
    monkeypatch.setattr(bench, "DIFFERENT_USERS", 7)
    bench.make_population(tmp_path, bench.WORKLOADS["demo"], 300)
    found = bench.measure("demo", cohort=6, block=4, population=tmp_path)
    assert (found.population, found.cohort) == (300, 6)
    assert found.users_per_second > 0
    store = bench.Store.open(tmp_path)
    assert np.array_equal(store[3], store[10])
    assert not np.array_equal(store[3], store[4])


def test_a_population_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(SottoError, match="larger than the population=50"):
        list(bench.measure_each("demo", [10, 100], [50]))
    with pytest.raises(SottoError, match="fit on disk"):
        bench.make_population(tmp_path, bench.WORKLOADS["demo"], 10**15)
    assert not list(tmp_path.iterdir())


def test_kernels_are_for_the_device_and_the_sizes_they_were_written_for():
    model = jax.eval_shape(lambda: LSTM(10_000, key=jax.random.key(0)))
    assert lstm_cuda.products(FedAvg(FlatClip(1.0), True), model) is None  # no GPU here


def clocked(monkeypatch, seconds_a_round):
    """Rounds that take as long as a false clock says."""
    now = 0.0

    def play():
        nonlocal now
        now += seconds_a_round
        return None, 16

    monkeypatch.setattr(bench, "make_users", lambda workload, cohort: None)
    monkeypatch.setattr(bench, "assemble_workload", lambda *given, **named: None)
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
    recipe = Recipe.load("demo").replace(privacy=privacy, model={"embedding": 4, "hidden": 4})
    workload = bench.Workload(recipe, vocabulary=40, tokens=20, cohort=2)
    assembly = bench.assemble_workload(workload, 2, 0, "auto")
    assert assembly.recipe.privacy.noise == "independent"
    assert assembly.recipe.model == recipe.model


@pytest.mark.slow
def test_any_recipe_can_be_timed():
    recipe = Recipe.load("demo").replace(privacy={"cohort": 4.0, "weight_cap": 100.0, "total_weight": 50.0})
    recipe = recipe.replace(federation={"max_silos": 2})
    assert bench.users_per_second(recipe, tokens=40, seconds=0.0) > 0


@pytest.mark.parametrize(
    "name", ["gru", "gated_cnn", "stacked_lstm", "fedsgd", "without_forgetting", "transformer", "lora"]
)
def test_every_workload_says_what_it_times(name):
    workload = bench.WORKLOADS[name]
    recipe = Recipe.load(workload.recipe).replace(**workload.changes)
    assert workload.kernels == "any_model"
    expected = {"fedsgd": "lstm", "without_forgetting": "lstm", "lora": "transformer"}.get(name, name)
    assert recipe.model.kind == expected
    assert (recipe.run.algorithm == "fedsgd") == (name == "fedsgd")
    assert (recipe.local.objective == "without_forgetting") == (name == "without_forgetting")
    assert (recipe.model.adapter_rank is not None) == (name == "lora")


def test_plain_jax_is_in_a_clone_alone(monkeypatch, tmp_path):
    assert (Path(bench.__file__).parents[3] / "benchmarks" / "plain.py").is_file()
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "a" / "b" / "c" / "bench.py"))
    with pytest.raises(SottoError, match="clone"):
        bench.plain_rate(1)


# Of the program that adds a block of one user, as it is written and not yet compiled. A loop is counted once.
TOLERANCE = 0.25  # either way: what computes less than this should be written down too


class Work(NamedTuple):
    operations: float  # millions of floating-point operations
    moved: float  # millions of bytes, each operation for itself


WORK = {
    "mcmahan-lstm": Work(148.8, 279.2),
    "demo": Work(18.51, 43.38),
    "popov-device": Work(6040, 1736),
    "lstm": Work(148.6, 224.7),
    "gru": Work(121.0, 180.0),
    "gated_cnn": Work(93.03, 150.4),
    "stacked_lstm": Work(462.4, 666.2),
    "stacked_lstm_650": Work(2694, 3648),
    "fedsgd": Work(147.3, 210.3),
    "without_forgetting": Work(180.9, 243.7),
    "transformer": Work(2160, 1324),
    "lora": Work(13230, 1783),
}
QUICK = ("lstm",)  # `make test-all` has them all: to trace each takes a second


class OnlyLowered(Exception):
    pass


def work_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Work:
    workload = replace(bench.WORKLOADS[name], vocabulary=500, tokens=160, cohort=1)
    store, found = bench.make_users(workload, 1), []
    assembly = bench.assemble_workload(workload, 1, 1, workload.kernels, devices=1, store=store)
    real = cohort_sum._add_block

    def lower(*inputs):
        found.append(real.lower(*inputs).cost_analysis())
        raise OnlyLowered

    monkeypatch.setattr(cohort_sum, "_add_block", lower)
    clip_norms = assembly.algorithm.mechanism.clip_norms(1, None)
    task = Task(assembly.start(assembly.model).params, np.arange(1), clip_norms, jax.random.key(0))
    with pytest.raises(OnlyLowered):
        assembly.sum_updates(assembly.algorithm, task, store)
    return Work(found[0]["flops"] / 1e6, found[0]["bytes accessed"] / 1e6)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in WORK]
)
def test_a_workload_computes_and_moves_what_it_did(name, monkeypatch):
    np.testing.assert_allclose(work_of(name, monkeypatch), WORK[name], rtol=TOLERANCE)


@pytest.mark.slow
def test_work_that_is_done_twice_is_seen(monkeypatch):
    from sottovoce.local import update

    real = update.mean_loss_and_gradient

    def twice(objective, model, *given):
        other = jax.tree.map(lambda leaf: 2 * leaf, model)
        pair = real(objective, model, *given), real(objective, other, *given)
        return jax.tree.map(lambda one, other: one + 0 * other, *pair)

    monkeypatch.setattr(update, "mean_loss_and_gradient", twice)
    jax.clear_caches()
    found = work_of("fedsgd", monkeypatch)
    jax.clear_caches()
    assert all(now > (1 + TOLERANCE) * before for now, before in zip(found, WORK["fedsgd"], strict=True))


def test_every_workload_has_its_figures():
    assert set(bench.WORKLOADS) - set(WORK) == set()
