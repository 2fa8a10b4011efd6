"""Runs with adapters: from a base to a release, through a stop; and over devices."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_world import call
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from fleets import InProcess, make_device, make_roster, tiny_recipe
from sottovoce.build.assembly import weights_of
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.federation.rounds import Coordinator
from sottovoce.models import registry
from sottovoce.models.lora import merge_weights
from sottovoce.runs.checkpoint import newest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.recipe import Recipe
from tiny_base import write_card
from tiny_hugging_face import tensors_of, write_folder

PLAIN = {"mode": "none", "noise_multiplier": None}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other people, trained without adapters."""
    folder = tmp_path_factory.mktemp("base")
    recipe = make_recipe(make_store(folder, seed=1, ids="v")).replace(privacy=PLAIN, run={"rounds": 2})
    sottovoce.train(recipe, folder / "run", progress=False)
    return folder / "run"


def with_adapters(store: Path, base: Path, **model) -> Recipe:
    model = {"adapter_rank": 2, "adapter_trains": ["projection_bias"], "initial": str(base), **model}
    return make_recipe(store).replace(model=model, privacy={"secrets": "entropy"})


@pytest.mark.slow
def test_from_a_base_to_a_release(base, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    recipe = with_adapters(make_store(tmp_path), base, adapter_scale=0.5, initial_is_public=True)
    sottovoce.train(recipe, run, stop=StopAfter(2), progress=False)
    assert sottovoce.resume(run, progress=False).round == 6
    started, weights = load_file(base / "model" / "weights.safetensors"), RunFolder(run).load_weights()
    trained = {"base.projection.down", "base.projection.up", "base.projection_bias"}
    for name, array in started.items():
        kept = weights[f"base.{name}.weight" if name == "projection" else f"base.{name}"]
        assert np.array_equal(kept, array) == (f"base.{name}" not in trained), name
    assert np.any(weights["base.projection.up"])
    # A checkpoint has what is trained, and the card says how much that is.
    saved = newest(run / "checkpoints")
    assert saved is not None
    params = sum(weights[name].size for name in trained)
    assert sum(array.size for array in saved.arrays.values()) == params
    card = json.loads((run / "model" / "card.json").read_text())
    assert card["trained_parameters"] == params
    assert card["adapter"] == {"rank": 2, "scale": 0.5, "matrices": ["projection"], "trains": ["projection_bias"]}
    assert card["frozen"] == Ledger.open(run / "ledger.jsonl").header["frozen"]
    assert card["bytes"]["up"] == 4 * params
    assert Recipe.of(RunFolder(run)).model.adapter_matrices == ("projection",)
    for command in (("evaluate", run, "--personalise"), ("report", run), ("release", run, "--out", out, "--yes")):
        assert call(*command) == 0, capsys.readouterr().err
    assert call("verify", out, "--json") == 0
    assert f"trained | {params:,} of" in (out / "README.md").read_text()
    # A release works alone: plain matrices in use, and in ONNX.
    merged, loaded = merge_weights(load_file(out / "weights.safetensors")), sottovoce.ModelFolder.open(out)
    expected = started["projection"] + 0.5 * weights["base.projection.up"] @ weights["base.projection.down"]
    np.testing.assert_allclose(merged["projection"], expected, atol=1e-6)
    np.testing.assert_allclose(loaded.merged.projection, expected, atol=1e-6)
    assert loaded.suggest("red green")
    # Another run starts from it, with adapters of its own or with none: those that it has are merged.
    more = make_store(tmp_path, seed=2, name="others")
    next_run = with_adapters(more, out, adapter_rank=1).replace(privacy=PLAIN, run={"rounds": 1})
    sottovoce.train(next_run, tmp_path / "next", progress=False)
    np.testing.assert_allclose(
        RunFolder(tmp_path / "next").load_frozen()["base.projection.weight"], expected, atol=1e-6
    )
    whole = make_recipe(more).replace(model={"initial": str(out)}, privacy=PLAIN, run={"rounds": 1})
    sottovoce.train(whole, tmp_path / "whole", progress=False)
    assert set(RunFolder(tmp_path / "whole").load_weights()) == set(started)


@pytest.mark.slow
def test_the_frozen_part_of_a_run_is_the_one_it_began_with(base, tmp_path):
    """Neither the run nor its release goes on with other weights under the adapters."""
    run = tmp_path / "run"
    recipe = with_adapters(make_store(tmp_path), base, initial_is_public=True)
    sottovoce.train(recipe, run, stop=StopAfter(2), progress=False)
    file = run / "frozen.safetensors"
    whole = file.read_bytes()
    RunFolder(run).save_frozen({name: np.asarray(array + 1) for name, array in load_file(file).items()})
    with pytest.raises(DamagedRun, match="is not the frozen part that the run began with"):
        sottovoce.resume(run, progress=False)
    refused = sottovoce.release_run(run, tmp_path / "out")
    assert any("frozen part" in reason for reason in refused.reasons)
    file.write_bytes(whole)
    assert sottovoce.resume(run, progress=False).round == 6


@pytest.mark.slow
def test_adapters_without_weights_to_adapt_are_refused(tmp_path):
    recipe = with_adapters(make_store(tmp_path), tmp_path)
    for initial in ("none", None):
        with pytest.raises(SottoError, match="adapter_rank=2 trains beside frozen weights"):
            sottovoce.train(recipe.replace(model={"initial": initial}), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_adapters_of_a_folder_of_hugging_face(tmp_path):
    """Its weights are frozen, to the bit; a run that was stopped does without the folder."""
    folder, run = write_folder(tmp_path / "tiny", "qwen3", rows=64), tmp_path / "run"
    model = {"initial": str(folder), "initial_is_public": True, "context": 7, "adapter_rank": 2}
    recipe = Recipe.from_dict({**make_recipe(make_store(tmp_path)).to_dict(), "model": model})
    recipe = recipe.replace(model={"adapter_trains": ["norms"]}, run={"rounds": 2}, privacy={"secrets": "entropy"})
    sottovoce.train(recipe, run, stop=StopAfter(1), progress=False)
    folder.rename(tmp_path / "gone")
    assert sottovoce.resume(run, progress=False).round == 2
    found, given = RunFolder(run).load_weights(), tensors_of("qwen3", 64)
    for ours, theirs in (("attention.query", "self_attn.q_proj"), ("feed_forward.down", "mlp.down_proj")):
        assert np.array_equal(found[f"base.blocks[1].{ours}.weight"], given[f"model.layers.1.{theirs}.weight"])
        assert np.any(found[f"base.blocks[1].{ours}.up"])
    norm = given["model.layers.1.input_layernorm.weight"]
    assert not np.array_equal(found["base.blocks[1].attention_norm.weight"], norm)
    assert sottovoce.ModelFolder.open(run).suggest("red tree", 1)


@pytest.mark.slow
def test_adapters_over_devices(store, vocabulary, tmp_path):
    """Devices get the weights of the base once; a server that stopped goes on, and sends them to nobody again."""
    shares = {"phone": 1, "silo": 12}
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, shares)
    devices = {
        "phone": make_device(tmp_path / "phone", store, "phone", 0, 1),
        "silo": make_device(tmp_path / "silo", store, "silo", 1, 12),
    }
    fleet, run, folder = InProcess(devices), tmp_path / "run", tmp_path / "base"
    model = registry.build("lstm", vocabulary.size, {"embedding": 4, "hidden": 5}, jax.random.key(4))
    weights = weights_of(model)
    folder.mkdir()
    save_file(weights, folder / "weights.safetensors")
    save_tokenizer(vocabulary, folder)
    write_card(folder)
    recipe = tiny_recipe(roster.path, model={"adapter_rank": 2, "initial": str(folder)})
    coordinator = Coordinator(roster, fleet, 1.0)
    sottovoce.train(recipe, run, coordinator=coordinator, stop=StopAfter(1), progress=False)
    sottovoce.resume(run, coordinator=coordinator, progress=False)
    sent = [line.get("frozen_bytes", 0) for line in RunFolder(run).diagnostics.read()]
    assert sent[0] > 0
    assert sent[1:] == [0, 0]
    found = RunFolder(run).load_weights()
    assert np.array_equal(found["base.projection.weight"], weights["projection"])
    assert np.any(found["base.projection.up"])
