"""A cohort shared out over processes: each adds up its own blocks, and one sum of whole numbers joins them.

Cohort and noise are drawn by process 0 alone, and the blocks are those of one process: so a round of many processes is
the round of one, to the bit where their machines compute alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.local.update import UserResult
from sottovoce.models.contract import LanguageModel
from sottovoce.multiprocess.group import Group
from sottovoce.training.cohort_sum import Block, SumInBlocks, Sums, share_out
from sottovoce.training.round import Algorithm, CohortSum


@dataclass(frozen=True)
class SumOverProcesses:
    """Σ w_k Δ_k over all processes of a group: `SumInBlocks` for process 0."""

    group: Group
    in_blocks: SumInBlocks

    def __call__(
        self, algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray,
        clip_norms: np.ndarray,
    ) -> CohortSum:  # fmt: skip
        # The others are told all that a user's update depends on, and nothing of what is drawn for the noise.
        with self.group.uninterruptible():
            self.group.broadcast(_Task.of(model, cohort, key, clip_norms).to_bytes())
            return _sum_together(self.group, self.in_blocks, algorithm, model, store, cohort, key, clip_norms)


def add_up_for(
    group: Group, in_blocks: SumInBlocks, algorithm: Algorithm, like: LanguageModel, store: Store,
    stop: Callable[[], bool],
) -> None:  # fmt: skip
    """What every process but 0 does: its share of each round, until `Dismissed` is raised."""
    structure = jax.tree.structure(like)
    while True:
        task = _Task.from_bytes(group.receive())
        model = structure.unflatten([jnp.asarray(leaf) for leaf in task.leaves])
        key = jax.random.wrap_key_data(jnp.asarray(task.key), impl="threefry2x32")
        group.request_stop(stop())
        _sum_together(group, in_blocks, algorithm, model, store, task.cohort, key, task.clip_norms)


class _Task(NamedTuple):
    """What process 0 says of a round."""

    cohort: np.ndarray
    key: np.ndarray
    clip_norms: np.ndarray
    leaves: list[np.ndarray]

    @staticmethod
    def of(model: LanguageModel, cohort: np.ndarray, key: PRNGKeyArray, clip_norms: np.ndarray) -> _Task:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(model)]
        return _Task(cohort, np.asarray(jax.random.key_data(key)), np.asarray(clip_norms), leaves)

    def to_bytes(self) -> bytes:
        from safetensors.numpy import save

        arrays = {"cohort": self.cohort, "key": self.key, "clip_norms": self.clip_norms}
        leaves = {f"{number:04d}": leaf for number, leaf in enumerate(self.leaves)}
        return save({name: np.ascontiguousarray(array) for name, array in (arrays | leaves).items()})

    @staticmethod
    def from_bytes(message: bytes) -> _Task:
        from safetensors.numpy import load

        arrays = load(message)
        cohort, key, clip_norms = (arrays.pop(name) for name in ("cohort", "key", "clip_norms"))
        return _Task(cohort, key, clip_norms, [arrays[name] for name in sorted(arrays)])


def _sum_together(
    group: Group, in_blocks: SumInBlocks, algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray,
    key: PRNGKeyArray, clip_norms: np.ndarray,
) -> CohortSum:  # fmt: skip
    mine = share_out(in_blocks.blocks(algorithm, store, cohort), group.count)[group.rank]
    sums, results = in_blocks.add_up(mine, algorithm, model, store, cohort, key, clip_norms)
    total = _add_trees(group, sums.total)
    asked, weight, bits = _add_trees(group, (np.array(group.stop_requested(), np.int32), sums.weight, sums.bits))
    group.request_stop(bool(asked))
    taken, norms, clipped, losses = _add_trees(group, _columns(len(cohort), mine, results))
    if not np.all(taken == 1):
        # Whoever is added up twice may move the sum by twice the clip norm. Nothing of it was released.
        raise SottoError("the processes disagree on who computes whom; do all have the same store and devices?")
    everyone = UserResult(None, jnp.ones(len(cohort)), norms, clipped[:, None] > 0, losses)
    grid = algorithm.mechanism.grid(clip_norms)
    return Sums(total, weight, bits).cohort_sum(grid, [everyone], [np.arange(len(cohort))])


def _add_trees(group: Group, tree: Any) -> Any:
    """The sum over processes of a pytree of one kind of number.

    The halves of whole numbers are added apart, and may leave a carry: `value` counts it in.
    """
    leaves, structure = jax.tree.flatten(tree)
    added = group.all_reduce(np.concatenate([np.ravel(leaf) for leaf in leaves]))
    parts = np.split(added, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return structure.unflatten([part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def _columns(users: int, blocks: list[Block], results: list[UserResult]) -> np.ndarray:
    """How often, norm, clipped, loss of this process's users at their places in the cohort; elsewhere zeros."""
    columns = np.zeros((4, users), np.float32)
    for block, result in zip(blocks, results, strict=True):
        found = (result.norm, np.any(result.clipped, axis=-1), result.loss)
        columns[0, block.places] += 1
        columns[1:, block.places] = [np.asarray(column)[: len(block.places)] for column in found]
    return columns
