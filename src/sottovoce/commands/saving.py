"""What a checkpoint of a run holds: the state of training, and what an audit beside it has gathered."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sottovoce.errors import DamagedRun
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.secrets import Secrets
from sottovoce.training.server import ServerState

_SCORES = "canaries"


def save_checkpoint(
    run: RunFolder, state: ServerState, secrets: Secrets, parent: str, scores: np.ndarray | None = None
) -> Secrets:
    """The keys of the next round first: a checkpoint without them would be of no use. The seal tells it from others."""
    ahead = secrets.at(state.round + 1)
    leaves = jax.tree.leaves(_saved_parts(state))
    arrays = {f"{index:04d}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
    if scores is not None:
        arrays[_SCORES] = scores  # with the state they belong to: a round done again is not counted twice
    saved = Checkpoint(state.round, arrays, {"lineage": parent})
    ahead.save(run.secrets, ahead.seal(state.round, saved.contents))
    checkpoints.save(run.checkpoints, saved)
    Secrets.forget(run.secrets, checkpoints.KEPT)
    return ahead


def check_origin(run: RunFolder, ledger: Ledger, saved: Checkpoint) -> None:
    """Refuse a checkpoint that this run did not make: an edited one, another run's, or that of a copy that went on."""
    lineage = saved.facts.get("lineage")
    paid = saved.round == 0 or any(entry.lineage == lineage for entry in ledger.of_round(saved.round))
    seal = Secrets.read_seal(run.secrets, saved.round + 1)
    made = Secrets.load(run.secrets, saved.round + 1).seal(saved.round, saved.contents)
    if not paid or (seal != made and not (seal is None and ledger.is_old)):
        raise DamagedRun(
            f"checkpoints/round-{saved.round:08d}.safetensors of {run.path} is not what this run released in round "
            f"{saved.round} by its ledger: it was edited, or is from another run or another copy of this one; put the "
            f"run's own back, or remove it to go on from the one before"
        )


def load_state(saved: Checkpoint, fresh: ServerState) -> ServerState:
    """The state that was saved, shaped like that of a run before its first round."""
    leaves, structure = jax.tree.flatten(_saved_parts(fresh))
    arrays = [jax.numpy.asarray(saved.arrays[f"{index:04d}"]) for index in range(len(leaves))]
    return ServerState(saved.round, *structure.unflatten(arrays))


def saved_scores(saved: Checkpoint) -> np.ndarray | None:
    """What an audit had gathered for each canary."""
    return saved.arrays.get(_SCORES)


def _saved_parts(state: ServerState) -> tuple[Any, ...]:
    """All of the state but the round's number. What waits in a queue is no part of it: updates are not noised."""
    return state.model, state.optimiser, state.clip_norms, state.deployed
