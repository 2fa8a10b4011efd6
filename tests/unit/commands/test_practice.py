"""A practice: as many synthetic people as declared, and nothing of the store's people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_run import StopAfter

import sottovoce
from sottovoce.commands.compare import compare_runs
from sottovoce.commands.practice import TOKENS_PER_USER, make_people, practice
from sottovoce.commands.release import release_run
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.mark.slow
def test_it_trains_the_recipe_and_charges_nobody_of_the_store(recipe: Recipe, store: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in sorted(store.rglob("*"))}
    result = practice(recipe.replace(run={"rounds": 1}), tmp_path / "trial")
    assert (result.ended, result.path) == ("finished", tmp_path / "trial" / "run")
    assert result.statement.private
    assert {path: path.read_bytes() for path in sorted(store.rglob("*"))} == before
    assert (tmp_path / "trial" / "store" / "ledger.jsonl").exists()  # the synthetic people are
    assert sottovoce.resume(result.path).statement.practice
    refused = release_run(result.path, tmp_path / "release")
    assert refused.reasons == ("it was trained on synthetic people, by `sotto practice`: there is nothing to release",)
    assert not (tmp_path / "release").exists()
    assert RunFolder.open(result.path).secrets.exists()
    assert compare_runs([result.path], users=1).runs[0].model.endswith(", synthetic people")


def test_a_run_on_the_store_of_a_practice_is_one_too_and_others_are_not(
    recipe: Recipe, begun: Callable[..., RunFolder], tmp_path: Path
):
    made = make_people(recipe.replace(privacy={"users": 50}), tmp_path / "trial")
    assert read_statement(begun("again", data={"store": made.data.store})).practice
    assert not read_statement(begun("real")).practice
    assert "practice" not in begun("other").read_statement()


def test_it_can_be_stopped_and_resumed(recipe: Recipe, store: Path, tmp_path: Path):
    assert practice(recipe, tmp_path / "trial", stop=StopAfter(2)).ended == "stopped"
    with pytest.raises(SottoError, match=r"go on with `sotto resume .*trial/run`"):
        practice(recipe, tmp_path / "trial")
    assert sottovoce.resume(tmp_path / "trial" / "run").ended == "finished"


def test_people_are_as_many_as_declared_whatever_the_store_holds(recipe: Recipe, store: Path, tmp_path: Path):
    """An attack: a store of half the people gives the same practice, byte for byte."""
    people = []
    for name in ("whole", "half"):
        if name == "half":
            facts = json.loads((store / "store.json").read_text())
            few = Store.open(store).head(facts["splits"]["train"]["users"] // 2)
            _replace_people(store, few)
        made = make_people(recipe.replace(privacy={"users": 50}), tmp_path / name)
        assert made.data.store == str(tmp_path / name / "store")
        people.append((tmp_path / name / "store" / "train.arrow").read_bytes())
        trained = Store.open(made.data.store)
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
    gone = make_people(recipe.replace(data={"store": "gone"}, privacy={"users": 20}), tmp_path / "a")
    demo = make_people(recipe.replace(data={"store": "demo:9"}, privacy={"users": 20}), tmp_path / "b")
    assert Store.open(gone.data.store).tokens_per_user == TOKENS_PER_USER
    assert Store.open(gone.data.store).vocabulary.fingerprint == Vocabulary.public().fingerprint
    assert Store.open(demo.data.store).tokens_per_user == DEMO_TOKENS_PER_USER


def test_what_cannot_be_tried_is_refused_and_leaves_nothing(recipe: Recipe, tmp_path: Path):
    with pytest.raises(SottoError, match="users is not set"):
        make_people(Recipe(), tmp_path / "trial")
    assert not (tmp_path / "trial").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(SottoError, match="not an empty folder"):
        make_people(recipe, tmp_path / "used")
