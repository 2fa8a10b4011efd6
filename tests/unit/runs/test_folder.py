"""The folder of a run: what is refused, what is checked before it is read, and who may read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.data.store import STORE_FILE
from sottovoce.data.vocabulary import VOCABULARY, Vocabulary
from sottovoce.runs.folder import WEIGHTS, RunFolder, load_arrays, names_of
from sottovoce_evidence.errors import DamagedRun, SottoError

ARRAYS = {"table": np.arange(6, dtype=np.float32).reshape(2, 3)}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with a finished model."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.recipe_file.write_text("")
    files = folder.save_model(ARRAYS, Vocabulary.from_words(["a", "b"]))
    folder.save_statement({"epsilon": 1.0, "files": files}, {"name": "model"})
    return folder


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(SottoError, match="cannot write"), RunFolder.making(tmp_path / "run") as draft:
        draft.path.write_text("a folder is no file")
    assert list(tmp_path.iterdir()) == []
    with RunFolder.making(tmp_path / "run") as draft:
        draft.recipe_file.write_text("whole")
    assert RunFolder.open(tmp_path / "run").recipe_file.read_text() == "whole"


def test_a_run_is_never_overwritten(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for path, words in ((run.path, "holds another run"), (tmp_path / "other", "is not an empty folder")):
        with pytest.raises(SottoError, match=words), RunFolder.making(path):
            pytest.fail("it was made")


def test_only_a_run_that_can_go_on_is_said_to(run: RunFolder) -> None:
    """A release erases the secrets."""
    with pytest.raises(SottoError, match="use another --out, as that one was released"), RunFolder.making(run.path):
        pytest.fail("it was made")
    run.secrets.mkdir()
    with pytest.raises(SottoError, match="or go on with `sotto resume"), RunFolder.making(run.path):
        pytest.fail("it was made")


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(SottoError, match=r"holds no run.*`sotto train` makes one"):
        RunFolder.open(tmp_path)
    with pytest.raises(SottoError, match="holds no run: there is no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / STORE_FILE).touch()
    with pytest.raises(SottoError, match="holds no run: it is a store"):
        RunFolder.open(tmp_path / "store")
    for name in (WEIGHTS, "privacy.json"):
        (tmp_path / name).touch()
    with pytest.raises(SottoError, match="it is a released model"):
        RunFolder.open(tmp_path)


def test_a_second_process_is_kept_out_and_remains_of_writing_are_removed(run: RunFolder) -> None:
    (run.model / "weights.safetensors.partial").touch()
    with run.locked():
        assert not list(run.model.glob("*.partial"))
        with pytest.raises(SottoError, match="trained by another process"), RunFolder(run.path).locked():
            pytest.fail("two at once")


def test_the_weights_come_back(run: RunFolder) -> None:
    assert run.load_weights()["table"].tolist() == ARRAYS["table"].tolist()
    assert run.tokenizer_file().read_text().endswith("a\nb\n")
    run.save_frozen(ARRAYS)
    assert run.load_frozen()["table"].tolist() == ARRAYS["table"].tolist()


@pytest.mark.parametrize("name", [WEIGHTS, VOCABULARY])
def test_a_file_of_the_model_that_was_changed_is_refused(run: RunFolder, name: str) -> None:
    path = run.model / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedRun, match=f"{name} .*it was changed; `sotto resume"):
        run.model_file(name)


def test_a_statement_that_was_edited_is_refused(run: RunFolder) -> None:
    run.statement_file.write_text(run.statement_file.read_text().replace("1.0", "0.1"))
    with pytest.raises(DamagedRun, match=r"privacy\.json"):
        run.read_statement()


def test_a_run_that_has_no_model_yet_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(SottoError, match="no finished model yet; go on with `sotto resume"):
        RunFolder(tmp_path).load_weights()


def test_arrays_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no arrays")
    for name in ("file", "missing"):
        with pytest.raises(DamagedRun, match=f"cannot read .*{name}.*; do this"):
            load_arrays(tmp_path / name, "do this")


def test_audits_are_for_the_owner_alone_and_lose_the_figure_of_an_earlier_one(run: RunFolder) -> None:
    assert run.read_audit("tails") is None
    run.save_audit("tails", {"value": 1}, b"figure")
    assert [path.stat().st_mode & 0o077 for path in (run.audits, *run.audits.iterdir())] == [0, 0, 0]
    run.save_audit("tails", {"value": 2}, None)
    audit = run.read_audit("tails")
    assert audit is not None
    assert audit["value"] == 2
    assert [path.name for path in run.audits.iterdir()] == ["tails.json"]


def test_names_are_as_short_as_tells_them_apart() -> None:
    assert names_of([Path("/a/run"), Path("/b/other")]) == ["run", "other"]
    assert names_of([Path("/a/x/run"), Path("/b/x/run"), Path("/b/x/run")]) == ["a/x/run", "b/x/run", "b/x/run"]
