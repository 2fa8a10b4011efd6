"""A group of processes that are threads of the test: sums go through memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sottovoce.multiprocess.cohort_sum import add_up_for
from sottovoce.multiprocess.group import Dismissed, Group
from sottovoce_evidence.errors import SottoError


@dataclass
class Shared:
    barrier: threading.Barrier
    numbers: list[Any] = field(default_factory=list)


class ThreadGroup(Group):
    """Keeps what it put into sums, in order (`sent`)."""

    def __init__(self, rank: int, count: int, shared: Shared):
        super().__init__(rank, count, None, self)
        self.shared = shared
        self.sent: list[np.ndarray] = []

    def close(self) -> None:
        pass

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray:
        self.sent.append(np.array(numbers))
        self.shared.numbers[self.rank] = numbers
        self.shared.barrier.wait(60)
        total = np.sum(self.shared.numbers, axis=0, dtype=numbers.dtype)
        self.shared.barrier.wait(60)  # no process sends again before all have read the sum
        return total


def thread_groups(count: int) -> list[ThreadGroup]:
    shared = Shared(threading.Barrier(count), [None] * count)
    return [ThreadGroup(rank, count, shared) for rank in range(count)]


def in_every_process(count: int, act: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What `act(group)` returns in each process, or the exception it raises."""
    results: list[Any] = [None] * count

    def run(group: ThreadGroup) -> None:
        try:
            results[group.rank] = act(group)
        except BaseException as error:  # noqa: BLE001
            results[group.rank] = error

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in thread_groups(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


def with_helpers(
    processes: int,
    assembly: Any,
    store: Any,
    lead: Callable[[ThreadGroup], Any],
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Any, list[str], list[ThreadGroup]]:
    """What `lead(group)` returns in process 0, while the others help; and why they ended."""
    groups = thread_groups(processes)
    ended: list[str] = []

    def assist(group: ThreadGroup) -> None:
        try:
            add_up_for(group, assembly.sum_updates, assembly.algorithm, assembly.params, store, stop)
        except (Dismissed, SottoError) as end:
            ended.append(str(end))
        except BaseException as error:
            group.shared.barrier.abort()
            ended.append(repr(error))
            raise

    threads = [threading.Thread(target=assist, args=(group,), daemon=True) for group in groups[1:]]
    for thread in threads:
        thread.start()
    result = lead(groups[0])
    groups[0].dismiss("done")
    for thread in threads:
        thread.join(60)
    return result, ended, groups
