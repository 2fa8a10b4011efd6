"""Checkpoints belong to the ledger beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.runs import checkpoint
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Recipe

NOT_ITS_OWN = "does not have the checkpoint of round 3 that the run committed"


@pytest.fixture
def store(tmp_path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def recipe(store) -> Recipe:
    return make_recipe(store).replace(privacy={"secrets": "entropy"})


@pytest.fixture
def run(recipe, tmp_path) -> Path:
    """Stopped after three of six rounds."""
    return sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3)).path


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def test_an_edited_checkpoint_is_refused(run):
    """Edited by somebody who knows how its own hash is made."""
    before = newest(run).read_bytes()
    saved = checkpoint.newest(run / "checkpoints")
    assert saved is not None
    saved.arrays["0000"][0] += 1e-3
    checkpoint.give_name(run / "checkpoints", checkpoint.save_draft(run / "checkpoints", saved))
    with pytest.raises(DamagedRun, match=NOT_ITS_OWN):
        sottovoce.resume(run)
    newest(run).write_bytes(before)  # as it says
    assert sottovoce.resume(run).ended == "finished"


def test_a_checkpoint_of_another_run_is_refused(recipe, run, tmp_path):
    other = sottovoce.train(recipe, tmp_path / "other", stop=StopAfter(3)).path
    shutil.copy(newest(other), newest(run))
    with pytest.raises(DamagedRun, match=NOT_ITS_OWN):
        sottovoce.resume(run)
