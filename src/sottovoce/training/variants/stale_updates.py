"""Stale updates (Popov et al. 2018, figure 1): devices train a model that was deployed, not the newest there is.

Every round averages the updates of as many users as a cohort has. Devices get the model that came of them only after
`deploy_interval` rounds. Some are later still, and return an update of an older one. An update waits nowhere: what a
device sends follows from the model it got, its text and its key, so it is computed when its round comes. All that has
to be kept is the deployed models, which were released.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Work
from sottovoce.training.types import Algorithm, CohortSum, Payment, SumUpdates, Task


@dataclass(frozen=True)
class StaleUpdates:
    """`delays` are the shares of devices that train the model deployed last, the one before it, and so on."""

    deploy_interval: int
    delays: tuple[float, ...] = (1.0,)
    federated: ClassVar[bool] = True
    layout: ClassVar[str | None] = None

    def start(self, state: ServerState) -> ServerState:
        """The deployed models that an update may be of, newest first: all are the first one."""
        return state._replace(deployed=(state.params,) * len(self.delays))

    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, CohortSum]:
        """A round of Algorithm 1, whose users train the models that were deployed."""
        by_age = SumByAge(self, state, work.sum_updates)
        after, summed = play_round(algorithm, state._replace(deployed=None), work.store, payment, by_age)
        return self.deploy(after._replace(deployed=state.deployed)), summed

    def deploy(self, state: ServerState) -> ServerState:
        """After a round: the model goes to devices when its turn comes."""
        if state.round % self.deploy_interval:
            return state
        return state._replace(deployed=(state.params, *state.deployed[:-1]))

    def ages(self, rows: np.ndarray, key: PRNGKeyArray) -> np.ndarray:
        """How many deployments behind each of these users is.

        Guarantee: a user's age depends on the key and their row alone. By anything else, such as a place in the
        cohort, one user more would make others train other models, and move the sum by more than the clip norm.
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


@dataclass(frozen=True)
class SumByAge:
    """Σ w_k Δ_k where users trained different models: the sum over those of each."""

    stale: StaleUpdates
    state: ServerState
    sum_updates: SumUpdates

    def __call__(self, algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
        # No device has the parameters of the task: they are the server's.
        ages = self.stale.ages(task.cohort, task.key)
        groups = [np.flatnonzero(ages == age) for age in range(len(self.stale.delays))]
        sums = [
            self.sum_updates(algorithm, task._replace(params=deployed, cohort=task.cohort[group]), store)
            for deployed, group in zip(self.state.deployed, groups, strict=True)
            if len(group) or group is groups[0]  # nobody at all is a sum too
        ]
        groups = [group for group in groups if len(group) or group is groups[0]]
        return joined(sums, groups)._replace(staleness=self.stale.staleness(ages, self.state.round + 1))


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
