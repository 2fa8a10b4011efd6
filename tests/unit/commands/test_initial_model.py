"""Starts that are allowed and refused, with models of runs that have done no round."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_run import WORDS, make_recipe, make_store

from sottovoce.build.assembly import build_model, weights_of
from sottovoce.commands.initial_model import find_start
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.files import pretty, sealed
from sottovoce.recipe import Recipe
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import first_line
from sottovoce.runs.secrets import Secrets

PLAIN = {"privacy": {"mode": "none"}}


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A store of other people."""
    (tmp_path / "others").mkdir()
    return make_store(tmp_path / "others", seed=7)


def start_of(folder: Path, initial: Path | None, given: bool = False, **changes: dict):
    """The start of a run on the store of a folder: private unless changed."""
    recipe = make_recipe(folder).replace(model={"initial": None if initial is None else str(initial)})
    recipe = recipe.replace(**changes)
    store = Store.open(folder)
    return find_start(recipe, store, build_model(recipe, store.vocabulary.size), given=given)


def test_without_a_start_the_model_is_the_one_of_the_seed(store):
    start = start_of(store, None)
    assert (start.facts, start.weights) == (None, "")


@pytest.mark.parametrize(("changes", "word"), [({}, "declared public by the owner"), (PLAIN, "of unknown origin")])
def test_a_model_given_from_python_is_named_by_its_weights(store, changes, word):
    start = start_of(store, None, given=True, **changes)
    weights = digest(weights_of(start.model))
    assert start.weights == weights
    assert start.facts["source"] == f"weights given from Python: {weights}, {word}"


def test_the_model_of_another_run_is_named_with_what_it_promises(run, begun, store, others):
    plain = begun("plain", **PLAIN)
    weights = digest(run.load_weights())
    start = start_of(others, run.path)
    assert digest(weights_of(start.model)) == start.weights == weights
    assert start.facts["run"] == first_line(run.ledger_file)["run"]
    assert start.facts["source"].startswith(f"private start: {weights}, with ε = ")
    assert start_of(others, plain.path).facts["source"] == f"public start: {weights}, declared public by the owner"
    free = start_of(store, plain.path, **PLAIN)
    assert free.facts["source"] == f"start: {weights}, of a run without a guarantee"
    assert "trained_on" not in free.facts


def test_a_private_run_does_not_start_from_its_own_people(run, begun, store, tmp_path):
    plain = begun("plain", **PLAIN)
    moved = Path(shutil.copytree(store, tmp_path / "moved"))
    for folder in (store, moved):
        with pytest.raises(SottoError, match="ε would have to be added"):
            start_of(folder, run.path)
        with pytest.raises(SottoError, match="without privacy"):
            start_of(folder, plain.path)


def test_the_runs_before_a_start_count_too(begun, store, others, tmp_path):
    first = begun("first", **PLAIN)
    second = begun("second", **PLAIN, data={"store": str(others)}, model={"initial": str(first.path)})
    with pytest.raises(SottoError, match="without privacy"):
        start_of(store, second.path)
    first.path.rename(tmp_path / "moved")
    with pytest.raises(SottoError, match="no longer at"):
        start_of(store, second.path)


def test_without_secrets_it_is_not_known_whom_a_run_saw(run, others):
    Secrets.erase(run.secrets)
    with pytest.raises(SottoError, match="it is not known whom it was trained on"):
        start_of(others, run.path)


def test_a_model_that_does_not_fit_is_refused(run, store, tmp_path):
    with pytest.raises(SottoError, match="do not fit"):
        start_of(store, run.path, model={"initial": str(run.path), "hidden": 6})
    with pytest.raises(SottoError, match="holds no run"):
        start_of(store, tmp_path / "nowhere")
    other = Store.open(store)
    words = Vocabulary.from_words([*WORDS[:-1], "horse"])
    recipe = Recipe.of(run).replace(model={"initial": str(run.path)})
    changed = Store.from_users([other[0]], words)
    with pytest.raises(SottoError, match="another vocabulary"):
        find_start(recipe, changed, build_model(recipe, words.size))


@pytest.fixture
def model_folder(run: RunFolder, tmp_path: Path) -> Path:
    """Weights and words with a card that says public text."""
    folder = Path(shutil.copytree(run.model, tmp_path / "model"))
    write_card(folder)
    return folder


def write_card(folder: Path, **changes: object) -> None:
    card = {"trained_on": "public", **changes}
    (folder / "card.json").write_bytes(pretty(sealed({name: fact for name, fact in card.items() if fact is not None})))


def test_a_file_of_weights_starts_a_private_run_if_its_card_says_public_text(model_folder, store):
    for named in (model_folder, model_folder / "weights.safetensors"):
        start = start_of(store, named)
        assert start.facts["trained_on"] == "public"
        assert start.facts["source"] == f"public start: {start.weights}, of public text by its card"
    write_card(model_folder, trained_on=None)
    assert start_of(store, model_folder, **PLAIN).facts["source"].endswith("of a weights file")
    with pytest.raises(SottoError, match='does not say "trained_on": "public"'):
        start_of(store, model_folder)


def test_a_released_private_model_starts_no_private_run(run, model_folder, store, others):
    statement = {"private": True, "epsilon": 2.0, "delta": 1e-3, "run": first_line(run.ledger_file)["run"]}
    write_card(model_folder, privacy=statement)  # also where the card says public text
    with pytest.raises(SottoError, match="ε would have to be added"):
        start_of(store, model_folder)
    with pytest.raises(SottoError, match="cannot be told whether"):
        start_of(others, model_folder)
    assert "private start: " in start_of(others, model_folder, **PLAIN).facts["source"]


@pytest.mark.parametrize(
    ("card", "missing", "words"),
    [
        ({"kind": "gru"}, None, "says kind 'gru'"),
        ({"privacy": {"files": {"other.safetensors": "00"}}}, None, "not of weights.safetensors"),
        ({"privacy": {"files": {"weights.safetensors": "00"}}}, None, "it was changed"),
        ({}, "vocabulary.txt", "no vocabulary.txt"),
        ({}, "card.json", "no card.json"),
    ],
)
def test_a_card_that_is_not_of_these_files_is_refused(model_folder, store, card, missing, words):
    write_card(model_folder, **card)
    if missing:
        (model_folder / missing).unlink()
    with pytest.raises(SottoError, match=words):
        start_of(store, model_folder)
