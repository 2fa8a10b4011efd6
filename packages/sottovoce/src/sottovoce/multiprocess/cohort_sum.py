"""A cohort shared out over processes: each adds up its own blocks, and one sum of integers joins them.

Process 0 alone draws cohort and noise, and the blocks are those of one process: so a round of many processes is the
round of one, to the bit where their machines compute alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.store import Store
from sottovoce.local.update import UserResult
from sottovoce.multiprocess.group import Group
from sottovoce.training.cohort_sum import SumInBlocks, Sums
from sottovoce.training.types import Algorithm, CohortSum, Task
from sottovoce_evidence.errors import SottoError


@dataclass
class SumOverProcesses:
    """Σ w_k Δ_k over all processes of a group: `SumInBlocks` for process 0."""

    group: Group
    in_blocks: SumInBlocks
    sent: Any = None  # the frozen part that the others have

    def __call__(self, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        # The others get all that a user's update depends on, and nothing of what is drawn for the noise.
        with self.group.uninterruptible():
            if algorithm.frozen is not self.sent:
                self.group.broadcast(_frozen_to_bytes(algorithm.frozen))
                self.sent = algorithm.frozen
            self.group.broadcast(_to_bytes(task))
            return _sum_together(self.group, self.in_blocks, algorithm, task, store)


def add_up_for(
    group: Group,
    in_blocks: SumInBlocks,
    algorithm: Algorithm,
    like: Any,
    store: Store,
    stop: Callable[[], bool],
) -> None:
    """What every process but 0 does: its share of each round, until `Dismissed` is raised.

    A frozen part comes once, before the first round: the weights that a run starts from are at process 0 alone.
    """
    while True:
        message = group.receive()
        if message.startswith(_FROZEN):
            algorithm = replace(algorithm, frozen=_frozen_from_bytes(message, algorithm.frozen))
            continue
        task = _from_bytes(message, like)
        group.request_stop(stop())
        _sum_together(group, in_blocks, algorithm, task, store)


_FROZEN = b"frozen "


def _frozen_to_bytes(frozen: Any) -> bytes:
    from safetensors.numpy import save

    leaves = {f"{number:06d}": np.asarray(leaf, order="C") for number, leaf in enumerate(jax.tree.leaves(frozen))}
    message = _FROZEN + save(leaves)
    if len(message) >= 2**31:
        raise SottoError(f"the frozen part of the model has {len(message):,} bytes, more than processes send (2 GiB)")
    return message


def _frozen_from_bytes(message: bytes, like: Any) -> Any:
    from safetensors.numpy import load

    arrays = load(message.removeprefix(_FROZEN))
    return jax.tree.structure(like).unflatten([jnp.asarray(arrays[name]) for name in sorted(arrays)])


def _to_bytes(task: Task) -> bytes:
    from safetensors.numpy import save

    key = np.asarray(jax.random.key_data(task.key))
    arrays = {"cohort": task.cohort, "key": key, "clip_norms": np.asarray(task.clip_norms)}
    leaves = {f"{number:04d}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(task.params))}
    return save({name: np.ascontiguousarray(array) for name, array in (arrays | leaves).items()})


def _from_bytes(message: bytes, like: Any) -> Task:
    from safetensors.numpy import load

    arrays = load(message)
    cohort, key, clip_norms = (arrays.pop(name) for name in ("cohort", "key", "clip_norms"))
    params = jax.tree.structure(like).unflatten([jnp.asarray(arrays[name]) for name in sorted(arrays)])
    return Task(params, cohort, clip_norms, jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32"))


def _sum_together(group: Group, in_blocks: SumInBlocks, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
    cohort = task.cohort
    mine = in_blocks.blocks(algorithm, store, cohort)[group.rank :: group.count]
    sums, results = in_blocks.add_up(mine, algorithm, task, store)
    total = _add_trees(group, sums.total)
    asked, weight, bits = _add_trees(group, (np.array(group.stop_requested(), np.int32), sums.weight, sums.bits))
    group.request_stop(bool(asked))
    taken, norms, clipped, losses = _add_trees(group, _columns(len(cohort), mine, results))
    if not np.all(taken == 1):
        # A user who is added up twice may move the sum by twice the clip norm. Nothing of it was released.
        raise SottoError("the processes disagree on who computes whom; do all have the same store and devices?")
    everyone = UserResult(None, jnp.ones(len(cohort)), norms, clipped[:, None] > 0, losses)
    grid = algorithm.mechanism.grid(task.clip_norms)
    return Sums(total, weight, bits).cohort_sum(grid, [everyone], [np.arange(len(cohort))])


def _add_trees(group: Group, tree: Any) -> Any:
    """The sum over processes of a pytree of one dtype. The halves of fixed-point numbers may leave a carry."""
    leaves, structure = jax.tree.flatten(tree)
    added = group.all_reduce(np.concatenate([np.ravel(leaf) for leaf in leaves]))
    parts = np.split(added, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return structure.unflatten([part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def _columns(users: int, blocks: list[np.ndarray], results: list[UserResult]) -> np.ndarray:
    """How often, norm, clipped, loss of this process's users at their places in the cohort; elsewhere zeros."""
    columns = np.zeros((4, users), np.float32)
    for places, result in zip(blocks, results, strict=True):
        found = (result.norm, np.any(result.clipped, axis=-1), result.loss)
        columns[0, places] += 1
        columns[1:, places] = [np.ravel(column)[: len(places)] for column in found]
    return columns
