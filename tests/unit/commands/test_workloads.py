"""The workloads of `benchmarks/`: what they time, and that they compute and move what they did."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from benchmark_modules import load_benchmark
from sottovoce.data.store import Store
from sottovoce.models.lora import Adapters, Survey, adapt
from sottovoce.models.lstm import LSTM
from sottovoce.training import cohort_sum
from sottovoce.training.types import Task
from sottovoce_evidence.recipe import Recipe

workloads = load_benchmark("workloads")
WORKLOADS = workloads.WORKLOADS


def test_bytes_are_counted_for_what_is_trained_and_as_often():
    """FedSGD has one gradient a user, FedAvg an update in each of 20 steps; adapters alone move, not what is frozen."""

    model = LSTM(50, embedding=4, hidden=4, key=jax.random.key(0))
    adapted = adapt(Survey(model, Adapters(rank=1)), jax.random.key(1))

    def moved(model: LSTM, algorithm: str) -> int:
        recipe = Recipe.load("mcmahan2018").replace(run={"algorithm": algorithm})
        return workloads.bytes_moved(
            SimpleNamespace(recipe=recipe, model=model, sum_updates=SimpleNamespace(products=None)), 1600
        )

    size = sum(leaf.size for leaf in jax.tree.leaves(model))
    assert moved(model, "fedavg") == 20 * moved(model, "fedsgd") == 20 * 3 * 4 * size
    assert 0 < moved(adapted, "fedavg") < moved(model, "fedavg")


@pytest.mark.slow
def test_a_cohort_is_drawn_from_a_population_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(workloads, "_product_rate", lambda kind: 1e12)
    monkeypatch.setattr(workloads, "_copy_rate", lambda: 1e11)
    monkeypatch.setattr(workloads, "DIFFERENT_USERS", 7)
    workloads.make_population(tmp_path, WORKLOADS["demo"], 300)
    found = workloads.measure(WORKLOADS["demo"], cohort=6, block=4, population=tmp_path)
    assert (found["population"], found["cohort"]) == (300, 6)
    assert found["arithmetic_share"] == pytest.approx(found["flops_a_user"] * found["users_per_second"] / 1e12)
    store = Store.open(tmp_path)
    assert np.array_equal(store[3], store[10])
    assert not np.array_equal(store[3], store[4])


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
    workload = replace(WORKLOADS[name], vocabulary=500, tokens=160)
    store, found = workload.users(1), []
    assembly = workload.assemble(store, block=1, devices=1)
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
    assert set(WORKLOADS) - set(WORK) == set()
