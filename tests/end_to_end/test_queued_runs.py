"""The update queue through the front door: going on in the middle of it, what lies on disk, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from small_world import call, results_of
from tiny_run import StopAfter, crash_after, make_recipe, make_store

from sottovoce import jobs
from sottovoce.jobs.measuring import load_run
from sottovoce.recipe import Recipe
from sottovoce.runs import checkpoint as checkpoints


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


def queued(store: Path) -> Recipe:
    return make_recipe(store).replace(run={"deploy_every": 2, "delays": [0.6, 0.4], "checkpoint_every": 100})


def arrays_of(run: Path) -> list[np.ndarray]:
    saved, _ = checkpoints.latest(run / "checkpoints")
    assert saved is not None
    return [saved.arrays[name] for name in sorted(saved.arrays)]


def test_a_private_run_with_late_devices_goes_on_to_the_same_bits(store, tmp_path):
    recipe = queued(store)
    result = jobs.train(recipe, tmp_path / "whole")
    assert result.statement.private
    # Devices that are late cost no privacy, and change the model.
    plain = jobs.train(make_recipe(store), tmp_path / "plain")
    assert plain.statement.epsilon == result.statement.epsilon
    jobs.train(recipe, tmp_path / "stopped", stop=StopAfter(3))  # a deployment of two rounds, and one more round
    jobs.resume(tmp_path / "stopped")
    crash_after(recipe, tmp_path / "crashed", 5)
    jobs.resume(tmp_path / "crashed")
    for name in ("stopped", "crashed"):
        assert results_of(tmp_path / name) == results_of(tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "diagnostics.jsonl").read_text().splitlines()]
    assert max(line["most_rounds_behind"] for line in lines) == 3
    assert lines[0]["rounds_behind"] == 0


def test_a_checkpoint_in_the_middle_of_a_queue_holds_nothing_but_released_models(store, tmp_path):
    """Updates that wait are not noised: they must not lie on disk."""
    recipe = queued(store)
    released = []
    for rounds in (2, 3, 4, 5):
        jobs.train(recipe, tmp_path / f"run{rounds}", stop=StopAfter(rounds))
        released.append([np.asarray(leaf) for leaf in jax.tree.leaves(load_run(tmp_path / f"run{rounds}")[0])])
    after_two, _, after_four, after_five = released
    expected = [*after_five, *after_four, *after_two]  # the model, the deployed one, and the one before it
    found = arrays_of(tmp_path / "run5")
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_in_turn_every_user_is_used_once(store, tmp_path):
    recipe = queued(store).replace(
        privacy={"mode": "none", "noise_multiplier": None, "sampling": "in_turn", "cohort": 6}
    )
    result = jobs.train(recipe, tmp_path / "run")
    assert result.ended == "finished"
    assert result.statement.facts["sampling"] == "in_turn"
    lines = [json.loads(line) for line in (tmp_path / "run" / "diagnostics.jsonl").read_text().splitlines()]
    assert [line["users"] for line in lines] == [6] * 6


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["privacy.sampling=in_turn"], "amplifies nothing"),
        (["privacy.sampling=in_turn", "privacy.mode=none", "privacy.cohort=2.5"], "whole number"),
        (["privacy.sampling=in_turn", "privacy.mode=none", "privacy.cohort=90", "privacy.users=100"], "at most 36"),
        (["run.delays=[0.0]"], "no share above 0"),
        (["run.delays=[-1.0]"], "must be >= 0"),
        (["run.algorithm=central", "privacy.mode=none"], "not for run.algorithm='central'"),
        (["server.update=transfer", "privacy.mode=none"], "not for server.update='transfer'"),
    ],
)
def test_what_cannot_be_is_refused(store, tmp_path, settings, said, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(queued(store).to_toml(), encoding="utf-8")
    options = [part for each in settings for part in ("--set", each)]
    assert call("train", recipe, "--out", tmp_path / "run", *options) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
