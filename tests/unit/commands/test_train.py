"""A run before its first round and after its last: what is refused, and what is written. One test plays rounds."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from tiny_run import make_store

import sottovoce
from sottovoce.commands import export, train
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.new_run import Context, begin
from sottovoce.commands.train import Training
from sottovoce.data import store as stores
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store
from sottovoce.local.objective import plain
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.checkpoint import last_round
from sottovoce.runs.folder import WEIGHTS, RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce.training.types import CohortSum
from sottovoce_evidence.errors import DamagedRun, LostProcess, SottoError
from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "_rounds", lambda self: iter(()))


def test_training_opens_and_hashes_its_store_once(recipe, store, tmp_path, monkeypatch, no_rounds):
    """A store of gigabytes takes seconds to hash: neither its file nor its rows are read twice."""
    opened, hashed, read = [], [], []
    real_open, real_hash, real_rows = Store.open.__func__, stores.sha256_of, stores.Rows.chunks

    def count_open(cls, folder, split="train", **more):
        opened.append(split)
        return real_open(cls, folder, split, **more)

    monkeypatch.setattr(Store, "open", classmethod(count_open))
    monkeypatch.setattr(stores, "sha256_of", lambda path, most: hashed.append(path.name) or real_hash(path, most))
    monkeypatch.setattr(stores.Rows, "chunks", lambda self: read.append(1) or real_rows(self))
    sottovoce.train(recipe, tmp_path / "run")
    assert sorted(opened) == ["test", "train"]
    assert hashed.count("train.arrow") == hashed.count("test.arrow") == 1
    assert len(read) == 1


@pytest.mark.parametrize(
    ("privacy", "alone"),
    [({"mode": "none"}, True), ({"mode": "experiment"}, True), ({}, True), ({"secrets": "entropy"}, False)],
    ids=["no noise", "experiment", "seeded", "private"],
)
def test_a_model_that_protects_nobody_is_for_the_owner_alone(begun, privacy, alone):
    run, umask = begun(privacy=privacy), os.umask(0)
    os.umask(umask)
    folder, file = (0o700, 0o600) if alone else (0o777 & ~umask, 0o666 & ~umask)
    assert {path.stat().st_mode & 0o777 for path in (run.path, run.model)} == {folder}
    assert {path.stat().st_mode & 0o777 for path in (run.model / WEIGHTS, run.tokenizer_file())} == {file}
    assert export._is_for_owner_alone(ModelFolder.open(run.path)) is alone


def test_a_model_of_public_text_is_for_anyone(recipe, tmp_path, no_rounds):
    (tmp_path / "public.txt").write_text("red green blue sky\n" * 40)
    words = Store.open(recipe.data.store).vocabulary
    prepare([tmp_path / "public.txt"], tmp_path / "public", words, Grouping(tokens_per_user=16, plain_text=True))
    run, other = tmp_path / "run", tmp_path / "other"
    public = recipe.replace(data={"store": str(tmp_path / "public")}, privacy={"mode": "none"})
    sottovoce.train(public, run)
    other.mkdir()
    assert run.stat().st_mode == (run / "model").stat().st_mode == other.stat().st_mode
    assert not export._is_for_owner_alone(ModelFolder.open(run))
    # From a model of people that protects nobody, it is not.
    people = tmp_path / "people"
    sottovoce.train(recipe.replace(privacy={"mode": "none"}), people)
    start = {
        "data": {"store": str(tmp_path / "public")},
        "privacy": {"mode": "none"},
        "model": {"initial": str(people)},
    }
    sottovoce.train(recipe.replace(**start), tmp_path / "then")
    assert (tmp_path / "then").stat().st_mode & 0o777 == 0o700


def test_the_store_of_a_run_is_hashed_once_also_where_the_run_makes_it(recipe, tmp_path, monkeypatch, no_rounds):
    read = []
    real = stores.Rows.chunks
    monkeypatch.setattr(stores.Rows, "chunks", lambda self: read.append(1) or real(self))
    sottovoce.train(recipe.replace(data={"store": "demo:40"}), tmp_path / "run")
    assert len(read) == 1


def test_progress_is_shown_before_the_first_round_and_the_result_is_written(recipe, tmp_path, no_rounds):
    seen = []
    result = sottovoce.train(recipe, tmp_path / "run", observer=seen.append)
    assert [(one.round, one.rounds, one.users, one.seconds) for one in seen] == [(0, 6, 0, 0.0)]
    assert (result.path, result.round, result.ended, result.evaluation) == (tmp_path / "run", 0, "stopped", None)
    run = RunFolder.open(tmp_path / "run")
    assert read_statement(run).to_json() == result.statement.to_json()
    assert (result.statement.private, result.statement.rounds_planned, result.statement.rounds_done) == (True, 6, 0)
    card = run.read_card()
    assert (card["trained_on"], card["rounds"], card["kind"]) == ("people", 0, "lstm")


def test_the_time_left_of_a_run_that_goes_on_is_known_at_once(recipe, tmp_path, no_rounds):
    sottovoce.train(recipe, tmp_path / "run")
    RunFolder.open(tmp_path / "run").diagnostics.append({"round": 0, "seconds": 2.5})
    seen = []
    sottovoce.resume(tmp_path / "run", observer=seen.append)
    assert seen[0].seconds_left == 6 * 2.5


def test_train_and_resume_take_the_same_from_their_caller(recipe, tmp_path, monkeypatch):
    contexts = []
    monkeypatch.setattr(train, "_train", lambda run, context, *rest: contexts.append(context))
    monkeypatch.setattr(train, "begin", lambda recipe, out, context, stop: None)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    given = {"model": "a model", "objective": "an objective", "group": "a group", "also_evaluate_on": "a text"}
    sottovoce.train(recipe, tmp_path, **given, coordinator="a coordinator")
    sottovoce.resume(tmp_path, **given, coordinator="a coordinator")
    assert contexts[0] == contexts[1] == Context(**given, coordinator="a coordinator")
    with pytest.raises(TypeError, match="modle"):
        sottovoce.resume(tmp_path, modle="a model")


def opened_again(run: RunFolder) -> Training:
    return Training(run, Context())


def test_a_run_goes_on_from_its_last_checkpoint(run):
    training = opened_again(run)
    assert (training.state.round, training.notes) == (0, [])
    assert training.payments.planned == 6


def test_a_run_goes_on_where_there_is_room_for_its_checkpoints_alone(run, monkeypatch, no_rounds):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=10))
    with pytest.raises(SottoError, match=f"MB more.*; free some space there, then go on with `sotto resume {run.path}"):
        sottovoce.resume(run.path)
    monkeypatch.setattr(Training, "_rounds_planned", 0)  # nothing is left to do
    sottovoce.resume(run.path)


def test_a_lost_process_moves_no_checkpoint(recipe, store, tmp_path, monkeypatch):
    """It may be lost for whom it trains: the rounds since the last checkpoint are done again, with the same users."""

    def summed(group, assembly):
        calls = []

        def sum_updates(*arguments):
            calls.append(1)
            if len(calls) == 3:
                raise LostProcess("process 1 is gone")
            return assembly.sum_updates(*arguments)

        return sum_updates

    with monkeypatch.context() as broken:
        broken.setattr(train, "sum_over", summed)
        with pytest.raises(LostProcess):
            sottovoce.train(recipe.replace(run={"rounds": 3}), tmp_path / "run")
    assert last_round(tmp_path / "run" / "checkpoints") == 0
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").rounds == 0
    resumed = sottovoce.resume(tmp_path / "run")
    assert (resumed.round, resumed.statement.starts) == (3, 2)
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").rounds == 3


def test_an_edited_recipe_is_refused(run):
    run.recipe_file.write_text(Recipe.of(run).replace(run={"rounds": 9}).to_toml())
    with pytest.raises(SottoError, match="was edited after the run began"):
        opened_again(run)


def test_another_store_is_refused(run, store, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_store(tmp_path / "other", seed=9)
    for name in ("train.arrow", "test.arrow", "store.json"):
        (store / name).write_bytes((other / name).read_bytes())
    with pytest.raises(SottoError, match="is not the store that"):
        opened_again(run)


def test_other_code_is_refused(run):
    def twice(*arguments):
        loss, hits = plain(*arguments)
        return 2 * loss, hits

    with pytest.raises(SottoError, match="goes on from Python"):
        Training(run, Context(objective=twice))


def test_a_run_without_a_checkpoint_that_can_be_read_is_refused(run):
    for path in run.checkpoints.iterdir():
        path.write_bytes(b"")
    with pytest.raises(DamagedRun, match="does not have the checkpoint of round 0 that the run committed"):
        opened_again(run)


def test_a_checkpoint_that_was_not_paid_for_is_refused(run):
    training = opened_again(run)
    training.state = training.state._replace(round=1)
    training._checkpoint(6, declared=True)
    with pytest.raises(DamagedRun, match="has no entry for round 1"):
        opened_again(run)


def test_the_owner_is_told_when_far_more_users_are_declared_than_there_are(recipe, tmp_path):
    context = Context()
    many = recipe.replace(privacy={"users": 360, "delta": 1e-3})
    opened = begin(many, tmp_path / "run", context)
    (note,) = Training(RunFolder(tmp_path / "run"), context, opened).notes
    assert "the recipe declares 360" in note
    assert "0.1 times as large" in note


@pytest.mark.parametrize(
    ("every", "done", "due"), [(0, 6, False), (4, 3, False), (4, 4, True), (4, 6, True), (7, 6, True)]
)
def test_a_run_is_evaluated_every_few_rounds_and_at_the_end(run, monkeypatch, every, done, due):
    measured = []
    monkeypatch.setattr(train, "evaluate", lambda model, store, rows: measured.append(len(rows)))
    training = opened_again(run)
    training.recipe = training.recipe.replace(run={"evaluate_every": every, "evaluate_users": 2})
    training.state = training.state._replace(round=done)
    training._evaluate_if_due()
    assert measured == ([2] if due else [])


def test_the_statement_names_what_the_grouping_of_records_leaves_uncovered(recipe, store, tmp_path, no_rounds):
    people = [([f"u{n}", f"u{n + 1}"], "red green blue " * 4) for n in range(40)]
    shared = Grouping(tokens_per_user=16, test_users=0.1, owners_per_record=2, every_record_is_a_user=True)
    prepare(people, tmp_path / "shared", Store.open(store).vocabulary, shared)
    before = sottovoce.train(recipe, tmp_path / "usual").statement.not_covered
    changed = recipe.replace(data={"store": str(tmp_path / "shared")})
    after = sottovoce.train(changed, tmp_path / "run").statement.not_covered
    assert set(after) - set(before) == {"shared_records", "records_as_users"}


@pytest.mark.parametrize(
    ("given", "shown", "observed"),
    [
        ({}, True, False),
        ({"progress": False}, False, False),
        ({"observer": True}, False, True),
        ({"observer": True, "progress": True}, True, True),
    ],
)
def test_a_live_line_is_shown_unless_another_observes(recipe, tmp_path, monkeypatch, no_rounds, given, shown, observed):
    lines, seen = [], []
    line = Mock(side_effect=lines.append)
    monkeypatch.setattr(train, "live_line", lambda name: nullcontext(line))
    chosen = given | ({"observer": seen.append} if "observer" in given else {})
    sottovoce.train(recipe, tmp_path / "run", **chosen)
    assert (len(lines), len(seen)) == (int(shown), int(observed))


@pytest.mark.parametrize("mode", ["private", "none"])
def test_the_seconds_of_a_round_include_the_wait_for_its_sum(recipe, tmp_path, monkeypatch, mode):
    now, real = 0.0, CohortSum.diagnostics

    def wait(summed):
        nonlocal now
        now += 5.0
        return real(summed)

    monkeypatch.setattr(CohortSum, "diagnostics", wait)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    sottovoce.train(recipe.replace(privacy={"mode": mode}, run={"rounds": 2}), tmp_path / "run")
    assert [line["seconds"] for line in RunFolder.open(tmp_path / "run").diagnostics.read()] == [5.0, 5.0]


def test_weights_that_are_not_finite_are_committed_and_gone_on_with(recipe, store, tmp_path):
    """No code between the noise and the commit fails by a value: it would choose among noises."""
    wild = recipe.replace(
        privacy={"noise_multiplier": 1e5, "clip_norm": 1e8},
        server={"learning_rate": 1e37},
        run={"rounds": 4, "evaluate_every": 1, "checkpoint_every": 2},
    )
    asked = iter([False, False, True])
    stopped = sottovoce.train(wild, tmp_path / "run", stop=lambda: next(asked))
    assert (stopped.round, stopped.evaluation.perplexity) == (3, np.inf)
    assert sottovoce.resume(tmp_path / "run").round == 4
    assert [line["round"] for line in RunFolder.open(tmp_path / "run").record.read()] == [1, 2, 3, 4]


def test_a_run_whose_next_round_crashes_leaves_a_model_to_start_from(recipe, store, tmp_path, monkeypatch):
    """The way on is another run from its last checkpoint: `resume` writes the model before it plays."""
    settings = recipe.replace(run={"rounds": 4, "checkpoint_every": 2}, privacy={"secrets": "entropy"})
    with monkeypatch.context() as broken:
        broken.setattr(train.Training, "_describe_round", crash_in_round(3))
        with pytest.raises(ZeroDivisionError):
            sottovoce.train(settings, tmp_path / "run")
        with pytest.raises(ZeroDivisionError):
            sottovoce.resume(tmp_path / "run")
    assert RunFolder(tmp_path / "run").read_statement()["rounds_done"] == 2
    after = sottovoce.train(settings.replace(model={"initial": str(tmp_path / "run")}), tmp_path / "another")
    assert after.round == 4
    assert sum(count for _, count in after.statement.charged) == 8


def crash_in_round(number: int):
    real = Training._describe_round

    def describe(self, *given):
        if self.state.round == number:
            raise ZeroDivisionError
        return real(self, *given)

    return describe
