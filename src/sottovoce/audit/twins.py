"""Models that differ by one user: a recipe trained again in memory, with all its randomness shared.

Nothing of a twin is written or released, so nobody is charged for it. Cohorts, initial weights and noise are the same
in all of them: whatever sets two twins apart is the user who was left out. A noise that is shared hides nothing, so
what is measured is the influence that is left to one user before noise hides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sottovoce.assembly import Assembly
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.models.language_model import LanguageModel
from sottovoce.privacy.accounting import Event
from sottovoce.privacy.generator import philox
from sottovoce.runs.secrets import Secrets


class _Unpaid:
    """Of a twin nothing leaves the process."""

    def spend(self, round_number: int, event: Event) -> None:
        pass


def twins(
    assembly: Assembly, start: LanguageModel, store: Store, rows: np.ndarray, rounds: int, secrets: Secrets,
    after_round: Callable[[], None] = lambda: None,
) -> Iterator[LanguageModel]:  # fmt: skip
    """The model of everybody, then one without each of `rows`."""
    yield _train(assembly, start, store, rounds, secrets, after_round)
    for row in rows:
        yield _train(assembly, start, store.without(int(row)), rounds, secrets, after_round)


def choose_users(store: Store, count: int, key: bytes) -> np.ndarray:
    """Different rows, from among all."""
    if not 1 <= count <= store.users:
        raise SottoError(f"leave_out={count} must be from 1 to {store.users}, the users of the store")
    return philox(key).choice(store.users, size=count, replace=False)


def _train(
    assembly: Assembly, start: LanguageModel, store: Store, rounds: int, secrets: Secrets,
    after_round: Callable[[], None],
) -> LanguageModel:  # fmt: skip
    state = assembly.algorithm.server.start(start, assembly.algorithm.mechanism.start())
    played = assembly.rounds(
        state, store, lambda number: secrets.keys(number, "audit"), _Unpaid(), assembly.sum_updates
    )
    while state.round < rounds:
        state, _ = next(played)
        after_round()
    return state.model
