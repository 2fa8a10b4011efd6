"""The canaries of a run: inserted when it begins, scored while it trains, read back by an audit."""

from __future__ import annotations

import numpy as np

from sottovoce.audit.canaries import choose
from sottovoce.audit.one_run import CanaryScorer, draw_membership
from sottovoce.audit.registry import Registry
from sottovoce.build.assembly import Assembly
from sottovoce.data.store import Store
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Salt
from sottovoce_evidence.errors import DamagedRun, count_of
from sottovoce_evidence.files import LINES, Json, parse_json, read_plain
from sottovoce_evidence.recipe import Recipe

SCORES = "canaries"  # in a checkpoint
MANY = 0.1  # of the declared population: more canaries than that change the model noticeably


def choose_canaries(recipe: Recipe, store: Store) -> Registry | None:
    """The canaries that a recipe adds to the users of a store, if any."""
    if not recipe.audit.plants:
        return None
    return choose(recipe.audit, store.vocabulary, store.tokens_per_user, recipe.run.seed)


def read_registry(run: RunFolder, header: Json) -> Registry | None:
    """The canaries of a run, from the file that its ledger names."""
    if "canaries" not in header:
        return None
    try:
        registry = Registry.from_json(parse_json(read_plain(run.registry_file, LINES)))
    except (OSError, ValueError) as error:
        raise DamagedRun(f"cannot read {run.registry_file} ({error}); put it back") from None
    if registry.digest() != header["canaries"]["registry"]:
        raise DamagedRun(f"{run.registry_file} is not what was inserted when {run.path} began; put it back")
    return registry


def canary_scorer(run: RunFolder, header: Json, assembly: Assembly, store: Store, salt: Salt) -> CanaryScorer | None:
    """The observer of a run with canaries, which holds the store that it trains on."""
    registry = read_registry(run, header)
    return None if registry is None else CanaryScorer.of(assembly, store, registry, draw_membership(registry, salt))


def initial_scores(registry: Registry | None) -> np.ndarray | None:
    return None if registry is None else np.zeros(len(registry.users))


def saved_canary_scores(saved: Checkpoint) -> np.ndarray:
    """The scores of an audit at the time of the checkpoint, one a canary."""
    scores = saved.arrays.get(SCORES)
    if scores is None:
        raise DamagedRun("the checkpoint has no scores of the canaries that were inserted; start another run")
    return scores


def notes_of(scorer: CanaryScorer, store: Store, declared: int) -> list[str]:
    """What the owner should know before training."""
    canaries = scorer.everyone.users - store.users
    train = count_of(canaries, "canary user trains", "canary users train")
    note = f"{train} with {count_of(declared, 'declared one')}, and the model will learn their words"
    return [f"{note}; for a model to release, insert fewer"] if canaries > MANY * declared else []
