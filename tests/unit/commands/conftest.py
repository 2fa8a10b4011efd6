"""A tiny store, and a run on it that has begun and done no round: its model is the one that the seed gives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_run import make_recipe, make_store

from sottovoce.commands import release_folder
from sottovoce.commands.new_run import Context, begin
from sottovoce.commands.train import Training
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.owner_key import owner_key
from sottovoce_evidence import signature
from sottovoce_evidence.recipe import Recipe
from tokenizer_examples import byte_level


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty users, for reading."""
    return make_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def store(tiny_store: Path, tmp_path: Path) -> Path:
    """A store of its own, whose ledger may be charged."""
    return Path(shutil.copytree(tiny_store, tmp_path / "store"))


@pytest.fixture
def in_pieces(tiny_store: Path, tmp_path: Path) -> Path:
    """The same people, in pieces of words."""
    grouping = Grouping(tokens_per_user=100, test_users=0.1)
    prepare([tiny_store.parent / "corpus.jsonl"], tmp_path / "pieces", byte_level(), grouping)
    return tmp_path / "pieces"


@pytest.fixture
def recipe(store: Path) -> Recipe:
    return make_recipe(store)


@pytest.fixture
def begun(tmp_path: Path, recipe: Recipe) -> Callable[..., RunFolder]:
    """Begin a run and write its model and statement, without a round."""

    def make(name: str = "run", **sections: dict[str, object]) -> RunFolder:
        context = Context()
        opened = begin(recipe.replace(**sections), tmp_path / name, context)
        run = RunFolder.open(tmp_path / name)
        training = Training(run, context, opened)
        training.ledger.start(0)
        training._finish()
        return run

    return make


@pytest.fixture
def run(begun: Callable[..., RunFolder]) -> RunFolder:
    return begun()


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the signed release of a run, without report and ONNX; the gate is not asked."""
    monkeypatch.setattr(release_folder, "report_run", lambda path, out, statement: out.write_text("report"))
    monkeypatch.setattr(release_folder, "find_spec", lambda name: None)

    def make(run: RunFolder, name: str = "release") -> Path:
        out = tmp_path / f"{name} of {run.path.name}"
        out.mkdir()
        key = owner_key()
        signer = signature.fingerprint(key.public_key())
        draft = release_folder.ReleaseFolder(run, out, release_folder.Publication(), signer)
        draft.write(out, ())
        signature.sign_folder(out, key, signature.RELEASE)
        return out

    return make


@pytest.fixture
def release(run: RunFolder, released: Callable[[RunFolder], Path]) -> Path:
    return released(run)
