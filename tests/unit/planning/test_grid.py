"""The choices around a recipe: noise as a run would have it, nothing read from the store, no jax."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.planning.grid import EPSILONS, is_long, plan_recipe
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

# The fast accountant: what is tested is the grid.
MINE = Recipe.load("small").replace(data={"store": "nowhere"}, privacy={"users": 3900, "accountant": "moments"})


@pytest.fixture(scope="module")
def grid():
    return plan_recipe(MINE)


def test_every_epsilon_is_paired_with_three_cohorts_and_with_fewer_rounds(grid):
    found = [(choice.cohort, choice.rounds, choice.epsilon) for choice in grid.choices]
    sizes = [(250, 40), (500, 40), (1000, 40), (500, 10), (500, 20)]
    assert found == [(*size, epsilon) for size in sizes for epsilon in EPSILONS]
    assert [choice.cohort for choice in grid.choices if grid.is_own(choice)] == [500]


@pytest.mark.parametrize(("seconds", "rounds", "long"), [(1300, 40, True), (1100, 40, False), (1300, 37, False)])
def test_a_run_is_long_by_its_time_if_a_quarter_of_it_was_measured(seconds, rounds, long):
    assert is_long(seconds, rounds) is long


@pytest.mark.parametrize("number", [0, 7, 12])
def test_the_noise_of_a_choice_is_that_of_its_run(grid, number):
    assert_noise_of_a_run(MINE, grid.choices[number])


@pytest.mark.parametrize(
    "more",
    [
        {"estimator": "clipped_denominator", "total_weight": 3000.0},
        {"total_weight": 3000.0},
        {"clipping": "per_layer"},
        {"clip_schedule": [[1, 0.5], [20, 0.25]]},
        {"noise_schedule": [[1, 2.0], [20, 1.0]]},
        pytest.param({"sampling": "fixed", "accountant": "pld"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_noise_is_that_of_the_run_for_every_mechanism(more, monkeypatch):
    monkeypatch.setattr("sottovoce.planning.grid.EPSILONS", ())
    monkeypatch.setattr("sottovoce.planning.grid.COHORTS", (1.0,))
    monkeypatch.setattr("sottovoce.planning.grid.FEWER_ROUNDS", ())
    recipe = MINE.replace(privacy=more)
    (choice,) = plan_recipe(recipe).choices
    assert_noise_of_a_run(recipe, choice)


def test_noise_of_devices_is_found_for_an_epsilon_and_has_one_against_the_server(monkeypatch):
    monkeypatch.setattr("sottovoce.planning.grid.EPSILONS", ())
    monkeypatch.setattr("sottovoce.planning.grid.COHORTS", (1.0,))
    monkeypatch.setattr("sottovoce.planning.grid.FEWER_ROUNDS", ())
    devices = {"noise": "devices", "survivors": 10, "colluding": 2}
    recipe = MINE.replace(privacy={"accountant": "auto"}, federation=devices)
    grid = plan_recipe(recipe)
    (choice,) = grid.choices
    assert_noise_of_a_run(recipe, choice)
    assert grid.epsilon == pytest.approx(8, rel=1e-2)
    mechanism = build_mechanism(resolve(recipe), ["one", "two"])
    assert grid.epsilon_server == accounting.epsilon(mechanism.devices.against_server, 1e-5)
    assert grid.epsilon_server > grid.epsilon  # sampling hides nothing from the server
    assert "PLD" in grid.accountant


def assert_noise_of_a_run(recipe, choice):
    asked = {"cohort": float(choice.cohort), "epsilon": choice.epsilon}
    asked = recipe.replace(privacy=asked, run={"rounds": choice.rounds})
    mechanism = build_mechanism(resolve(asked), ["one", "two"])
    assert choice.noise_multiplier == mechanism.noise_multiplier
    assert choice.noise_std == pytest.approx(mechanism.noise_std(1, mechanism.clip_norms(1, None))[0])


def test_the_recipes_own_epsilon_is_given_under_both_relations(monkeypatch):
    monkeypatch.setattr("sottovoce.planning.grid.EPSILONS", ())
    monkeypatch.setattr("sottovoce.planning.grid.COHORTS", (1.0,))
    monkeypatch.setattr("sottovoce.planning.grid.FEWER_ROUNDS", ())
    grid = plan_recipe(MINE.replace(privacy={"accountant": "auto"}))
    assert grid.epsilon == pytest.approx(8, rel=1e-2)
    assert len(grid.choices) == 1
    assert grid.epsilon_replaced is not None
    assert grid.epsilon_replaced > grid.epsilon
    assert grid.relation == "add-or-remove-one-user"


def test_an_epsilon_of_the_recipes_own_is_a_row():
    grid = plan_recipe(MINE.replace(privacy={"epsilon": 6.0, "cohort": 6000.0, "users": 7000}))
    own = [choice.epsilon for choice in grid.choices if (choice.cohort, choice.rounds) == (6000, 40)]
    assert own == [1, 2, 4, 6, 8]
    assert {choice.cohort for choice in grid.choices} == {3000, 6000, 7000}


def test_where_the_clip_adapts_no_noise_is_claimed():
    grid = plan_recipe(MINE.replace(privacy={"adaptive_quantile": 0.5}))
    assert {choice.noise_std for choice in grid.choices} == {None}


def test_planning_does_without_jax():
    code = (
        "import sys; from sottovoce.planning.grid import plan_recipe; from sottovoce_evidence.recipe import Recipe\n"
        "plan_recipe(Recipe.load('small').replace(privacy={'users': 3900, 'accountant': 'moments'}))\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("more", [{"sampling": "in_turn"}, {"sampling": "min_separation", "min_separation": 7}])
def test_correlated_noise_is_charged_for_the_run_whatever_the_matrix(more):
    recipe = MINE.replace(privacy={**more, "noise": "blt", "cohort": 500.0, "epsilon": 4.0})
    grid = plan_recipe(recipe)
    assert grid.relation == "add-or-remove-one-user"
    assert grid.epsilon == pytest.approx(4, rel=1e-2)
    by_epsilon = {choice.epsilon: choice.noise_multiplier for choice in grid.choices}
    assert {(each.epsilon, each.noise_multiplier) for each in grid.choices} == set(by_epsilon.items())
    assert {choice.noise_std for choice in grid.choices} == {None}


def test_correlated_noise_with_secret_cohorts_is_refused():
    with pytest.raises(SottoError, match="in_turn"):
        plan_recipe(MINE.replace(privacy={"noise": "blt"}))


ELS = MINE.replace(
    run={"algorithm": "els", "rounds": 4},
    local={"tokens": 40},
    privacy={"accountant": "pld", "examples_per_user": 8, "cohort": 900},
)


@pytest.mark.slow
def test_a_recipe_of_sampled_examples_is_planned_with_their_event():
    made = plan_recipe(ELS)
    assert max(choice.cohort for choice in made.choices) == 1800
    assert_noise_of_a_run(ELS, made.choices[0])
    resolved = resolve(ELS)
    event = accounting.SampledExamples(resolved.privacy.noise_multiplier, 900 / (3900 * 8), 8)
    assert made.epsilon == accounting.epsilon([(event, 4)], ELS.privacy.delta)
    with pytest.raises(SottoError, match="examples_per_user is not set"):
        plan_recipe(ELS.replace(privacy={"examples_per_user": 0}))
    with pytest.raises(SottoError, match="no accounting for sampled examples"):
        plan_recipe(ELS.replace(privacy={"accountant": "rdp"}))
