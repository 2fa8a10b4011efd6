"""A model to use: of a release, a run or a base."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from small_world import files_of
from tiny_run import WORDS

from sottovoce.build.assembly import weights_of
from sottovoce.commands.evaluate import evaluate_run
from sottovoce.commands.load_model import load_model
from sottovoce_evidence.verify import verify_release
from sottovoce.data.store import Store
from sottovoce_evidence.errors import DamagedRun, SottoError


@pytest.mark.slow
def test_a_release_suggests_and_evaluates_as_its_run_does(run, release, store, monkeypatch):
    monkeypatch.setattr("sottovoce.commands.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
    before, loaded, of_run = files_of(release), load_model(release), load_model(run.path)
    assert loaded.statement.epsilon == of_run.statement.epsilon
    assert {word for word, _ in loaded.suggest("red", count=2)} <= set(WORDS)
    assert loaded.suggest("red") == of_run.suggest("red")
    assert loaded.evaluate(store) == of_run.evaluate(Store.open(store, "test"))
    assert loaded.evaluate(store) == evaluate_run(release, Store.open(store, "test")).evaluation
    assert repr(loaded).startswith("<LSTM: ")
    assert files_of(release) == before  # to read it adds nothing: it stays as it was signed
    assert {check.name: check.result for check in verify_release(release).checks}["files"] == "passed"


def test_a_release_does_not_know_its_users(release, monkeypatch, store):
    monkeypatch.chdir(store.parent)  # where there is a folder of the store's name
    with pytest.raises(SottoError, match="give --corpus or --store"):
        evaluate_run(release)


def test_a_base_is_loaded_by_name_in_single_precision():
    loaded = load_model("english")
    assert loaded.statement is None
    assert {array.dtype for array in weights_of(loaded.model).values()} == {np.dtype(np.float32)}
    assert "you" in dict(loaded.suggest("how are"))


def test_a_changed_file_is_refused(release, tmp_path):
    (release / "vocabulary.txt").write_text("other words\n")
    with pytest.raises(DamagedRun, match="get the release again"):
        load_model(release)
    from sottovoce_evidence import bases

    changed = shutil.copytree(bases.find("english"), tmp_path / "base")
    (changed / "vocabulary.txt").write_text("other words\n")
    with pytest.raises(DamagedRun, match="is not the file that"):
        load_model(changed)


def test_what_cannot_be_loaded_says_why(release, tmp_path, store):
    (release / "training.toml").unlink()
    with pytest.raises(SottoError, match=r"without training\.toml"):
        load_model(release)
    with pytest.raises(SottoError, match="holds no run"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(SottoError, match="another vocabulary"):
        load_model("english").evaluate(store)
