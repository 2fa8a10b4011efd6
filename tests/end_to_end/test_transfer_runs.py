"""Transfer learning through the front door: its diagnostics, going on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from small_world import results_of
from test_rehearsal import make_public
from tiny_run import StopAfter, crash_after, make_recipe, make_store

import sottovoce
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import report_run
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


def imitating(store: Path, **server) -> Recipe:
    return make_recipe(store).replace(
        privacy={"mode": "none", "noise_multiplier": None}, run={"rounds": 4, "checkpoint_every": 3},
        server={"update": "transfer", "tokens": 40, "epochs": 2, "learning_rate": 0.5, **server},
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_learns_by_imitation_and_goes_on_to_the_same_bits(store, tmp_path):
    recipe = imitating(store, cycles=2, optimiser="momentum")
    result = sottovoce.train(recipe, tmp_path / "whole")
    assert not result.statement.private
    assert result.statement.mechanism.server_update == "transfer"
    assert sottovoce.train(recipe, tmp_path / "stopped", stop=StopAfter(2)).ended == "stopped"
    sottovoce.resume(tmp_path / "stopped")
    crash_after(recipe, tmp_path / "crashed", 4)
    sottovoce.resume(tmp_path / "crashed")
    whole = jax.tree.leaves(ModelFolder.open(tmp_path / "whole").model)
    for name in ("stopped", "crashed"):
        for one, other in zip(whole, jax.tree.leaves(ModelFolder.open(tmp_path / name).model), strict=True):
            np.testing.assert_array_equal(one, other)
        assert results_of(tmp_path / name) == results_of(tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "diagnostics.jsonl").read_text().splitlines()]
    assert [len(line["server_losses"]) for line in lines] == [4] * 4
    assert not (store / "ledger.jsonl").exists()
    assert "transfer learning on generated text" in (tmp_path / "whole" / "ledger.jsonl").read_text()
    assert report_run(tmp_path / "whole", internal=True).is_file()


@pytest.mark.slow
def test_public_text_is_read_and_a_run_goes_on_with_no_other(store, tmp_path):
    public = make_public(tmp_path)
    recipe = imitating(store, text="public").replace(local={"public": str(public)})
    result = sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(2))
    assert not any("rehearse" in words for words in result.statement.not_covered)
    for path in public.iterdir():
        path.unlink()
    public.rmdir()
    make_public(tmp_path, lines=50)
    with pytest.raises(SottoError, match=r"was begun with .* transfer learning on text"):
        sottovoce.resume(tmp_path / "run")
