"""Stale updates (Popov et al. 2018, figure 1): devices train a model that was deployed, not the newest there is.

Devices get a new model every `deploy_interval` rounds only, and some train an older one. No update is stored: what a
device sends follows from the model it got, its text and its key, so it is computed in the round that adds it. The state
keeps the deployed models, which were released.

    sottovoce.train(recipe, "run", strategy=StaleUpdates(deploy_interval=2, delays=(0.7, 0.2, 0.1)))

No paper's trial uses it here, and a run with it promises nothing: `train` accounts for its own strategies only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Strategy, Work
from sottovoce.training.types import Algorithm, CohortSum, Payment, SumUpdates, Task


@dataclass(frozen=True)
class StaleUpdates(Strategy):
    """`delays` are the shares of devices that train the model deployed last, the one before it, and so on."""

    deploy_interval: int
    delays: tuple[float, ...] = (1.0,)

    def start(self, state: ServerState) -> ServerState:
        """The deployed models that an update may be of, newest first: all are the first one."""
        return state._replace(kept=(state.params,) * len(self.delays))

    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, StaleRound]:
        """A round of Algorithm 1, whose users train the models that were deployed."""
        by_age, deployed = SumByAge(self, state.kept, work.sum_updates), state.kept
        after, summed = play_round(algorithm, state._replace(kept=None), work.store, payment, by_age)
        if after.round % self.deploy_interval == 0:
            deployed = (after.params, *deployed[:-1])
        return after._replace(kept=deployed), StaleRound(summed, self.staleness(by_age.ages, after.round))

    def ages(self, rows: np.ndarray, key: PRNGKeyArray) -> np.ndarray:
        """How many deployments behind each of these users is.

        A user's age depends on the key and their row alone. If it depended on the place in the cohort, one user more
        would make others train other models, and move the sum by more than the clip norm.
        """
        secret = np.asarray(jax.random.key_data(key)).tobytes()
        drawn = [
            int.from_bytes(blake2b(int(row).to_bytes(8, "little"), key=secret, digest_size=6, person=b"age").digest())
            for row in rows
        ]
        until = np.cumsum(self.delays) / np.sum(self.delays)
        return np.searchsorted(until[:-1], np.array(drawn, np.int64) / 2**48, side="right")

    def staleness(self, ages: np.ndarray, round_number: int) -> np.ndarray:
        """How many rounds lie between the model each user trained and the one their update is added to."""
        deployed = np.maximum((round_number - 1) // self.deploy_interval - ages, 0) * self.deploy_interval
        return round_number - 1 - deployed


class StaleRound(NamedTuple):
    """Figures of a round: private, for diagnostics."""

    cohort: CohortSum
    staleness: np.ndarray  # how many rounds old the model of each user was

    @property
    def users(self) -> int:
        return self.cohort.users

    def diagnostics(self) -> dict[str, Any]:
        late = self.staleness.tolist()
        behind = {"rounds_behind": sum(late) / len(late), "most_rounds_behind": max(late)} if late else {}
        return {**self.cohort.diagnostics(), **behind}


@dataclass
class SumByAge:
    """Σ w_k Δ_k where users trained different models: the sum over those of each. It keeps the ages of the users."""

    stale: StaleUpdates
    deployed: tuple[Any, ...]
    sum_updates: SumUpdates
    ages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __call__(self, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        self.ages = self.stale.ages(task.cohort, task.key)
        sums, groups = [], []
        for age, deployed in enumerate(self.deployed):
            group = np.flatnonzero(self.ages == age)
            if len(group) or age == 0:  # an empty cohort has a sum too
                stale_task = task._replace(params=deployed, cohort=task.cohort[group])
                groups.append(group)
                sums.append(self.sum_updates(algorithm, stale_task, store))
        return joined(sums, groups)


def joined(sums: list[CohortSum], groups: list[np.ndarray]) -> CohortSum:
    """One sum of several; `groups` are the places of their users in the whole cohort.

    Clipped sums are whole multiples of one grid, in float64: adding them is exact.
    """

    def add(*parts: object) -> np.ndarray:
        return np.sum([np.asarray(part) for part in parts], axis=0)

    return CohortSum(
        jax.tree.map(add, *[each.total for each in sums]),
        add(*[each.weight for each in sums]),
        add(*[each.bits for each in sums]),
        [result for each in sums for result in each.results],
        [group[places] for each, group in zip(sums, groups, strict=True) for places in each.places],
    )
