"""Does this machine compute a user's update alike, whoever else is computed with them? Made-up users show it.

The proofs need it: else one person would change what others send. On a CPU it holds by construction, since users are
computed one after the other. A GPU computes a block at once, and its libraries choose how.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.models.contract import is_inexact
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.types import Algorithm, Task
from sottovoce_evidence.errors import SottoError


def check_seats(in_blocks: SumInBlocks, algorithm: Algorithm, params: Any, store: Store) -> None:
    """Refuse a device on which one person changes what others send. `store` gives vocabulary and length, no text."""
    seats = in_blocks.block * in_blocks.devices
    if seats == 1 or jax.default_backend() == "cpu":
        return
    if depends_on_others(in_blocks, algorithm, params, store):
        kind = jax.local_devices()[0].device_kind
        raise SottoError(
            f"on this device ({kind}) what a user sends is not the same in every block, so the guarantee would not "
            f"hold; set XLA_FLAGS=--xla_gpu_deterministic_ops=true before Python starts, or train on a CPU"
        )


def depends_on_others(in_blocks: SumInBlocks, algorithm: Algorithm, params: Any, store: Store) -> bool:
    """Does a sum move by anything but the newcomer's own update, in some seat or at an edge of a block?"""
    seats = in_blocks.block * in_blocks.devices
    total = partial(_total, in_blocks, algorithm, params, _made_up(store, seats + 2))
    alone = total([0])
    if not np.array_equal(total([0] * seats), seats * alone):
        return True
    worlds = [range(1, count) for count in (seats, seats + 1, seats + 2)]  # one seat is left; none; one user too many
    return any(not np.array_equal(total([0, *others]) - total(others), alone) for others in worlds)


def digest_of_update(in_blocks: SumInBlocks, algorithm: Algorithm, params: Any, store: Store) -> str:
    """A hash of what a made-up user sends in all seats: machines that compute alike have the same one."""
    rows = [0] * (in_blocks.block * in_blocks.devices)
    return hashlib.sha256(_total(in_blocks, algorithm, params, _made_up(store, 1), rows).tobytes()).hexdigest()


def _total(in_blocks: SumInBlocks, algorithm: Algorithm, params: Any, store: Store, rows: Sequence[int]) -> np.ndarray:
    mechanism = algorithm.mechanism
    clip_norms = mechanism.clip_norms(1, mechanism.start())
    task = Task(_weights(params), np.asarray(rows, int), clip_norms, local_key(bytes(8)))
    summed = in_blocks(replace(algorithm, frozen=_weights(algorithm.frozen)), task, store)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summed.total)])


def _weights(like: Any) -> Any:
    """Made-up weights in the shapes of a model: processes that have other weights before a run begins can compare."""
    generator = np.random.default_rng(1)

    def made_up(leaf: Any) -> Any:
        if not is_inexact(leaf):
            return leaf
        return jnp.asarray(generator.normal(0, 0.05, np.shape(leaf)), leaf.dtype)

    return jax.tree.map(made_up, like)


def _made_up(store: Store, users: int) -> Store:
    """The first user has a full text, the others texts of all lengths."""
    cap, generator = store.tokens_per_user, np.random.default_rng(0)
    lengths = [cap, *generator.integers(0, cap + 1, users - 1)]
    # Few words, so that each comes often: the order of sums into its row then matters.
    texts = [generator.integers(0, min(store.vocabulary.size, 8), length) for length in lengths]
    return replace(Store.from_users(texts, store.vocabulary, cap), public=store.public)
