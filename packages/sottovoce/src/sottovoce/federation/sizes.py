"""What a recipe makes a device hold, known before any of it is made: numbers are compared, models have only shapes.

A recipe comes from the server. Nothing of it may cost a device memory before the limits of its owner are looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import equinox as eqx
import jax

from sottovoce.build.assembly import Assembly, build_model, filled_model
from sottovoce.federation.limits import Limits
from sottovoce.local.update import bytes_of_a_step
from sottovoce.models.contract import LanguageModel, parameter_count, split
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

MOST_ROUNDS = 100_000  # of a run: devices count over all of them how often a user may join
MOST_COEFFICIENTS = 1_024  # of a strategy matrix


def check_recipe(recipe: Recipe, words: int, limits: Limits) -> None:
    """Refuse a recipe whose model is beyond the limits, or that asks for more than a device computes before training.

    Guarantee: no array is made.
    """
    for sentence in _declared(recipe):
        raise SottoError(sentence)
    recipe = filled_model(recipe)
    plain = recipe.replace(model={"adapter_rank": None, "adapter_scale": None, "adapter_matrices": None})
    model = _shapes(plain.replace(model={"adapter_trains": None}), words)
    # Adapters are found by tracing the model, and what is traced must be small already.
    _check_count(parameter_count(model), limits.parameters + limits.frozen_parameters, "parameters")
    state = parameter_count(eqx.filter_eval_shape(lambda model: model.initial_state(), model))
    _check_count(4 * recipe.local.batch * state, memory_for_training(), "bytes for the states of its lanes")
    if recipe.model.adapter_rank is not None:
        model = _shapes(recipe, words)
    trained, frozen = split(model)
    _check_count(parameter_count(trained), limits.parameters, "trained parameters")
    _check_count(parameter_count(frozen), limits.frozen_parameters, "frozen parameters")


def check_training(assembly: Assembly) -> None:
    """Refuse a run whose users do not fit the memory of this machine, as many as are computed at once.

    Guarantee: the text of no user is asked. No array is made.
    """
    users = assembly.sum_updates.block
    needed = users * bytes_of_a_step(assembly.algorithm.user_update, assembly.model)
    _check_count(needed, memory_for_training(), "bytes to train users")


def memory_for_training() -> int:
    """Bytes that training may take: two thirds of what the machine, or its GPU, has."""
    on_gpu = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    return (on_gpu or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) * 2 // 3


def _declared(recipe: Recipe) -> Iterator[str]:
    privacy, rounds = recipe.privacy, max(recipe.run.rounds, recipe.privacy.participations)
    if rounds > MOST_ROUNDS:
        yield f"a run of {rounds:,} rounds is longer than a device joins, {MOST_ROUNDS:,}"
    if len(privacy.noise_coefficients) > MOST_COEFFICIENTS:
        yield f"{len(privacy.noise_coefficients):,} noise_coefficients are more than {MOST_COEFFICIENTS:,}"
    open_matrix = privacy.noise in ("banded", "blt") and not privacy.noise_coefficients
    if privacy.mode == "private" and (privacy.noise_multiplier is None or open_matrix):
        yield "the noise of the run is left open: a device does not search for it, the server has found it before"


def _shapes(recipe: Recipe, words: int) -> LanguageModel:
    """The model of a recipe, with shapes in place of arrays."""
    return eqx.filter_eval_shape(lambda: build_model(recipe, words))


def _check_count(found: int, most: int, what: str) -> None:
    if found > most:
        raise SottoError(f"the run needs {found:,} {what}, more than the {most:,} of this device")
