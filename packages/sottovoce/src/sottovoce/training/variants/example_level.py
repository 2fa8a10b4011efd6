"""Example-level sampling (ELS; Charles et al. 2024): DP-SGD on examples, with the guarantee of users.

Each example of a user joins a round by a coin of its own. It is clipped and added up as a user is in Algorithm 1, with
one gradient for an update. A user joins with up to `most` examples, which the sampler's event accounts for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sottovoce.data.examples import examples_of
from sottovoce.data.store import Store
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Strategy, Work
from sottovoce.training.types import Algorithm, CohortSum, Payment, SumUpdates, Task


@dataclass(frozen=True)
class ExampleLevel(Strategy):
    """A round of Algorithm 1 in which the rows of the store are examples: `length` tokens each, `most` of a user."""

    federated: ClassVar[bool] = False

    length: int
    most: int

    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, CohortSum]:
        examples = examples_of(work.store, self.length, self.most)
        return play_round(algorithm, state, examples, payment, SumWithText(work.sum_updates), work.observe)

    def drawn(self, algorithm: Algorithm, store: Store, key: bytes, round_number: int) -> np.ndarray:
        examples = examples_of(store, self.length, self.most)
        return np.unique(super().drawn(algorithm, examples, key, round_number) // self.most)


@dataclass(frozen=True)
class SumWithText:
    """A sum over the examples that have text. An empty one has weight 0: it is not computed."""

    sum_updates: SumUpdates

    def __call__(self, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        return self.sum_updates(algorithm, task._replace(cohort=task.cohort[store.lengths(task.cohort) > 0]), store)
