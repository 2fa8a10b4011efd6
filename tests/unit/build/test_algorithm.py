"""From a recipe to the parts of its algorithm."""

from __future__ import annotations

import pytest

from sottovoce.build.algorithm import build_objective, build_strategy, build_user_update
from sottovoce.local.objective import Penalised, WithoutForgetting, plain
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training.strategy import FederatedAveraging
from sottovoce.training.variants.central import Central
from sottovoce.training.variants.example_level import ExampleLevel
from sottovoce_evidence.recipe import Recipe

BASE = Recipe().replace(privacy={"users": 20, "cohort": 6})


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, FederatedAveraging()),
        ({"run": {"algorithm": "central", "seed": 3}}, Central(6, 3)),
        (
            {"run": {"algorithm": "els"}, "local": {"tokens": 9}, "privacy": {"examples_per_user": 4}},
            ExampleLevel(9, 4),
        ),
    ],
    ids=str,
)
def test_a_recipe_has_one_strategy(changes, strategy):
    assert build_strategy(BASE.replace(**changes)) == strategy


@pytest.mark.parametrize(
    ("objective", "built"),
    [("plain", plain), ("rehearsal", plain), ("without_forgetting", WithoutForgetting(0.5))],
)
def test_objectives_are_those_of_the_recipe(objective, built):
    assert build_objective(BASE.replace(local={"objective": objective, "user_share": 0.5})) == built


def test_what_a_device_does_is_that_of_the_recipe():
    local = {
        "epochs": 3,
        "batch": 2,
        "penalty": 0.01,
        "gradient_clip": 0.5,
        "objective": "rehearsal",
        "user_share": 0.5,
    }
    update = build_user_update(BASE.replace(local=local), FlatClip(1.0), plain, 0)
    assert isinstance(update, FedAvg)
    assert (update.epochs, update.batch, update.gradient_clip, update.user_share) == (3, 2, 0.5, 0.5)
    assert update.objective == Penalised(plain, 0.01)
    one = build_user_update(BASE.replace(run={"algorithm": "fedsgd"}, local={"tokens": 7}), FlatClip(1.0), plain, 0)
    assert isinstance(one, FedSGD)
    assert one.tokens == 7
