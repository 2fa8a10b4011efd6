"""The forecast of a run: what it announces is what the ledgers say at the end, and asking costs nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tiny_run import make_store

import sottovoce
from sottovoce.commands.clock import Pace
from sottovoce.commands.forecast import Declined
from sottovoce.commands.new_run import forecast
from sottovoce.data.store import Store
from sottovoce_evidence.recipe import Recipe


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(each): each.read_bytes() if each.is_file() else None for each in sorted(folder.rglob("*"))}


def test_what_is_announced_is_what_the_ledgers_say_at_the_end(recipe: Recipe, store: Path, tmp_path: Path):
    """For a first run on a store, and for a second one, whose total has both."""
    for name in ("first", "second"):
        announced = []
        fresh = recipe.replace(privacy={"secrets": "entropy"}, run={"rounds": 2})
        result = sottovoce.train(fresh, tmp_path / name, confirm=lambda found, to=announced: to.append(found) or True)
        (found,) = announced
        assert found.epsilon == pytest.approx(result.statement.epsilon, rel=1e-9)
        assert found.epsilon_store == pytest.approx(result.statement.epsilon_store, rel=1e-6)
        assert (found.rounds, found.delta, found.start) == (2, recipe.privacy.delta, "nothing")
        assert found.seconds > 0
    assert found.epsilon_store > found.epsilon


def test_before_the_machine_is_timed_it_is_said(recipe: Recipe, store: Path, monkeypatch):
    said = []
    monkeypatch.setattr("sottovoce.commands.forecast._pace", lambda *inputs: said.append("timed") or Pace())
    forecast(recipe, before_timing=lambda: said.append("told"))
    assert said == ["told", "timed"]
    monkeypatch.setattr("sottovoce.commands.forecast._trains_here", lambda *inputs: False)
    forecast(recipe, before_timing=lambda: said.append("told"))
    assert said == ["told", "timed"]


def test_a_forecast_changes_nothing(recipe: Recipe, store: Path, tmp_path: Path):
    sottovoce.train(recipe, tmp_path / "before", stop=lambda: True)  # the ledger has a charge
    before = contents(tmp_path)
    assert forecast(recipe, tmp_path / "deep" / "run").epsilon_store > sottovoce.forecast(recipe).epsilon > 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize("answer", [lambda found: False, lambda found: None])
def test_a_run_that_is_declined_charges_nobody_and_leaves_nothing(recipe: Recipe, store: Path, tmp_path: Path, answer):
    before = contents(tmp_path)
    with pytest.raises(Declined, match="nobody was charged"):
        sottovoce.train(recipe, tmp_path / "run", confirm=answer)
    assert contents(tmp_path) == before


def test_a_stop_that_was_asked_for_before_the_run_began_declines_it(recipe: Recipe, store: Path, tmp_path: Path):
    before = contents(tmp_path)
    with pytest.raises(Declined):
        sottovoce.train(recipe, tmp_path / "run", stop=lambda: True, confirm=lambda found: True)
    assert contents(tmp_path) == before


def test_what_does_not_fit_together_is_named(recipe: Recipe, store: Path):
    people = Store.open(store).users
    fine = forecast(recipe.replace(privacy={"users": people, "cohort": 9}))
    assert (fine.mismatches, fine.noise_std) == ((), pytest.approx(0.3 * 1.2 / 9))
    (mismatch,) = forecast(recipe.replace(privacy={"users": 3 * people})).mismatches
    assert f"about {people:,} users" in mismatch
    assert f"declares {3 * people:,}" in mismatch
    (mismatch,) = forecast(recipe.replace(privacy={"users": people // 10, "cohort": people // 10})).mismatches
    assert "e+0" not in mismatch
    assert f"a round will have about {people:,} users, not {people // 10}" in mismatch
    noisy = " ".join(forecast(recipe.replace(privacy={"noise_multiplier": 300.0})).warnings)
    assert "times as long as an average update" in noisy
    assert "so small" in noisy
    assert "promises next to nothing" in " ".join(forecast(recipe.replace(privacy={"noise_multiplier": 0.3})).warnings)
    assert "more than half" in " ".join(forecast(recipe.replace(privacy={"cohort": 30})).warnings)
    assert "users to train on are few" in " ".join(fine.warnings)
    large = recipe.replace(privacy={"delta": 0.5 / recipe.privacy.users})
    assert "not well below it" in " ".join(forecast(large).warnings)


def test_made_up_people_are_not_named_by_a_folder_that_the_owner_never_made(recipe: Recipe):
    assert forecast(recipe.replace(data={"store": "demo:20"})).store == "made-up people"


def test_of_a_long_run_a_quarter_of_its_rounds_is_named_where_epsilon_stays(recipe: Recipe, store: Path, monkeypatch):
    asked = Recipe.from_dict(_with_epsilon(recipe.replace(run={"rounds": 40}).to_dict()))
    monkeypatch.setattr("sottovoce.commands.forecast._seconds_a_round", lambda *inputs: 400.0)
    assert forecast(asked).shorter.rounds == 10
    assert forecast(asked.replace(run={"rounds": 37})).shorter is None, "nine rounds were never measured"
    assert forecast(recipe.replace(run={"rounds": 40})).shorter is None, "its noise is given, not its ε"
    assert forecast(asked.replace(privacy={"mode": "none"})).shorter is None
    monkeypatch.setattr("sottovoce.commands.forecast._seconds_a_round", lambda *inputs: 4.0)
    assert forecast(asked).shorter is None


def _with_epsilon(values: dict[str, Any]) -> dict[str, Any]:
    privacy = {name: value for name, value in values["privacy"].items() if name != "noise_multiplier"}
    return {**values, "privacy": {**privacy, "epsilon": 5.0, "accountant": "moments"}}


def test_a_run_that_is_not_private_charges_nobody(recipe: Recipe, store: Path):
    found = forecast(recipe.replace(privacy={"mode": "none"}))
    assert not found.private
    assert math.isinf(found.epsilon_store)
    assert found.warnings == ()


def test_one_person_moves_a_warning_for_the_owner_and_nothing_that_others_see(recipe: Recipe, tmp_path: Path, capfd):
    """At the threshold of a factor of two: the same status, and the same files in the run's folder."""
    from sottovoce.cli.main import main

    seen = []
    for name, users in (("one", 40), ("other", 39)):
        folder = tmp_path / name
        folder.mkdir()
        store = make_store(folder, users=users)
        declared = 2 * Store.open(tmp_path / "one" / "store").users - 1
        recipe_file = folder / "recipe.toml"
        chosen = recipe.replace(data={"store": str(store)}, privacy={"users": declared}, run={"rounds": 1})
        recipe_file.write_text(chosen.to_toml())
        with pytest.raises(SystemExit) as ended:
            main(["train", str(recipe_file), "--out", str(folder / "run")])
        err = capfd.readouterr().err
        public = {
            path.relative_to(folder): path.stat().st_mode
            for path in sorted((folder / "run").rglob("*"))
            if path.is_file() and path.stat().st_mode & 0o044
        }
        seen.append((ended.value.code, list(public.items())))
        texts = [(folder / each).read_bytes() for each in public if each.suffix != ".safetensors"]
        assert not any(b"about" in text and b"users to train on" in text for text in texts)
        assert ("warning: the store has about" in err) == (name == "other")
    assert seen[0] == seen[1]


def test_of_sampled_examples_those_with_text_are_compared_with_what_is_declared(recipe: Recipe, store: Path):
    """The people have 14 tokens of 16: four examples of four each."""
    privacy = {"examples_per_user": 4, "cohort": 30, "accountant": "pld", "secrets": "entropy"}
    els = recipe.replace(privacy=privacy, local={"tokens": 4}, run={"algorithm": "els", "rounds": 2})
    found = sottovoce.forecast(els)
    assert found.sampled == "examples"
    assert not found.mismatches
    assert not any("join every round" in warning for warning in found.warnings)
    (warning,) = sottovoce.forecast(els.replace(privacy={"total_weight": 600.0})).mismatches
    assert "about 140 examples with text, and 600 are declared" in warning
