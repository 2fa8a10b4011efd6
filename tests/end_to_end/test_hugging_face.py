"""A folder of Hugging Face through the front door: trained with a guarantee, stopped and taken up, released, used."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.commands.model_folder import ModelFolder
from sottovoce_evidence.recipe import Recipe
from tiny_hugging_face import write_folder


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_a_private_run_starts_from_a_folder_and_does_without_it_later(tmp_path: Path, family: str) -> None:
    store, folder = make_store(tmp_path), write_folder(tmp_path / "tiny", family, rows=64)
    recipe = Recipe.from_dict({
        **make_recipe(store).to_dict(),
        "model": {"initial": str(folder), "initial_is_public": True, "context": 7},
    })  # fmt: skip
    recipe = recipe.replace(run={"rounds": 2, "checkpoint_every": 1}, local={"learning_rate": 0.1})
    whole = sottovoce.train(recipe, tmp_path / "whole")
    assert whole.statement.start.declared
    sottovoce.train(recipe, tmp_path / "stopped", stop=StopAfter(1))
    folder.rename(tmp_path / "gone")
    sottovoce.resume(tmp_path / "stopped")
    one, other = (jax.tree.leaves(ModelFolder.open(tmp_path / name).model) for name in ("whole", "stopped"))
    assert all(map(np.array_equal, one, other))
    assert Recipe.load(tmp_path / "whole" / "recipe.toml").model.context == 7
    assert sottovoce.ModelFolder.open(tmp_path / "whole").suggest("red tree", 1)


@pytest.mark.slow
def test_bad_folders_are_refused_in_one_line_and_nothing_is_written(refused, world, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny", "llama", rows=5000)
    recipe = {**make_recipe(world.store).to_dict(), "model": {"initial": str(folder), "initial_is_public": True}}
    (tmp_path / "mine.toml").write_text(Recipe.from_dict(recipe).to_toml())
    command = ("train", tmp_path / "mine.toml", "--out", tmp_path / "run")
    assert "model.context=64" in refused(*command, "--set", "model.context=64")
    tensors = folder / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:400])
    assert "cannot read" in refused(*command)
    (folder / "config.json").write_text('{"model_type": "mamba"}')
    assert "model_type 'mamba' is not supported" in refused(*command)
