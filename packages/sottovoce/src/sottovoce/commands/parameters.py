"""How many parameters the model of a recipe has, and how many of them are trained. No weight is computed."""

from __future__ import annotations

from pathlib import Path

import jax

from sottovoce.build import rules
from sottovoce.build.assembly import build_model, filled_model
from sottovoce.commands.initial_model import with_sizes
from sottovoce.commands.stores import has_own_store
from sottovoce.data.demo import demo_vocabulary
from sottovoce.data.store import Store
from sottovoce.models.contract import parameter_count, split
from sottovoce.models.lora import merge
from sottovoce.planning.trained import Sizes
from sottovoce_evidence.recipe import Recipe

USUAL_VOCABULARY = 10_000  # where there is no store yet


def count_parameters(recipe: Recipe) -> Sizes:
    """The sizes of the model of a recipe, over the vocabulary of its store, or a usual one where there is none yet."""
    rules.check(rules.model_keys(recipe.model))
    vocabulary = USUAL_VOCABULARY
    if has_own_store(recipe):
        vocabulary = demo_vocabulary().size
    elif recipe.data.store and Path(recipe.data.store).is_dir():
        vocabulary = Store.open(recipe.data.store).vocabulary.size
    filled = filled_model(with_sizes(recipe))
    model, plain = jax.eval_shape(lambda: (model := build_model(filled, vocabulary), merge(model)))
    params, frozen = split(model)
    return Sizes(parameter_count(plain), parameter_count(params), parameter_count(frozen))
