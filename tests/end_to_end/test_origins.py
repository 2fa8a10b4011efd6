"""Checkpoints belong to the ledger beside them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_run import StopAfter, crash_after, make_recipe, make_store

import sottovoce
from sottovoce.build import assembly
from sottovoce.runs import checkpoint
from sottovoce.runs.ledger import StoreLedger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement_text import prose

NOT_ITS_OWN = "is not what this run released in round 3 by its ledger"


@pytest.fixture
def store(tmp_path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def recipe(store) -> Recipe:
    return make_recipe(store).replace(privacy={"secrets": "entropy"})


@pytest.fixture
def run(recipe, tmp_path) -> Path:
    """Stopped after three of six rounds."""
    return sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3)).path


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def test_an_edited_checkpoint_is_refused(run):
    """Edited by somebody who knows how its own hash is made."""
    saved, _ = checkpoint.latest(run / "checkpoints")
    assert saved is not None
    saved.arrays["0000"][0] += 1e-3
    checkpoint.save(run / "checkpoints", saved)
    with pytest.raises(DamagedRun, match=NOT_ITS_OWN):
        sottovoce.resume(run)
    newest(run).unlink()  # as it says: the one before is the run's own
    assert sottovoce.resume(run).ended == "finished"


def test_a_checkpoint_of_another_run_is_refused(recipe, run, tmp_path):
    other = sottovoce.train(recipe, tmp_path / "other", stop=StopAfter(3)).path
    shutil.copy(newest(other), newest(run))
    with pytest.raises(DamagedRun, match=NOT_ITS_OWN):
        sottovoce.resume(run)


def test_a_checkpoint_of_another_copy_is_refused(recipe, tmp_path, monkeypatch):
    """Of the same run, under the same salt: both copies have a round 3."""
    run = sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(2)).path
    shutil.copytree(run, tmp_path / "copy")
    sottovoce.resume(run, stop=StopAfter(1))
    sottovoce.resume(tmp_path / "copy", stop=StopAfter(1))
    shutil.copy(newest(tmp_path / "copy"), newest(run))
    with pytest.raises(DamagedRun, match=NOT_ITS_OWN):
        sottovoce.resume(run)


def test_a_checkpoint_that_says_another_round_is_refused(run):
    saved, _ = checkpoint.latest(run / "checkpoints")
    assert saved is not None
    checkpoint.save(run / "checkpoints", checkpoint.Checkpoint(2, saved.arrays, saved.facts))
    newest(run).unlink()
    with pytest.raises(DamagedRun):
        sottovoce.resume(run)


def test_a_run_that_ends_sooner_than_planned_is_evaluated_where_it_ends(recipe, tmp_path):
    """Two rounds were charged again, so the budget of eight ends after six."""
    budget = accounting.epsilon([(SampledGaussian(1.2, "poisson", 0.25), 8)], 1e-3, "rdp") * 1.001
    settings = recipe.replace(privacy={"epsilon": budget}, run={"rounds": 8, "evaluate_every": 100})
    crash_after(settings, tmp_path / "run", 6)
    for sums in (tmp_path / "run" / "secrets").glob("*.sums"):  # now it cannot be told that they are the same
        sums.unlink()
    result = sottovoce.resume(tmp_path / "run")
    assert (result.ended, result.round, result.statement.charged_again) == ("budget", 6, 2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "evaluation" in line] == [6]
    assert result.evaluation is not None


def test_a_run_that_is_refused_when_it_goes_on_is_evaluated_where_it_ended(recipe, tmp_path):
    """A copy of it did all rounds that the budget allows."""
    budget = accounting.epsilon([(SampledGaussian(1.2, "poisson", 0.25), 6)], 1e-3, "rdp") * 1.001
    settings = recipe.replace(privacy={"epsilon": budget}, run={"rounds": 6, "evaluate_every": 100})
    run = sottovoce.train(settings, tmp_path / "run", stop=StopAfter(3)).path
    shutil.copytree(run, tmp_path / "copy")
    assert sottovoce.resume(tmp_path / "copy").ended == "finished"
    before = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    result = sottovoce.resume(run)
    assert (result.ended, result.round) == ("budget", 3)
    assert result.evaluation is not None
    lines = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "evaluation" in line] == [3]
    assert before == [{name: line[name] for name in line if name != "evaluation"} for line in lines]
    written = (run / "record.jsonl").read_bytes()
    assert sottovoce.resume(run).evaluation is not None
    assert (run / "record.jsonl").read_bytes() == written


def test_a_new_run_without_its_seals_is_refused(run):
    for path in (run / "secrets").glob("*.seal"):
        path.unlink()
    with pytest.raises(DamagedRun, match=r"cannot read the secrets round-\d+\.seal"):
        sottovoce.resume(run)


def test_the_epsilon_of_a_run_counts_its_copies_and_no_round_twice(recipe, run, store, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    event = SampledGaussian(1.2, "poisson", 0.25)
    one, more = (accounting.epsilon([(event, count)], 1e-3, "rdp") for count in (6, 9))
    assert sottovoce.resume(run).statement.epsilon == pytest.approx(one)
    copied = sottovoce.resume(tmp_path / "copy").statement
    assert copied.epsilon == pytest.approx(more) == copied.epsilon_spent
    assert "3 more rounds were charged for other copies of the run" in prose(copied)
    again = sottovoce.resume(run).statement  # finished: it is written again, with what was charged since
    assert again.epsilon == pytest.approx(more)
    assert [count for _, count in again.charged] == [9]
    assert StoreLedger(store / "ledger.jsonl").spent() == [(event, 9)]


def test_a_copy_does_not_pass_the_budget_of_its_run(recipe, store, tmp_path):
    event = SampledGaussian(1.2, "poisson", 0.25)
    budget = accounting.epsilon([(event, 6)], 1e-3, "rdp") * 1.001
    run = sottovoce.train(recipe.replace(privacy={"epsilon": budget}), tmp_path / "run", stop=StopAfter(3)).path
    shutil.copytree(run, tmp_path / "copy")
    sottovoce.resume(run)
    for _ in range(2):  # nor the second time, when it has been looked at once
        copied = sottovoce.resume(tmp_path / "copy")
        assert (copied.ended, copied.round) == ("budget", 3)
        assert "would be charged again and pass the budget" in copied.notes[-1]
        assert copied.statement.epsilon <= budget
    assert StoreLedger(store / "ledger.jsonl").spent() == [(event, 6)]


def test_a_crash_after_a_copy_was_found_out_does_not_spare_it_its_charges(recipe, run, store, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "copy")
    sottovoce.resume(run)
    with monkeypatch.context() as patch:
        patch.setattr(StoreLedger, "charge", lambda *_: (_ for _ in ()).throw(RuntimeError("crash")))
        with pytest.raises(RuntimeError, match="crash"):
            sottovoce.resume(tmp_path / "copy")
    assert "charged to the store again" in sottovoce.resume(tmp_path / "copy").notes[0]
    assert sum(count for _, count in StoreLedger(store / "ledger.jsonl").spent()) == 6 + 3


def test_a_budget_counts_rounds_done_again_and_the_statement_lists_what_fits(recipe, store, tmp_path, monkeypatch):
    """Six rounds fit; one is done again, so five of them do."""
    event = SampledGaussian(1.2, "poisson", 0.25)
    full = accounting.epsilon([(event, 6)], 1e-3, "rdp")
    asked = recipe.replace(privacy={"epsilon": full * 1.001})
    crash_after(asked, tmp_path / "run", 5)
    real = assembly.fingerprint
    monkeypatch.setattr(assembly, "fingerprint", lambda *facts: real(*facts)[::-1])
    result = sottovoce.resume(tmp_path / "run")
    assert (result.ended, result.round) == ("budget", 5)
    assert result.statement.epsilon == pytest.approx(full)
    assert [count for _, count in result.statement.charged] == [6]
