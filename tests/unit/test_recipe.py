from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.cli.recipe_keys import Key, describe
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import SECTIONS, Recipe


def test_toml_in_and_out():
    recipe = Recipe().with_settings(
        ["privacy.epsilon=8", "run.rounds=3", "data.store=somewhere", "server.optimiser=adam"]
    )
    assert Recipe.parse(recipe.to_toml()) == recipe
    assert recipe.privacy.epsilon == 8.0
    assert "noise_multiplier" not in recipe.to_toml()  # TOML has no null: what is not set is left out


def test_the_papers_recipe_has_the_papers_numbers():
    recipe = Recipe.load("mcmahan2018")
    assert (recipe.model.embedding, recipe.model.hidden) == (96, 256)
    assert (recipe.local.batch, recipe.local.unroll, recipe.local.epochs, recipe.local.learning_rate) == (8, 10, 1, 6.0)
    assert recipe.privacy.clip_norm / recipe.privacy.cohort == pytest.approx(0.003)


def test_a_value_can_be_unset():
    recipe = Recipe.load("demo").with_settings(["privacy.epsilon=none", "privacy.noise_multiplier=1"])
    assert recipe.privacy.epsilon is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run\nrounds = 4\n", ["TOML", "line 1"]),
        ("[privcy]\nusers = 20", ["[privcy]", "did you mean 'privacy'"]),
        ("run = 4", ["run", "must be a section"]),
        ("[privacy]\ncohrot = 6", ["privacy.cohrot", "did you mean 'cohort'"]),
        ("[run]\nrounds = 'ten'", ["run.rounds='ten'", "whole number"]),
        ("[run]\nrounds = true", ["run.rounds=True", "whole number"]),
        ("[run]\nrounds = 0", ["run.rounds=0", "must be >= 1 (T: rounds of training)"]),
        ("[privacy]\nclip_norm = 0", ["privacy.clip_norm=0", "> 0"]),
        ("[privacy]\nclip_norm = nan", ["privacy.clip_norm=nan", "> 0"]),
        ("[privacy]\nsampling = 3", ["privacy.sampling=3", "text"]),
        ("[privacy]\nsecrets = 'seed'", ["privacy.secrets='seed'", "did you mean 'seeded'"]),
        ("[model]\ntied = 'yes'", ["model.tied='yes'", "true or false"]),
        ("[privacy]\ndelta = 1", ["privacy.delta=1", "> 0 and < 1"]),
        ("[run]\nrounds = 4\nrounds = 5\n", ["TOML", "a key is given twice", "line 3"]),
        ("[privacy]\nnoise_decays = 1.0", ["privacy.noise_decays=1.0", "a list"]),
        ("[privacy]\nnoise_decays = [1.0, -1.0]", ["privacy.noise_decays=-1.0", ">= 0"]),
        ("[local]\nlearning_rate = 1e300", ["local.learning_rate=1e+300", "< 1e+38"]),
        ("[local]\nuser_share = 1.5", ["local.user_share=1.5", "> 0 and <= 1", "λ"]),
        ("[run]\nrounds = " + "[" * 100_000, ["TOML", "nested too deep"]),
        ("[" + "a." * 100_000 + "a]", ["TOML", "nested too deep"]),
        ("[run]\nrounds = " + "9" * 100_000, ["TOML", "too many digits"]),
        ("[run]\nrounds = " + "9" * 4000, ["run.rounds", "9.22337e+18"]),
        ('[data]\nstore = "a\\u0000b"', ["data.store", "NUL"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_recipe_is_refused_and_explained(text, words):
    with pytest.raises(SottoError) as refused:
        Recipe.parse(text)
    for word in words:
        assert word in str(refused.value)


def test_a_table_is_not_taken_for_a_recipe(tmp_path):
    table = tmp_path / "messages.csv"
    table.write_text("author,message\nann,hi\n")
    with pytest.raises(SottoError, match=r"messages\.csv is not valid TOML: .*; is it a recipe\? `sotto init`"):
        Recipe.load(table)


def test_a_setting_that_is_given_two_values_is_refused():
    with pytest.raises(SottoError, match=r"--set gives privacy\.epsilon two values"):
        Recipe().with_settings(["privacy.epsilon=4", "run.rounds=3", "privacy.epsilon=8"])
    assert Recipe().with_settings(["run.rounds=3", "run.rounds = 3"]).run.rounds == 3


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("", ["section.key=value"]),
        ("rounds=4", ["rounds=4", "section.key=value"]),
        ("run.rounds", ["run.rounds", "section.key=value"]),
        ("run.rounds=", ["run.rounds=", "whole number"]),
        ("run.rounds=ten", ["run.rounds='ten'", "whole number"]),
        ("run.rounds=-4", ["run.rounds=-4", ">= 1"]),
        ("run.runds=4", ["run.runds", "did you mean 'rounds'"]),
        ("model.tied=maybe", ["model.tied='maybe'", "true or false"]),
        ("privacy.noise_decays=[1", ["privacy.noise_decays='[1'", "must be a list"]),
    ],
)
def test_a_bad_setting_is_refused_and_explained(setting, words):
    with pytest.raises(SottoError) as refused:
        Recipe().with_settings([setting])
    for word in words:
        assert word in str(refused.value)


def test_every_key_is_described_with_its_kind_its_limits_and_its_default():
    rows = {(row.section, row.name): row for row in describe()}
    assert len(rows) == sum(len(dataclasses.fields(kind)) for kind in SECTIONS.values())
    assert all(row.meaning and row.kind for row in rows.values())
    assert rows["privacy", "delta"] == Key(
        "privacy", "delta", "a number", 1e-6, (), "> 0 and < 1", "δ: the chance that the guarantee does not hold"
    )
    assert rows["run", "algorithm"].choices == ("fedavg", "fedsgd", "els", "central")
    assert rows["server", "schedule"].kind == "a list of pairs"
    assert rows["audit", "holders"].kind == "a list of whole numbers"


@pytest.mark.parametrize("row", [row for row in describe() if row.default is not None], ids=lambda row: row.name)
def test_every_default_is_within_its_own_limits(row):
    assert Recipe().replace(**{row.section: {row.name: row.default}}) == Recipe()


PATHS = """
[data]
store = {store}
[model]
initial = {initial}
[local]
public = {public}
"""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (("store", "../base", "public"), ("{0}/store", "{0}/../base", "{0}/public")),
        (("/data/store", "/base", "/public"), ("/data/store", "/base", "/public")),
        (("demo:40", "english", "english"), ("demo:40", "english", "{0}/english")),
        (("none", "none", "public"), ("{0}/none", "none", "{0}/public")),
    ],
)
def test_relative_paths_of_a_recipe_start_at_its_folder(tmp_path, monkeypatch, written, read):
    """Wherever it is read; names of synthetic people and of shipped bases are no paths."""
    (tmp_path / "recipes").mkdir()
    store, initial, public = (f'"{path}"' for path in written)
    text = PATHS.format(store=store, initial=initial, public=public)
    (tmp_path / "recipes" / "mine.toml").write_text(text, encoding="utf-8")
    for here, folder in ((tmp_path, "recipes"), (tmp_path / "recipes", "."), (Path("/"), str(tmp_path / "recipes"))):
        monkeypatch.chdir(here)
        found = Recipe.load(Path(folder) / "mine.toml")
        paths = (found.data.store, found.model.initial, found.local.public)
        assert [Path(path) for path in paths] == [Path(path.format(folder)) for path in read]
    run = SimpleNamespace(recipe_file=tmp_path / "recipes" / "mine.toml")
    assert Recipe.of(run) == Recipe.parse(text)


def test_an_unknown_recipe_names_the_shipped_ones():
    with pytest.raises(SottoError, match="did you mean 'demo'"):
        Recipe.load("dmeo")


def test_settings_take_bare_words_and_values_as_python_writes_them():
    texts = ["privacy.secrets=entropy", "run.rounds=20", "model.kind=gru", "model.tied=True", "model.dropout=.5"]
    recipe = Recipe().with_settings(texts)
    assert (recipe.privacy.secrets, recipe.run.rounds, recipe.model.kind) == ("entropy", 20, "gru")
    assert (recipe.model.tied, recipe.model.dropout) == (True, 0.5)
