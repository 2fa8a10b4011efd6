"""Bucketing: which users of a cohort are computed together, and how many at once."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import jax
import numpy as np

from sottovoce.kernels.find import Program
from sottovoce.local.update import UserUpdate, bytes_of_a_step
from sottovoce.models.contract import parameter_count, split

MOST_WASTE = 0.1  # of a block's steps: those of padding, and of users who had finished


class Block(NamedTuple):
    """Users that are computed together: their places in the cohort, the padded size, and the steps all take."""

    places: np.ndarray
    padded_size: int
    steps: int


def cut_into_blocks(steps: np.ndarray, size: int, devices: int = 1, latency: float = 0) -> list[Block]:
    """The users of a cohort in blocks of at most `size` on each device, by the steps that each user needs.

    Users of similar length share a block. Its padded size is `size` or a half, a quarter, ... of it: the largest with
    little padding. So there are few shapes, and each is compiled once; on a GPU once more for whole texts. Where a step
    costs `latency` on top of its users, neighbouring blocks are joined if the padding costs less.
    """
    order = np.argsort(-steps, kind="stable")
    sizes = [devices * each for each in (size >> halved for halved in range(5)) if each >= 4 or each == size]
    blocks, start = [], 0
    while start < len(order):
        for each in sizes:
            block = Block(order[start : start + each], each, int(steps[order[start]]))
            needed = float(steps[block.places].sum())
            if 1 - needed / max(1, block.padded_size * block.steps) <= MOST_WASTE:
                break
        blocks.append(block)
        start += len(block.places)
    return _joined(blocks, sizes, devices * latency) if latency else blocks


def _joined(blocks: list[Block], sizes: list[int], latency: float) -> list[Block]:
    """The fastest way to join neighbours, where a step takes its padded size and `latency`, a block `latency`."""
    best: list[tuple[float, list[Block]]] = [(0, [])]  # for the first 0, 1, 2, ... blocks
    for end in range(1, len(blocks) + 1):
        ways = []
        for start in reversed(range(end)):
            run = blocks[start:end]
            places = np.concatenate([block.places for block in run])
            if len(places) > sizes[0]:
                break
            size = min(size for size in sizes if size >= len(places))
            time, before = best[start]
            time += run[0].steps * (size + latency) + latency
            ways.append((time, [*before, Block(places, size, run[0].steps)]))
        best.append(min(ways, key=lambda way: way[0]))
    return best[-1][1]


def share_out(blocks: list[Block], processes: int) -> list[list[Block]]:
    """The blocks of each process: the largest one left goes to the process with the least work."""
    shares: list[list[Block]] = [[] for _ in range(processes)]
    work = [0] * processes
    for block in sorted(blocks, key=lambda block: -block.padded_size * block.steps):
        least = work.index(min(work))
        shares[least].append(block)
        work[least] += block.padded_size * block.steps
    return shares


def block_size(
    model: Any, cohort: float, chosen: int = 0, update: UserUpdate | None = None, varies: bool = True
) -> int:
    """Users at once: as chosen, or what suits the model and the device.

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
    size = min(most, int(cohort * 1.2) + 1 if on_cpu or cohort < 32 else ceil(cohort + varies * 2.5 * cohort**0.5))
    if on_cpu or size < 32:
        return size
    if size == most:  # several blocks of one size, the last one as full as the others
        size = ceil(cohort / ceil(cohort / most))
        return min(most, -(-size // 8) * 8)
    # Empty seats beside 100 users cost 0.02 ms each; of a cohort that varies, some of 32 are taken.
    unit = 32 if varies else 4
    return -(-size // unit) * unit


def _room() -> int:
    """Bytes for the updates of a block on a GPU: the general program holds some six arrays of float32, of 8 here."""
    return _memory() // 4 or 8 * 2**30


def _memory() -> int:
    """Bytes of a GPU; 0 where it does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)


def latency(products: Program | None) -> float:
    """The fixed time of a step of a block, in users. Measured on an H200 (docs/log.md).

    A GPU waits for launches and dependent products as long as 30 users take. With kernels, padding costs a seventh of a
    user, so more of it is worth a shorter wait.
    """
    if jax.default_backend() == "cpu":
        return 0
    return 32 if products is None else 64
