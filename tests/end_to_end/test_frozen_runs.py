"""A run whose model has a frozen part: stopped, resumed, released weights, card, traffic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from family import HalfFrozen
from sottovoce.data.store import Store
from sottovoce.models.contract import parameter_count, split
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import DamagedRun


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def half(store: Path) -> HalfFrozen:
    return HalfFrozen.make(Store.open(store).vocabulary.size)


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits_and_leaves_the_frozen_part_alone(store, half, tmp_path):
    recipe = make_recipe(store)
    sottovoce.train(recipe, tmp_path / "whole", model=half)
    sottovoce.train(recipe, tmp_path / "run", model=half, stop=StopAfter(2))
    # Of a model that is given again only the shape counts: the run has its own frozen part.
    result = sottovoce.resume(tmp_path / "run", model=HalfFrozen.make(half.order.size, seed=8))
    whole, again = (RunFolder(tmp_path / name).load_weights() for name in ("whole", "run"))
    assert result.round == 6
    assert all(np.array_equal(whole[name], again[name]) for name in whole)
    assert np.array_equal(again["lstm.embedding"], half.lstm.embedding)
    assert np.array_equal(again["order"], half.order)
    assert not np.array_equal(again["lstm.projection"], half.lstm.projection)
    card = json.loads((tmp_path / "run" / "model" / "card.json").read_text())
    params = parameter_count(split(half)[0])
    assert (card["parameters"], card["trained_parameters"]) == (parameter_count(half), params)
    sent, frozen = card["bytes"], sum(array.nbytes for array in RunFolder(tmp_path / "run").load_frozen().values())
    assert sent["down"] == sent["up"] == 4 * params
    assert sent["frozen"] == frozen  # once, to each of the 36 users
    assert sent["total"] == 6 * 9 * 8 * params + 36 * frozen
    evaluated = sottovoce.evaluate_run(
        tmp_path / "run", model=half, extra=sottovoce.Extra(personalise=sottovoce.Personalise())
    )
    assert evaluated.personalised.after.targets > 0
    (tmp_path / "run" / "frozen.safetensors").write_bytes(
        (tmp_path / "run" / "model" / "weights.safetensors").read_bytes()
    )
    with pytest.raises(DamagedRun, match="is not the frozen part that the run began with"):
        sottovoce.resume(tmp_path / "run", model=half)


@pytest.mark.slow
def test_central_training_leaves_the_frozen_part_alone(store, half, tmp_path):
    recipe = make_recipe(store).replace(
        privacy={"mode": "none", "noise_multiplier": None}, run={"algorithm": "central", "rounds": 1}
    )
    sottovoce.train(recipe, tmp_path / "run", model=half)
    weights = RunFolder(tmp_path / "run").load_weights()
    assert np.array_equal(weights["lstm.embedding"], half.lstm.embedding)
    assert not np.array_equal(weights["lstm.projection"], half.lstm.projection)
