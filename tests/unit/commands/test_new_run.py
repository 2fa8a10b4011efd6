"""A new run: what its folder holds before the first round, and what its people are charged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.commands import new_run
from sottovoce.commands.forecast import Forecast
from sottovoce.commands.new_run import Context, begin, check_also
from sottovoce.commands.train import Training
from sottovoce.data.store import Store
from sottovoce.runs import checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.hash_chain import Chain
from sottovoce.runs.ledger import Ledger, StoreLedger, first_line
from sottovoce.runs.secrets import Salt, Secrets
from sottovoce_evidence.errors import InUse, SottoError
from sottovoce_evidence.ledger import chained
from sottovoce_evidence.recipe import Recipe


def test_a_new_run_has_a_recipe_a_ledger_a_checkpoint_and_its_charge(recipe: Recipe, store: Path, tmp_path: Path):
    opened = begin(recipe, tmp_path / "run", Context())
    run = RunFolder.open(tmp_path / "run")
    header, secrets = first_line(run.ledger_file), Salt.load(run.secrets)
    assert Recipe.of(run) == opened.assembly.recipe
    assert header["recipe"] == Recipe.of(run).sha256()
    assert header["store"] == secrets.blind(Store.open(store).fingerprint) != Store.open(store).fingerprint
    assert (len(header["run"]), header["planned"], header["code"]) == (12, 6, opened.assembly.code)
    saved = checkpoint.newest(run.checkpoints)
    assert saved is not None
    assert saved.round == 0
    assert run.record.read() == []
    assert sum(count for _, count in StoreLedger(store / "ledger.jsonl").spent(header["run"])) == 6
    assert os.stat(run.secrets).st_mode & 0o077 == 0


@pytest.mark.parametrize("wrong", [{"model": {"initial": "nowhere"}}, {"data": {"store": ""}}, {"audit": {"users": 3}}])
def test_a_run_that_cannot_be_made_leaves_nothing_behind(recipe: Recipe, store: Path, tmp_path: Path, wrong: dict):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SottoError):
        begin(recipe.replace(**wrong), tmp_path / "run", Context())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_without_room_for_checkpoints_is_refused_before_anybody_is_charged(
    recipe: Recipe, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=10))
    with pytest.raises(SottoError, match=r"0\.0 MB are free, and checkpoints need .* free some space there"):
        begin(recipe, tmp_path / "run", Context())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_without_a_guarantee_charges_nobody(recipe: Recipe, store: Path, tmp_path: Path):
    begin(recipe.replace(privacy={"mode": "experiment"}), tmp_path / "run", Context())
    assert not (store / "ledger.jsonl").exists()


def test_seeded_secrets_depend_on_the_recipe_and_not_on_the_folder(recipe: Recipe, tmp_path: Path):
    changes = ({}, {}, {"local": {"learning_rate": 0.5}}, {"privacy": {"secrets": "entropy"}})
    for number, change in enumerate(changes):
        begin(recipe.replace(**change), tmp_path / str(number), Context())
    runs = [RunFolder(tmp_path / str(number)) for number in range(len(changes))]
    found = [
        Secrets.of(run.secrets, checkpoint.newest(run.checkpoints).facts, is_seeded=True)  # pyrefly: ignore
        for run in runs
    ]
    assert found[0] == found[1]
    assert len({secrets.stretch for secrets in found}) == 3


def test_canaries_are_registered_in_the_ledger(recipe: Recipe, tmp_path: Path):
    begin(recipe.replace(audit={"users": 40, "secrets": 0, "prefix": 3}), tmp_path / "run", Context())
    run = RunFolder(tmp_path / "run")
    assert first_line(run.ledger_file)["canaries"]["users"] == 40
    assert len(json.loads(run.registry_file.read_text())["users"]) == 40


def test_a_population_of_its_own_moves_with_the_run(recipe: Recipe, tmp_path: Path):
    opened = begin(recipe.replace(data={"store": "demo:40"}), tmp_path / "run", Context())
    assert opened.store.path == tmp_path / "run" / "store"
    assert opened.store.fingerprint == Store.open(opened.store.path).fingerprint


def test_peoples_text_is_not_measured_into_the_public_record(recipe: Recipe, store: Path):
    """The people of the run are the worst to be given: their exact accuracy tells who took part."""
    people = Store.open(store)
    with pytest.raises(SottoError, match="in the public record without noise"):
        check_also(recipe, people)
    check_also(recipe, None)
    check_also(recipe.replace(privacy={"mode": "none"}), people)


def test_two_runs_of_one_name_charge_once(recipe: Recipe, store: Path, tmp_path: Path):
    """The second begins while the first asks its owner, and would be the first to be done."""

    def second(forecast: Forecast) -> bool:
        with pytest.raises(InUse, match="is being made by another process"):
            begin(recipe, tmp_path / "run", Context())
        return True

    begin(recipe, tmp_path / "run", Context(confirm=second))
    assert sum(count for _, count in StoreLedger(store / "ledger.jsonl").spent()) == 6
    assert RunFolder.open(tmp_path / "run")


def test_a_run_that_could_not_be_charged_goes_on_and_is_charged_once(
    recipe: Recipe, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "append", lambda *_: (_ for _ in ()).throw(OSError("full")))
        patch.setattr(Ledger, "create", lambda path, header: path.write_bytes(chained([{"ledger": 1, **header}])))
        with pytest.raises(SottoError, match=rf"the run is there: go on with `sotto resume {tmp_path / 'run'}`"):
            begin(recipe, tmp_path / "run", Context())
    assert not StoreLedger(store / "ledger.jsonl").spent()
    for _ in range(2):
        Training(RunFolder.open(tmp_path / "run"), Context())
        assert sum(count for _, count in StoreLedger(store / "ledger.jsonl").spent()) == 6


def test_a_copy_of_a_run_that_nobody_paid_for_yet_is_no_second_run(
    recipe: Recipe, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(new_run, "_pay", lambda *_: None)
        begin(recipe.replace(privacy={"secrets": "entropy"}), tmp_path / "run", Context())
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("copy", "run"):
        Training(RunFolder.open(tmp_path / name), Context())
        assert sum(count for _, count in StoreLedger(store / "ledger.jsonl").spent()) == 6
