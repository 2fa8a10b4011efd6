from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.papers.engine.populations import Populations, Stores
from sottovoce.papers.engine.results import Outcome
from sottovoce.papers.engine.trial import Changes, Trial
from sottovoce.papers.mcmahan2018.trials import BASELINE_RATES, EXPERIMENTS, NOISE_AXIS, SIZES, TABLE_1, TABLE_2
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import NonPrivate
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

GPU = SIZES["gpu"]
# The others are the same recipes with other numbers.
EVERY_SIZE = [
    pytest.param(size, id=name, marks=() if name == "smoke" else pytest.mark.slow) for name, size in SIZES.items()
]
LAYERS = [f"layer {number}" for number in range(11)]


def recipe_of(trial, size):
    return trial.recipe(Recipe.load("mcmahan2018"), size, users=7818, store="store", seed=0)


def test_every_table_and_figure_of_the_paper_is_there():
    wanted = {f"figure-{number}" for number in range(1, 13)} | {f"table-{number}" for number in range(1, 4)}
    assert set(EXPERIMENTS) == wanted | {"sigma", "l2-penalty", "other-corpus", "private-tuning", "private-model"}
    assert len(TABLE_1) == 9
    assert all(len(row[-1]) == 7 for row in TABLE_1)
    assert len(TABLE_2) == 6


@pytest.mark.parametrize("size", EVERY_SIZE)
@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_trial_is_a_recipe_that_can_be_trained(experiment, size):
    for trial, _ in experiment.runs(size):
        if trial.is_private or trial.is_central:
            continue
        recipe = resolve(recipe_of(trial, size))
        assert recipe.privacy.mode == "experiment"  # results tell of users: clipped shares, users processed
        mechanism = build_mechanism(recipe, LAYERS)
        assert mechanism.noise_std(1, mechanism.clip_norms(1, None))[0] == trial.changes.privacy.get("noise_std", 0)
        rate = trial.changes.local.get("learning_rate", 6.0)
        assert (recipe.local.batch * recipe.local.unroll, recipe.local.learning_rate) == (
            (40, rate) if size.name == "smoke" else (80, rate)
        )


@pytest.mark.parametrize("size", EVERY_SIZE)
def test_private_trials_are_runs_that_promise_what_they_say(size):
    """A population that is declared, secrets from entropy, cohorts it can draw, and noise for the ε of its name."""
    trials = [trial for trial in EXPERIMENTS["private-model"].trials(size) if trial.is_private]
    users = 27_000 if size.full else size.synthetic_users
    assert {trial.changes.privacy["epsilon"] for trial in trials} == {8.0, 4.0}
    for trial in trials:
        made = trial.recipe(Recipe.load("mcmahan2018"), size, users=users, store="store", seed=0)
        recipe = resolve(made.replace(privacy={"accountant": "moments"}))  # quicker than what is used
        privacy = recipe.privacy
        assert (privacy.mode, privacy.secrets, privacy.sampling) == ("private", "entropy", "poisson")
        assert (privacy.users, privacy.delta, privacy.noise_std) == (users, 1e-5, None)
        assert 0 < privacy.total_weight <= users
        mechanism = build_mechanism(recipe, LAYERS)
        charged = mechanism.events(recipe.run.rounds)
        assert 0.98 * privacy.epsilon <= accounting.epsilon(charged, privacy.delta, "moments") <= privacy.epsilon
        # Lemma 1 for weights of at most 1: S over the declared qW, whatever the store holds.
        assert mechanism.sensitivity([1.0]) == pytest.approx(users / (privacy.cohort * privacy.total_weight))


def test_only_unprotected_trials_know_how_many_users_there_are():
    """All trials on the people of a private model are protected, the one without noise too, and no others."""
    for experiment in EXPERIMENTS.values():
        for trial, _ in experiment.runs(GPU):
            assert trial.is_protected == (experiment.name == "private-model" and trial.corpus.is_users)
            if trial.is_protected:
                stores = Stores((Path("store"),))
                with pytest.raises(SottoError, match="--declared-users"):
                    Populations(Path("nowhere"), stores, GPU).users(trial)
                declared = replace(stores, declared_users=27_000)
                assert Populations(Path("nowhere"), declared, GPU).users(trial) == 27_000


@pytest.mark.parametrize("name", ["figure-1", "figure-2", "figure-5", "figure-6", "table-2"])
def test_the_unclipped_baseline_differs_in_its_learning_rate_alone(name):
    grid = [trial for trial in EXPERIMENTS[name].trials(GPU) if trial.best_of]
    recipes = [recipe_of(trial, GPU) for trial in grid]
    assert [recipe.local.learning_rate for recipe in recipes] == list(BASELINE_RATES)
    assert recipes[-1].local.learning_rate == 6.0  # the paper's, under the name of its kept result
    assert grid[-1].name == "fedavg-no-clip-sigma0-estimator-true-average"
    for trial, recipe in zip(grid, recipes, strict=True):
        assert (recipe.privacy.clipping, recipe.privacy.estimator) == ("none", "true_average")
        assert recipe.replace(local={"learning_rate": 6.0}) == recipes[-1]
        assert trial.label.endswith(f"η = {recipe.local.learning_rate:g}")
    assert len({trial.best_of for trial in grid}) == 1


def test_the_gpu_size_is_the_papers_setting():
    recipe = recipe_of(EXPERIMENTS["sigma"].trials(GPU)[1], GPU)
    assert (recipe.model.embedding, recipe.model.hidden, recipe.privacy.cohort) == (96, 256, 100)
    assert (recipe.privacy.clip_norm, recipe.privacy.noise_std, recipe.privacy.clip_when) == (15, 0.003, "every_step")
    assert (recipe.run.rounds, recipe.run.evaluate_every) == (1500, 20)
    assert EXPERIMENTS["sigma"].user_updates(GPU, seeds=3) == 3 * 4 * 150_000
    small, large = EXPERIMENTS["figure-7"].trials(GPU)
    assert [trial.cohort_of(GPU) for trial in (small, large)] == [100, 1250]
    assert [recipe_of(trial, GPU).run.block for trial in (small, large)] == [100, 625]
    assert EXPERIMENTS["figure-9"].trials(GPU)[0].cohort_of(GPU) == 50
    swept = {trial.place.x for trial in EXPERIMENTS["figure-3"].trials(GPU) if trial.place.group == "flat"}
    assert swept == {0.0, *NOISE_AXIS}


def test_a_trial_that_goes_on_comes_after_what_it_goes_on_from():
    runs = [trial.name for trial, _ in EXPERIMENTS["figure-4"].runs(GPU)]
    for trial in EXPERIMENTS["figure-4"].trials(GPU):
        if trial.after:
            assert runs.index(trial.after.name) < runs.index(trial.name)
    # The paper shows two runs of S = 20.
    assert {count for trial, count in EXPERIMENTS["figure-8"].runs(GPU) if trial.name.endswith("S20-sigma0.012")} == {
        2,
        1,
    }


def test_central_training_promises_nothing_and_has_no_clip_in_its_name():
    trial = Trial("central", Changes(run={"algorithm": "central"}, local={"learning_rate": 0.5}))
    assert trial.name == "central-learning-rate0.5"
    made = recipe_of(trial, GPU)
    assert (made.privacy.mode, made.privacy.noise_std, made.run.block) == ("none", None, 0)
    resolved = resolve(made)
    assert (resolved.privacy.clipping, resolved.privacy.cohort) == ("none", 100)
    mechanism = build_mechanism(resolved, LAYERS)
    assert isinstance(mechanism.event(1), NonPrivate)


@pytest.mark.slow
def test_published_results_are_of_the_recipes_their_trials_make_today():
    published = Path(__file__).parents[4] / "docs" / "results" / "mcmahan2018" / "results"
    trials = {trial.name: trial for experiment in EXPERIMENTS.values() for trial, _ in experiment.runs(GPU)}
    files = list(published.glob("*.json"))
    assert len(files) > 20
    for file in files:
        outcome = Outcome.load(file)
        trial = trials[outcome.name]
        users = outcome.facts["users"] if trial.corpus.compared_on_users else 7818
        made = trial.recipe(Recipe.load("mcmahan2018"), GPU, users=users, store="", seed=outcome.seed)
        made = made.replace(model={"initial": None})  # no path is published
        assert Recipe.from_dict(outcome.recipe) == resolve(made), file.name
