"""Every kind of model through the front door: trained, stopped and taken up, measured, reported, started from."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from small_world import results_of
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from family import FAMILY, of_family
from sottovoce.build.assembly import load_model, weights_of
from sottovoce.commands.evaluate import evaluate_run
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import report_run
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

# Beside the LSTM, which all other tests train.
KINDS = ("gru", "stacked_lstm", "gated_cnn", "transformer", "gpt2, in pieces")
VARIANTS = [name for name in FAMILY if "," in name]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("kinds"))


def recipe_of(store, name):
    kind = name.partition(",")[0]
    return Recipe.from_dict({**make_recipe(store).to_dict(), "model": {"kind": kind, **FAMILY[name]}})


def weights(run):
    return jax.tree.leaves(ModelFolder.open(run).model)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_run_of_every_kind_goes_all_the_way(store, tmp_path, name):
    recipe = recipe_of(store, name)
    sottovoce.train(recipe, tmp_path / "whole")
    stopped = sottovoce.train(recipe, tmp_path / "stopped", stop=StopAfter(3))
    assert (stopped.ended, stopped.round) == ("stopped", 3)
    sottovoce.resume(tmp_path / "stopped")
    for one, other in zip(weights(tmp_path / "whole"), weights(tmp_path / "stopped"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert results_of(tmp_path / "stopped") == results_of(tmp_path / "whole")
    # Evaluation leaves nothing out: twice the same.
    first, second = (evaluate_run(tmp_path / "whole")[0] for _ in range(2))
    assert first == second
    assert first.targets > 0
    assert recipe.model.kind in report_run(tmp_path / "whole").read_text()
    # What was not set is filled in.
    kept = Recipe.load(tmp_path / "whole" / "recipe.toml").model
    assert (kept.embedding, kept.layers) == (recipe.model.embedding, recipe.model.layers or kept.layers)
    assert name == "gru" or kept.layers is not None
    # Another run starts from it, but not one of another kind.
    plain = {"mode": "none", "noise_multiplier": None}
    further = recipe.replace(model={"initial": str(tmp_path / "whole")}, privacy=plain, run={"rounds": 1})
    sottovoce.train(further, tmp_path / "further")
    other = recipe_of(store, "lstm").replace(model={"initial": str(tmp_path / "whole")}, privacy=plain)
    with pytest.raises(SottoError, match="do not fit"):
        sottovoce.train(other, tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd", "central"])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_learns(store, tmp_path, name, algorithm):
    recipe = recipe_of(store, name).replace(
        privacy={"mode": "none", "noise_multiplier": None, "clip_norm": 5.0},
        server={"optimiser": "adam", "learning_rate": 0.1},
        run={"algorithm": algorithm, "rounds": 8},
    )  # fmt: skip
    sottovoce.train(recipe, tmp_path / "run")
    losses = [line["loss"] for line in RunFolder(tmp_path / "run").diagnostics.read()]
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "," in name else name for name in FAMILY]
)
def test_weights_that_are_kept_make_the_same_model(name):
    model = of_family(name)
    again = load_model(jax.tree.map(np.zeros_like, model), weights_of(model))
    for one, other in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_key_that_the_kind_does_not_have_is_refused_before_anybody_is_charged(store, tmp_path):
    recipe = make_recipe(store).replace(model={"dropout": 0.5})
    with pytest.raises(SottoError, match=r"model.dropout=0.5 has no meaning for model.kind='lstm'.*stacked_lstm"):
        sottovoce.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    tied = make_recipe(store).replace(model={"kind": "gated_cnn", "tied": True})
    with pytest.raises(SottoError, match="hidden=5 cannot be tied to an embedding of size 4"):
        sottovoce.train(tied, tmp_path / "run")
    assert not (tmp_path / "run").exists()
