"""From a recipe to the parts of its algorithm: what devices minimise and do, and what the server does.

`rules` has checked the recipe before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import optax

from sottovoce.local.objective import Objective, Penalised, WithoutForgetting, plain
from sottovoce.local.update import Begins, FedAvg, FedSGD, UserUpdate
from sottovoce.privacy.clipping import Clip
from sottovoce.training.server import Server
from sottovoce.training.strategy import FederatedAveraging, Strategy
from sottovoce.training.variants.central import Central
from sottovoce.training.variants.example_level import ExampleLevel
from sottovoce_evidence import recipe as recipes
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.schedule import build_schedule


def build_objective(recipe: Recipe) -> Objective:
    """What a device minimises. Rehearsal is plain: it changes what is read, not the objective."""
    if recipe.local.objective == "without_forgetting":
        return WithoutForgetting(recipe.local.user_share)
    return plain


def build_user_update(recipe: Recipe, clipping: Clip, objective: Objective, bos: Begins) -> UserUpdate:
    local = recipe.local
    if local.penalty:
        objective = Penalised(objective, local.penalty)
    if recipe.run.algorithm == "fedavg":
        return FedAvg(
            clipping,
            recipe.privacy.clip_when == "every_step",
            epochs=local.epochs,
            batch=local.batch,
            unroll=local.unroll,
            learning_rate=local.learning_rate,
            objective=objective,
            user_share=local.user_share if local.objective == "rehearsal" else 1.0,
            gradient_clip=local.gradient_clip,
            bos=bos,
        )
    # Central training takes the steps of FedSGD, each on the pooled text of some users. The text of an example is what
    # its one gradient is of.
    return FedSGD(
        clipping,
        batch=local.batch,
        unroll=local.unroll,
        learning_rate=local.learning_rate,
        tokens=local.tokens,
        objective=objective,
        bos=bos,
    )


def build_server(recipe: Recipe) -> Server:
    schedule = build_schedule(recipe.server.schedule)
    return Server(build_optimiser(replace(recipe.server, schedule=())), schedule)


@lru_cache  # jax compares optimisers by identity: the same object avoids another compilation
def build_optimiser(server: recipes.Server) -> optax.GradientTransformation:
    if server.optimiser == "momentum":
        return optax.sgd(server.learning_rate, momentum=server.momentum)
    if server.optimiser == "adam":
        return optax.adam(server.learning_rate)
    return optax.sgd(server.learning_rate)


def build_strategy(recipe: Recipe) -> Strategy:
    """What a round is: federated averaging, or one of its variants."""
    run = recipe.run
    if run.algorithm == "els":
        return ExampleLevel(recipe.local.tokens, recipe.privacy.examples_per_user)
    if run.algorithm == "central":
        return Central(int(recipe.privacy.cohort), run.seed)
    return FederatedAveraging()
