"""The update queue (Popov et al. 2018, figure 1): devices train a model that was deployed, not the newest there is.

Every round averages the updates of as many users as a cohort has; only after `deploy_every` rounds do devices get the
model that came of them. Some are later still, and return an update of an older one. An update waits nowhere: what a
device sends follows from the model it got, its text and its key, so it is computed when its round comes. All that has
to be kept is the deployed models, which were released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.models.contract import LanguageModel
from sottovoce.training.round import Algorithm, CohortSum, Keys, Spender, SumUpdates, play_round, until_paid
from sottovoce.training.server import ServerState


@dataclass(frozen=True)
class Queue:
    """`delays` are the shares of devices that train the model deployed last, the one before it, and so on."""

    deploy_every: int
    delays: tuple[float, ...] = (1.0,)

    def start(self, model: LanguageModel) -> tuple[LanguageModel, ...]:
        """The deployed models that an update may be of, newest first: all are the first one."""
        return (model,) * len(self.delays)

    def deploy(self, state: ServerState) -> ServerState:
        """After a round: the model goes to devices when its turn comes."""
        if state.round % self.deploy_every:
            return state
        return state._replace(deployed=(state.model, *state.deployed[:-1]))

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

    def behind(self, ages: np.ndarray, round_number: int) -> np.ndarray:
        """How many rounds lie between the model each user trained and the one their update is added to."""
        deployed = np.maximum((round_number - 1) // self.deploy_every - ages, 0) * self.deploy_every
        return round_number - 1 - deployed


@dataclass(frozen=True)
class SumOfAges:
    """Σ w_k Δ_k where users trained different models: the sum over those of each."""

    queue: Queue
    state: ServerState
    sum_updates: SumUpdates

    def __call__(
        self, algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray,
        clip_norms: np.ndarray,
    ) -> CohortSum:  # fmt: skip
        del model  # the server's, which no device has
        ages = self.queue.ages(cohort, key)
        groups = [np.flatnonzero(ages == age) for age in range(len(self.queue.delays))]
        sums = [
            self.sum_updates(algorithm, deployed, store, cohort[group], key, clip_norms)
            for deployed, group in zip(self.state.deployed, groups, strict=True)
            if len(group) or group is groups[0]  # nobody at all is a sum too
        ]
        groups = [group for group in groups if len(group) or group is groups[0]]
        return joined(sums, groups)._replace(behind=self.queue.behind(ages, self.state.round + 1))


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


def rounds(
    algorithm: Algorithm, queue: Queue, state: ServerState, store: Store, last: int, keys_of: Callable[[int], Keys],
    ledger: Spender, sum_updates: SumUpdates,
) -> Iterator[tuple[ServerState, CohortSum]]:  # fmt: skip
    """Play the rounds that are left, up to and including round `last`: those of Algorithm 1, of what is deployed."""
    while state.round < last:
        of_ages, before = SumOfAges(queue, state, sum_updates), state._replace(deployed=None)
        play = partial(play_round, algorithm, before, store, ledger=ledger, sum_updates=of_ages)
        after, summed = until_paid(state.round + 1, keys_of, play)
        state = queue.deploy(after._replace(deployed=state.deployed))
        yield state, summed
