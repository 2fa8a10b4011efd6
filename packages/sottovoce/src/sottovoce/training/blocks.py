"""Blocks: which users of a cohort are computed together, and how many at once."""

from __future__ import annotations

from math import ceil
from typing import Any

import jax
import numpy as np

from sottovoce.local.update import UserUpdate, bytes_of_a_step
from sottovoce.models.contract import parameter_count, split


def cut_into_blocks(steps: np.ndarray, seats: int) -> list[np.ndarray]:
    """The users of a cohort in blocks of at most `seats`: the places in the cohort of each.

    Those who need most steps come first, so that users of similar length share a block.
    Guarantee: who is in a block changes nothing for the others. A block has the same seats and the same program
    whoever is in it.
    """
    blocks = ceil(len(steps) / seats)
    return np.array_split(np.argsort(-steps, kind="stable"), blocks) if blocks else []


def block_size(
    model: Any, cohort: float, chosen: int = 0, update: UserUpdate | None = None, varies: bool = True
) -> int:
    """Seats of a block on one device: as chosen, or what suits the model and the device. It is public.

    A cohort that varies by chance is seldom larger than by two and a half standard deviations of a Poisson cohort.

    Each user in a block has an update of their own in memory. On a CPU a block larger than the cache is slower; what is
    frozen counts there too: adapters are small, and what a step computes for a user is not. On a GPU what a step of
    `update` keeps for its gradient must fit too.
    """
    if chosen:
        return chosen
    on_cpu = jax.default_backend() == "cpu"
    counted = parameter_count(model if on_cpu else split(model)[0])
    most = max(1, min(512 if on_cpu else 4096, (6 * 2**20 if on_cpu else _room()) // (8 * counted)))
    if not on_cpu and update is not None and (memory := _memory()):
        # A third: the next block begins before the memory of this one is free.
        most = max(1, min(most, memory // 3 // max(bytes_of_a_step(update, model), 1)))
    if on_cpu or cohort < 32:
        return min(most, int(cohort * 1.2) + 1)
    seats = ceil(cohort + varies * 2.5 * cohort**0.5)
    blocks = ceil(seats / most)
    # Empty seats beside 100 users cost 0.02 ms each; of a cohort that varies, some of 32 are taken.
    unit = 8 if blocks > 1 else 32 if varies else 4
    return min(most, -(-ceil(seats / blocks) // unit) * unit)


def _room() -> int:
    """Bytes for the updates of a block on a GPU: the general program holds some six arrays of float32, of 8 here."""
    return _memory() // 4 or 8 * 2**30


def _memory() -> int:
    """Bytes of a GPU; 0 where it does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
