"""A folder with a model: of a release, a run, a base or Hugging Face."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
from small_world import files_of
from tiny_run import WORDS

from sottovoce.build.assembly import weights_of
from sottovoce.commands.evaluate import evaluate_run
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.store import Store
from sottovoce_evidence import bases
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.verify import verify_release
from tiny_hugging_face import write_folder


@pytest.mark.slow
def test_a_release_suggests_and_evaluates_as_its_run_does(run, release, store, monkeypatch):
    monkeypatch.setattr("sottovoce_evidence.verify.dp_accounting_epsilon", lambda spent, delta, **_: None)
    before, loaded, of_run = files_of(release), ModelFolder.open(release), ModelFolder.open(run.path)
    assert loaded.statement.epsilon == of_run.statement.epsilon
    assert {word for word, _ in loaded.suggest("red", count=2)} <= set(WORDS)
    assert loaded.suggest("red") == of_run.suggest("red")
    assert loaded.evaluate(store) == of_run.evaluate(Store.open(store, "test"))
    assert loaded.evaluate(store) == evaluate_run(release, Store.open(store, "test")).evaluation
    assert repr(loaded) == "<ModelFolder: release release of run>"
    assert files_of(release) == before  # to read it adds nothing: it stays as it was signed
    assert {check.name: check.result for check in verify_release(release).checks}["files"] == "passed"


def test_a_release_does_not_know_its_users(release, monkeypatch, store):
    monkeypatch.chdir(store.parent)  # where there is a folder of the store's name
    with pytest.raises(SottoError, match="give --corpus or --store"):
        evaluate_run(release)


def test_a_base_is_loaded_by_name_in_single_precision():
    loaded = ModelFolder.open("english")
    assert loaded.statement is None
    assert {array.dtype for array in weights_of(loaded.model).values()} == {np.dtype(np.float32)}
    assert "you" in dict(loaded.suggest("how are"))


def test_a_changed_file_is_refused(release, tmp_path):
    (release / "vocabulary.txt").write_text("other words\n")
    with pytest.raises(DamagedRun, match="get the release again"):
        ModelFolder.open(release).model  # noqa: B018
    changed = shutil.copytree(bases.find("english"), tmp_path / "base")
    (changed / "vocabulary.txt").write_text("other words\n")
    with pytest.raises(DamagedRun, match="is not the file that"):
        ModelFolder.open(changed).model  # noqa: B018


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "there is no such folder; name a run, a release, a folder of Hugging Face or a base .*: english"),
        ("file", "it is a file; give the folder that it lies in"),
        ("empty", "the folder is empty; `sotto train` makes a run"),
        ("store", "it is a store, on which `sotto train` makes a run"),
        ("other", "it is no run, release or base, nor a folder of Hugging Face; check the path"),
    ],
)
def test_what_holds_no_model_is_told_in_one_line(tmp_path, store, name, words):
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("text")
    with pytest.raises(SottoError, match=f"{name}' holds no model: {words}") as error:
        ModelFolder.open(tmp_path / name)
    assert "\n" not in str(error.value)


def test_every_kind_of_folder_is_opened_the_same_way(run, released, begun, tmp_path):
    kept = begun("kept", privacy={"secrets": "entropy"})
    theirs = write_folder(tmp_path / "tiny", "llama")
    found = {each.title: each for each in map(ModelFolder.open, (run.path, released(kept), "english", theirs))}
    assert [each.kind for each in found.values()] == ["run", "release", "base", "hugging_face"]
    assert list(found) == ["run run", "release release of kept", "base english", "folder tiny"]
    assert [each.run is None for each in found.values()] == [False, False, True, True]
    assert [each.statement is None for each in found.values()] == [False, False, True, True]
    assert [each.has_guarantee for each in found.values()] == [False, True, False, False]
    assert [each.is_public for each in found.values()] == [False, False, True, False]
    assert [each.recipe.model.kind for each in found.values()] == ["lstm", "lstm", "lstm", "transformer"]
    assert [each.card is None for each in found.values()] == [False, False, False, True]


def test_pages_and_figures_are_made_without_jax():
    """What a folder says of its model is read without jax; only weights that become a model need it."""
    code = (
        "import sys; from sottovoce.commands.model_folder import ModelFolder; folder = ModelFolder.open('english'); "
        "folder.card, folder.statement, folder.recipe, folder.tokenizer, folder.digest; "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_cannot_be_loaded_says_why(release, tmp_path, store):
    (release / "training.toml").unlink()
    with pytest.raises(SottoError, match=r"without training\.toml"):
        ModelFolder.open(release).model  # noqa: B018
    with pytest.raises(SottoError, match="holds no model"):
        ModelFolder.open(tmp_path / "nowhere")
    with pytest.raises(SottoError, match="another vocabulary"):
        ModelFolder.open("english").evaluate(store)
