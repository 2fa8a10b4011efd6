"""The baselines that a run begins with: of public text alone, on the users that it is evaluated on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_run import make_store

from sottovoce.commands.baselines import (
    evaluated_users,
    has_public_order,
    measure_baselines,
    public_baselines,
    public_frequencies,
)
from sottovoce.commands.initial_model import Start
from sottovoce.commands.new_run import Context, begin
from sottovoce.commands.stores import prepare_demo
from sottovoce.data.store import SKIP, Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence import bases
from sottovoce_evidence.files import sealed
from sottovoce_evidence.recipe import Recipe


def test_a_run_begins_with_its_baselines_rounded_as_every_public_figure_is(recipe: Recipe, store: Path, tmp_path: Path):
    begin(recipe.replace(run={"evaluate_every": 2, "evaluate_users": 3}), tmp_path / "run", Context())
    run = RunFolder(tmp_path / "run")
    found = Baselines.of(run)
    assert (found.start, found.start_model, found.frequencies) == ("nothing", None, "the text of base english")
    assert found.constant.users == found.unigram.users == min(3, Store.open(store, "test").users)
    written = json.loads(run.baselines_file.read_text())
    for name in ("constant", "unigram"):
        assert "targets" not in written[name]
        assert written[name]["top1"] == round(written[name]["top1"], 4)


def test_the_start_model_is_measured_where_there_is_one(recipe: Recipe, store: Path, tmp_path: Path, begun):
    first = begun("first")
    chosen = recipe.replace(privacy={"mode": "none"}, run={"evaluate_every": 1}, model={"initial": str(first.path)})
    begin(chosen, tmp_path / "second", Context())
    found = Baselines.of(RunFolder(tmp_path / "second"))
    assert found.start == "run first"
    assert 0 <= found.start_model.top1 <= 1
    assert found.start_model.perplexity == pytest.approx(Store.open(store).vocabulary.size, rel=0.2)


def test_a_run_that_is_not_evaluated_measures_nobody(recipe: Recipe, store: Path):
    test = Store.open(store, "test")
    assert list(evaluated_users(recipe, test)) == list(evaluated_users(recipe, None)) == []
    assert measure_baselines(recipe, Start(None, {"weights": ""}, "run x"), test) == Baselines("run x")
    assert list(evaluated_users(recipe.replace(run={"evaluate_every": 1, "evaluate_users": 2}), test)) == [0, 1]


def test_the_people_to_train_on_do_not_move_a_baseline(recipe: Recipe, store: Path, tmp_path: Path, monkeypatch):
    """The same held-out people with other people to train on: the same file, byte for byte."""
    monkeypatch.setenv(SKIP, "1")
    make_store(tmp_path, seed=9, name="other")
    (tmp_path / "other" / "test.arrow").write_bytes((store / "test.arrow").read_bytes())
    found = set()
    for folder in (store, tmp_path / "other"):
        chosen = recipe.replace(data={"store": str(folder)}, run={"evaluate_every": 1})
        opened = begin(chosen, folder / "run", Context())
        found.add((opened.store.fingerprint, RunFolder(folder / "run").baselines_file.read_bytes()))
    assert len({people for people, _ in found}) == 2
    assert len({baselines for _, baselines in found}) == 1


def test_frequencies_are_those_of_the_base_that_the_run_starts_from(tmp_path: Path):
    vocabulary = Vocabulary.from_words(("red", "green"))
    vocabulary.save(tmp_path / bases.VOCABULARY)
    (tmp_path / bases.FREQUENCIES).write_text("1\n" * (vocabulary.size - 1) + "77\n")
    own = public_frequencies(vocabulary, str(tmp_path))
    assert (own.source, int(own.counts[-1])) == (f"the text of base {tmp_path.name}", 77)
    assert public_frequencies(vocabulary, "english").source == public_frequencies(vocabulary).source
    assert public_frequencies(Vocabulary.from_words(("zwölf", "straße"))) is None


@pytest.mark.parametrize(
    ("source", "listed"), [({"source": "public", "list": "wordfreq"}, True), ({"source": "private"}, False)]
)
def test_a_run_in_a_language_without_a_base_has_a_baseline_too(recipe: Recipe, tmp_path: Path, source, listed):
    words = Vocabulary.from_words(("der", "himmel", "ist"), language="de")
    people = [words.encode("der der der himmel") for _ in range(12)]
    test = replace(Store.from_users(people, words), vocabulary_source=source)
    found = measure_baselines(recipe.replace(run={"evaluate_every": 1}), Start(None, {}, "nothing"), test)
    assert (found.start, found.frequencies, found.unigram) == ("nothing", None, None)
    assert found.token == ("der" if listed else "<eos>")  # of words that people brought, nothing is shown
    assert found.constant.top1 == (0.6 if listed else 0.2)
    assert has_public_order(test) is listed


def test_the_words_of_a_corpus_are_in_a_public_order_if_those_of_the_run_are(run):
    users = Store.from_users([[0, 1]], Store.open(Recipe.of(run).data.store).vocabulary)
    assert has_public_order(users, run.path)
    statement = json.loads(run.statement_file.read_text())
    statement["vocabulary"]["source"] = "private"
    run.write_json(run.statement_file, sealed({name: value for name, value in statement.items() if name != "checksum"}))
    assert not has_public_order(users, run.path)


def test_the_synthetic_population_is_counted_on_other_synthetic_people(tmp_path: Path):
    prepare_demo(tmp_path / "store", 40)
    test = Store.open(tmp_path / "store", "test")
    assert public_frequencies(test.vocabulary).source == "synthetic messages"
    assert 0.03 < public_baselines(test).constant.top1 < 0.3
