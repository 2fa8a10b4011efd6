from __future__ import annotations

import pytest

from sottovoce.errors import SottoError
from sottovoce.recipe import Recipe, shipped_recipes


def test_toml_in_and_out():
    recipe = Recipe().with_settings(
        ["privacy.epsilon=8", "run.rounds=3", "data.store=somewhere", "server.optimiser=adam"]
    )
    assert Recipe.parse(recipe.to_toml()) == recipe
    assert recipe.privacy.epsilon == 8.0
    assert "noise_multiplier" not in recipe.to_toml()  # TOML has no null: what is not set is left out


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_loads(name):
    assert Recipe.load(name).run.rounds > 0


def test_the_papers_recipe_has_the_papers_numbers():
    recipe = Recipe.load("mcmahan2018")
    assert (recipe.model.embedding, recipe.model.hidden) == (96, 256)
    assert (recipe.local.batch, recipe.local.unroll, recipe.local.epochs, recipe.local.learning_rate) == (8, 10, 1, 6.0)
    assert recipe.privacy.clip_norm / recipe.privacy.cohort == pytest.approx(0.003)


def test_a_value_can_be_unset():
    recipe = Recipe.load("demo").with_settings(["privacy.epsilon=none", "privacy.noise_multiplier=1"])
    assert recipe.privacy.epsilon is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[privacy]\ncohrot = 3", "did you mean 'cohort'"),
        ("[privcy]\ncohort = 3", "did you mean 'privacy'"),
        ("[privacy]\ncohort = 'many'", "must be a number"),
        ("[run]\nrounds = 1.5", "must be a whole number"),
        ("[run]\nrounds = true", "must be a whole number"),
        ("[run]\nrounds = 0", "must be >= 1"),
        ("[privacy]\ndelta = 1.0", "must be > 0 and < 1"),
        ("[privacy]\ndelta = 0.0", "must be > 0 and < 1"),
        ("[privacy]\nnoise_multiplier = -1.0", "must be >= 0"),
        ("[privacy]\nclip_norm = inf", "must be > 0"),
        ("[privacy]\nclip_norm = nan", "must be > 0"),
        ("[privacy]\nsampling = 'poison'", "did you mean 'poisson'"),
        ("[privacy]\nweight_cap = 0.5", "must be >= 1"),
        ("run = 3", "must be a section"),
        ("[run", "not valid TOML"),
    ],
)
def test_a_bad_recipe_is_refused_and_explained(text, message):
    with pytest.raises(SottoError, match=message):
        Recipe.parse(text)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds=3", "section.key=value"),
        ("run.rounds", "section.key=value"),
        ("run.round=3", "did you mean 'rounds'"),
        ("ran.rounds=3", "did you mean 'run'"),
        ("run.rounds=ten", "whole number"),
        ("privacy.allow_large_delta=yes", "true or false"),
    ],
)
def test_a_bad_setting_is_refused_and_explained(setting, message):
    with pytest.raises(SottoError, match=message):
        Recipe().with_settings([setting])


def test_an_unknown_recipe_names_the_shipped_ones():
    with pytest.raises(SottoError, match="did you mean 'demo'"):
        Recipe.load("dmeo")
