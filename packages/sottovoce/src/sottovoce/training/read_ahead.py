"""Reading ahead: while a device adds up one round, the host draws the cohort of the next and reads its first users."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.training.cohort_sum import Begun, SumInBlocks
from sottovoce.training.types import Algorithm, CohortSum, RoundKeys, Task


class Draw(NamedTuple):
    """What a round draws: its cohort, and the key of the users' own randomness. Both are secret."""

    cohort: np.ndarray
    key: PRNGKeyArray


def draw_now(algorithm: Algorithm, store: Store, number: int, keys: RoundKeys) -> Draw:
    """What a round with these keys draws."""
    return Draw(algorithm.mechanism.sampler.sample(store, keys.sampling, number), local_key(keys.local))


class _Guess(NamedTuple):
    """A round that may come next: what it draws, and the beginning of its sum."""

    algorithm: Algorithm
    store: Store
    number: int
    keys: RoundKeys
    draw: Draw
    begun: Begun

    def is_round(self, algorithm: Algorithm, store: Store, number: int, keys: RoundKeys) -> bool:
        return self.is_for(algorithm, store) and (self.number, self.keys) == (number, keys)

    def is_task(self, algorithm: Algorithm, task: Task, store: Store) -> bool:
        """Is it of this very cohort? A variant may sum over a part of one."""
        exact = algorithm.mechanism.grid(task.clip_norms) is not None
        same = task.cohort is self.draw.cohort and task.key is self.draw.key
        return self.is_for(algorithm, store) and same and exact == self.begun.exact

    def is_for(self, algorithm: Algorithm, store: Store) -> bool:
        return self.algorithm is algorithm and self.store is store


@dataclass
class ReadAhead:
    """`SumInBlocks` for the rounds of one run, each of which may be read ahead.

    Guarantee: a round is the same to the bit, read ahead or not. What is read ahead follows from the number and the
    keys of a round. A round with others does not get it: it is thrown away. It is secret, and in memory alone.
    """

    in_blocks: SumInBlocks
    _guess: _Guess | None = field(default=None, init=False, repr=False, compare=False)

    def read(self, algorithm: Algorithm, task: Task, store: Store, number: int, keys: RoundKeys | None) -> None:
        """Read a round ahead, where its keys are known. `task` is that of the round before."""
        if keys is None:
            return
        try:
            draw = draw_now(algorithm, store, number, keys)
            blocks = self.in_blocks.blocks(algorithm, store, draw.cohort)
            begun = self.in_blocks.begin(blocks, algorithm, task._replace(cohort=draw.cohort, key=draw.key), store)
        except Exception:  # noqa: BLE001 -- what goes wrong here goes wrong in its own round, where it is told
            return
        self._guess = _Guess(algorithm, store, number, keys, draw, begun)

    def draw(self, algorithm: Algorithm, store: Store, number: int, keys: RoundKeys) -> Draw:
        """What a round with these keys draws."""
        if self._guess is not None and not self._guess.is_round(algorithm, store, number, keys):
            self._guess = None
        return draw_now(algorithm, store, number, keys) if self._guess is None else self._guess.draw

    def __call__(self, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        guess, self._guess = self._guess, None
        if guess is None or not guess.is_task(algorithm, task, store):
            return self.in_blocks(algorithm, task, store)
        return self.in_blocks.go_on(guess.begun, algorithm, task, store)
