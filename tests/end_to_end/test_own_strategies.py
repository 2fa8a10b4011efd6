"""A strategy of the caller through the front door, by those of Popov et al. 2018: going on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from test_rehearsal import make_public
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import report_run
from sottovoce.papers.popov2018.distillation import Distillation
from sottovoce.papers.popov2018.stale_updates import StaleUpdates
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.training.strategy import Strategy
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def recipe(store: Path) -> Recipe:
    return make_recipe(store).replace(
        privacy={"mode": "none", "noise_multiplier": None}, run={"rounds": 5, "checkpoint_every": 100}
    )


def diagnostics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "seen"),
    [
        (Distillation(tokens=40, epochs=2, cycles=2), lambda line: len(line["server_losses"]) == 4),
        (StaleUpdates(2, (0.6, 0.4)), lambda line: line["most_rounds_behind"] <= 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_run_goes_on_to_the_same_bits(store: Path, recipe: Recipe, tmp_path: Path, strategy: Strategy, seen):
    result = sottovoce.train(recipe, tmp_path / "whole", strategy=strategy)
    assert not result.statement.private
    assert not (store / "ledger.jsonl").exists()
    assert sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3), strategy=strategy).ended == "stopped"
    sottovoce.resume(tmp_path / "run", strategy=strategy)
    trees = [jax.tree.leaves(ModelFolder.open(tmp_path / name).model) for name in ("whole", "run")]
    for one, other in zip(*trees, strict=True):
        np.testing.assert_array_equal(one, other)
    records = [(tmp_path / name / "record.jsonl").read_text() for name in ("whole", "run")]
    assert records[0] == records[1]
    assert all(seen(line) for line in diagnostics(tmp_path / "whole"))
    assert str(strategy) in (tmp_path / "whole" / "ledger.jsonl").read_text()
    assert report_run(tmp_path / "whole", internal=True).is_file()


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_strategy_and_text_alone(recipe: Recipe, tmp_path: Path):
    public = make_public(tmp_path)
    rehearsing = {"objective": "rehearsal", "user_share": 0.5, "public": str(public)}
    strategy = Distillation(tokens=40, generated=False)
    sottovoce.train(recipe.replace(local=rehearsing), tmp_path / "run", stop=StopAfter(1), strategy=strategy)
    for other in (None, Distillation(tokens=40)):
        with pytest.raises(SottoError, match=r"was begun with .*Distillation\(tokens=40"):
            sottovoce.resume(tmp_path / "run", strategy=other)
    for path in public.iterdir():
        path.unlink()
    public.rmdir()
    make_public(tmp_path, lines=50)
    with pytest.raises(SottoError, match=r"was begun with .*rehearsal of text"):
        sottovoce.resume(tmp_path / "run", strategy=strategy)


def test_what_a_strategy_keeps_is_in_the_checkpoint(recipe: Recipe, tmp_path: Path):
    """The deployed models, and no update that waits."""
    strategy, released = StaleUpdates(2, (0.6, 0.4)), []
    for rounds in (2, 4, 5):
        run = tmp_path / f"run{rounds}"
        sottovoce.train(recipe, run, stop=StopAfter(rounds), strategy=strategy)
        released.append([np.asarray(leaf) for leaf in jax.tree.leaves(ModelFolder.open(run).model)])
    after_two, after_four, after_five = released
    saved = checkpoints.newest(tmp_path / "run5" / "checkpoints")
    assert saved is not None
    found = [saved.arrays[name] for name in sorted(saved.arrays)]
    expected = [*after_five, *after_four, *after_two]  # the model, the deployed one, and the one before it
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_private_run_with_a_strategy_of_the_caller_is_refused(store: Path, tmp_path: Path):
    """Nothing of what it releases is accounted for."""
    with pytest.raises(SottoError, match="promises nothing"):
        sottovoce.train(make_recipe(store), tmp_path / "run", strategy=StaleUpdates(2))
    assert not (tmp_path / "run").exists()
