"""Central training through the front door: its record, its statement, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from small_world import results_of
from tiny_run import StopAfter, crash_after, make_recipe, make_store

import sottovoce
from examples import first_of
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import report_run
from sottovoce_evidence.recipe import Recipe

PLAIN = {"mode": "none", "noise_multiplier": None}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


def central(store: Path) -> Recipe:
    return make_recipe(store).replace(
        privacy=PLAIN, server={"optimiser": "adam", "learning_rate": 0.05},
        run={"algorithm": "central", "rounds": 6, "evaluate_every": 2},
    )  # fmt: skip


@pytest.mark.slow
def test_a_central_run_learns_and_says_what_it_is(store, tmp_path):
    result = sottovoce.train(central(store), tmp_path / "run")
    assert result.ended == "finished"
    assert not result.statement.private
    assert result.statement.algorithm == "central"
    assert result.statement.mechanism.clip_norm is None
    record = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    assert [line["round"] for line in record if "evaluation" in line] == [2, 4, 6]
    assert all(line["epsilon"] == "infinity" and line["noise_std"] == 0 for line in record)
    losses = [json.loads(line) for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert all(line["users"] == 9 for line in losses)
    assert losses[-1]["loss"] < losses[0]["loss"] - 0.2
    assert not (store / "ledger.jsonl").exists()  # nothing that could be charged was promised
    assert "central" in report_run(tmp_path / "run", internal=True).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("secrets", first_of(["seeded", "entropy"]))
def test_a_central_run_goes_on_to_the_same_bits(store, tmp_path, secrets):
    recipe = central(store).replace(privacy={"secrets": secrets})
    sottovoce.train(recipe, tmp_path / "whole")
    stopped = sottovoce.train(recipe, tmp_path / "stopped", stop=StopAfter(3))
    assert (stopped.ended, stopped.round) == ("stopped", 3)
    sottovoce.resume(tmp_path / "stopped")
    crash_after(recipe, tmp_path / "crashed", 5)
    sottovoce.resume(tmp_path / "crashed")
    whole = jax.tree.leaves(ModelFolder.open(tmp_path / "whole").model)
    for name in ("stopped", "crashed"):
        again = jax.tree.leaves(ModelFolder.open(tmp_path / name).model)
        for one, other in zip(whole, again, strict=True):
            np.testing.assert_array_equal(one, other)
        if secrets == "seeded":
            assert results_of(tmp_path / name) == results_of(tmp_path / "whole")


def test_a_private_central_run_is_refused_on_the_command_line(world, refused, tmp_path):
    line = refused("train", world.recipe, "--out", tmp_path / "run", "--set", "run.algorithm=central")
    assert "no user-level guarantee" in line
