"""Users in turn through the front door: going on in the middle of it, what is charged, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_run import StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.commands import new_run
from sottovoce.commands.release import release_run
from sottovoce.data.store import Store
from sottovoce.runs import checkpoint as checkpoints
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.ledger import chained
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement_text import prose


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


def queued(store: Path) -> Recipe:
    return make_recipe(store).replace(run={"checkpoint_every": 100})


def arrays_of(run: Path) -> list[np.ndarray]:
    saved = checkpoints.newest(run / "checkpoints")
    assert saved is not None
    return [saved.arrays[name] for name in sorted(saved.arrays)]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def charges(ledger: Path) -> list[dict]:
    return [line for line in read(ledger) if "event" in line]


def test_in_turn_every_user_is_used_once_and_charged_for_one_round(store, tmp_path):
    """36 declared, about six a round, six rounds: all of them together cost what one of them costs."""
    recipe = queued(store).replace(privacy={"sampling": "in_turn", "cohort": 6})
    result = sottovoce.train(recipe, tmp_path / "run")
    one = SampledGaussian(1.2, "fixed", 1.0, cohort=1, users=1)
    assert result.statement.epsilon == accounting.epsilon([(one, 1)], 1e-3, "rdp")
    assert result.statement.relation == "replace-one-user"
    assert result.statement.turns == 1
    asked = [line["users"] for line in read(tmp_path / "run" / "diagnostics.jsonl")]
    assert sum(asked) == Store.open(store).users
    assert len(set(asked)) > 1  # who is in a group is not counted
    assert {line["epsilon"] for line in read(tmp_path / "run" / "record.jsonl")} == {result.statement.epsilon}
    kinds = [line["event"]["kind"] for line in charges(tmp_path / "run" / "ledger.jsonl")]
    assert kinds == ["sampled-gaussian", *["covered"] * 5]
    assert [(line["event"], line["count"]) for line in charges(store / "ledger.jsonl")] == [(one.to_json(), 1)]
    # Another run on the same people, and a seventh round: two turns more.
    again = sottovoce.train(recipe.replace(run={"rounds": 7}), tmp_path / "again")
    assert again.statement.epsilon == accounting.epsilon([(one, 2)], 1e-3, "rdp")
    assert again.statement.epsilon_store == accounting.epsilon([(one, 3)], 1e-3, "rdp")


def test_with_a_least_separation_a_run_that_goes_on_has_the_same_cohorts_and_charges(store, tmp_path):
    """When a user joins follows from their name: nothing of it has to be kept."""
    bounded = {"sampling": "min_separation", "cohort": 6, "min_separation": 4, "participations": 2}
    recipe = queued(store).replace(privacy=bounded)
    whole = sottovoce.train(recipe, tmp_path / "whole")
    sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3))
    result = sottovoce.resume(tmp_path / "run")
    one = SampledGaussian(1.2, "fixed", 1.0, cohort=1, users=1)
    assert result.statement.epsilon == whole.statement.epsilon == accounting.epsilon([(one, 2)], 1e-3, "rdp")
    text = "one user joins 2 planned rounds at most, two of them 4 rounds apart"
    assert text in prose(result.statement)
    kinds = [line["event"]["kind"] for line in charges(tmp_path / "run" / "ledger.jsonl")]
    assert kinds == ["sampled-gaussian", *["covered"] * 3, "sampled-gaussian", "covered"]
    users = [[line["users"] for line in read(tmp_path / name / "diagnostics.jsonl")] for name in ("whole", "run")]
    assert users[0] == users[1]
    assert sum(users[0]) > 18
    for one, other in zip(arrays_of(tmp_path / "whole"), arrays_of(tmp_path / "run"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_in_turn_a_run_can_be_released_if_every_turn_was_paid_for(store, tmp_path):
    recipe = make_recipe(store).replace(
        privacy={"sampling": "in_turn", "cohort": 18, "secrets": "entropy"}, run={"rounds": 3}
    )
    sottovoce.train(recipe, tmp_path / "run")
    ledger = store / "ledger.jsonl"
    whole = ledger.read_text()
    line, *commits = read(ledger)
    assert line["count"] == 2
    ledger.with_suffix(".head").unlink()
    lines = [{**line, "count": 1}, *commits]
    ledger.write_bytes(chained([{name: part for name, part in each.items() if name != "check"} for each in lines]))
    assert "lacks 1 of the run's 3 charges" in " ".join(release_run(tmp_path / "run", tmp_path / "out").reasons)
    ledger.write_text(whole)
    assert release_run(tmp_path / "run", tmp_path / "out").released


@pytest.mark.parametrize("turns", [None, "of others"])
def test_in_turn_other_names_than_the_ledgers_are_refused(store, tmp_path, monkeypatch, turns):
    recipe = queued(store).replace(privacy={"sampling": "in_turn", "cohort": 6, "secrets": "entropy"})
    with monkeypatch.context() as begun:
        real = new_run.assemble_for
        begun.setattr(new_run, "assemble_for", lambda *given, **more: replace(real(*given, **more), turns=turns))
        new_run.begin(recipe, tmp_path / "run", new_run.Context())
    with pytest.raises(SottoError, match="have other names"):
        sottovoce.resume(tmp_path / "run")


@pytest.mark.parametrize("sampling", ["fixed", "in_turn"])
def test_a_run_is_not_refused_because_a_person_is_missing(store, tmp_path, sampling):
    people = Store.open(store).users
    recipe = make_recipe(store).replace(
        privacy={"sampling": sampling, "cohort": 6, "users": people + 1}, run={"rounds": 2}
    )
    assert sottovoce.train(recipe, tmp_path / "run").round == 2


def test_in_turn_the_noise_for_a_budget_is_found(store, tmp_path):
    recipe = queued(store).replace(
        privacy={"sampling": "in_turn", "cohort": 6, "noise_multiplier": None, "epsilon": 4.0}, run={"rounds": 2}
    )
    result = sottovoce.train(recipe, tmp_path / "run")
    assert 3.9 < result.statement.epsilon <= 4.0
    assert result.round == 2
