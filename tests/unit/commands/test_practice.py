"""A practice: as many made-up people as declared, and nothing of the store's people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_run import StopAfter

import sottovoce
from sottovoce.commands.compare import compare_runs
from sottovoce.commands.new_run import forecast
from sottovoce.commands.release import release_run
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, USUAL_TOKENS_PER_USER, make_practice_store
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


def test_it_trains_the_recipe_and_charges_nobody_of_the_store(recipe: Recipe, store: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in sorted(store.rglob("*"))}
    trial = tmp_path / "trial"
    assert sottovoce.train(recipe, trial, stop=StopAfter(2), practice=True).ended == "stopped"
    result = sottovoce.resume(trial)
    assert (result.ended, result.statement.private, result.statement.practice) == ("finished", True, True)
    assert {path: path.read_bytes() for path in sorted(store.rglob("*"))} == before
    assert (trial / "store" / "ledger.jsonl").exists()  # the made-up people are
    refused = release_run(trial, tmp_path / "release")
    assert any("--practice" in reason for reason in refused.reasons)
    assert not (tmp_path / "release").exists()
    assert compare_runs([trial], users=1).runs[0].model.endswith(", synthetic people")


def test_a_run_on_the_store_of_a_practice_is_one_too_and_others_are_not(
    recipe: Recipe, begun: Callable[..., RunFolder], tmp_path: Path
):
    made = practised(recipe, tmp_path / "trial")
    assert read_statement(begun("again", data={"store": str(made)})).practice
    assert not read_statement(begun("real")).practice
    assert "practice" not in begun("other").read_statement()


@pytest.mark.slow
def test_it_is_forecast_without_a_folder(recipe: Recipe, tmp_path: Path):
    recipe = recipe.replace(data={"store": ""}, privacy={"users": 50})
    assert forecast(recipe, tmp_path / "trial", practice=True).store == "made-up people"
    assert not (tmp_path / "trial").exists()


def practised(recipe: Recipe, path: Path) -> Path:
    """The store of a practice of fifty people."""
    run = RunFolder(path)
    path.mkdir()
    made = make_practice_store(recipe.replace(privacy={"users": 50}), run)
    assert made.data.store == "demo:50"
    return run.own_store


def test_people_are_as_many_as_declared_whatever_the_store_holds(recipe: Recipe, store: Path, tmp_path: Path):
    """An attack: a store of half the people gives the same practice, byte for byte."""
    people = []
    for name in ("whole", "half"):
        if name == "half":
            facts = json.loads((store / "store.json").read_text())
            few = Store.open(store).head(facts["splits"]["train"]["users"] // 2)
            _replace_people(store, few)
        made = practised(recipe, tmp_path / name)
        people.append((made / "train.arrow").read_bytes())
        trained = Store.open(made)
        assert 40 <= trained.users <= 56
        assert trained.vocabulary.fingerprint == Store.open(store).vocabulary.fingerprint
        assert trained.tokens_per_user == Store.open(store).tokens_per_user
    assert people[0] == people[1]


def _replace_people(store: Path, few: Store) -> None:
    from sottovoce.data.store import write_store

    test = Store.open(store, "test")
    for path in store.glob("*.arrow"):
        path.unlink()
    write_store(store, few, test)


def test_a_store_that_is_not_there_is_made_up_as_prepare_would(recipe: Recipe, tmp_path: Path):
    gone = Store.open(practised(recipe.replace(data={"store": "gone"}), tmp_path / "a"))
    demo = Store.open(practised(recipe.replace(data={"store": "demo:9"}), tmp_path / "b"))
    assert gone.tokens_per_user == USUAL_TOKENS_PER_USER
    assert gone.vocabulary.fingerprint == Vocabulary.public().fingerprint
    assert demo.tokens_per_user == DEMO_TOKENS_PER_USER


def test_a_practice_of_nobody_is_refused_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(SottoError, match="users is not set"):
        sottovoce.train(Recipe(), tmp_path / "trial", practice=True)
    assert not (tmp_path / "trial").exists()
