"""The canaries of a run: planted when it begins, watched while it trains, read back by an audit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sottovoce.audit.canaries import Registry, choose
from sottovoce.audit.one_run import CanaryWatch, toss
from sottovoce.build.assembly import Assembly
from sottovoce.data.store import Store
from sottovoce.errors import DamagedRun
from sottovoce.recipe import Recipe
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets

SCORES = "canaries"  # in a checkpoint
MANY = 0.1  # of the declared population: more canaries than that are heard in the model


def plan_canaries(recipe: Recipe, store: Store) -> Registry | None:
    """What a recipe plants among the users of a store, if anything."""
    if not recipe.audit.plants:
        return None
    return choose(recipe.audit, store.vocabulary, store.tokens_per_user)


def read_registry(run: RunFolder, header: dict[str, Any]) -> Registry | None:
    """What was planted in a run, by the file that its ledger names."""
    if "canaries" not in header:
        return None
    try:
        registry = Registry.from_json(json.loads(run.registry_file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DamagedRun(f"cannot read {run.registry_file} ({error}); put it back") from None
    if registry.digest() != header["canaries"]["registry"]:
        raise DamagedRun(f"{run.registry_file} is not what was planted when {run.path} began; put it back")
    return registry


def watch_canaries(
    run: RunFolder, header: dict[str, Any], assembly: Assembly, store: Store, secrets: Secrets
) -> CanaryWatch | None:
    """What stands beside the rounds of a run with canaries, and holds the store that it trains on."""
    registry = read_registry(run, header)
    return None if registry is None else CanaryWatch.of(assembly, store, registry, toss(registry, secrets))


def no_scores(registry: Registry | None) -> np.ndarray | None:
    return None if registry is None else np.zeros(len(registry.users))


def take_scores(saved: Checkpoint) -> np.ndarray:
    """What an audit had gathered for each canary when the checkpoint was made."""
    scores = saved.arrays.get(SCORES)
    if scores is None:
        raise DamagedRun("the checkpoint has no scores of the canaries that were planted; start another run")
    return scores


def notes_of(watch: CanaryWatch, store: Store, declared: int) -> list[str]:
    canaries = watch.everyone.users - store.users
    if canaries <= MANY * declared:
        return []
    return [
        f"{canaries:,} canary users train beside {declared:,} declared ones: their words will be heard in the model; "
        f"for one to be released, plant fewer"
    ]
