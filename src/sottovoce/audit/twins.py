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
from sottovoce.training.round import Watch

_RELEASE = "twins of an audit"  # names their keys


class _Unpaid:
    """Of a twin nothing leaves the process."""

    def spend(self, round_number: int, event: Event) -> None:
        pass


def twins(
    assembly: Assembly, start: LanguageModel, store: Store, rows: np.ndarray, rounds: int, secrets: Secrets,
    after_round: Callable[[], None] = lambda: None,
) -> Iterator[LanguageModel]:  # fmt: skip
    """The model of everybody, then one without each of `rows`."""
    yield train_twin(assembly, start, store, rounds, secrets, after_round)
    for row in rows:
        yield train_twin(assembly, start, store.without(int(row)), rounds, secrets, after_round)


def choose_users(assembly: Assembly, store: Store, count: int, rounds: int, secrets: Secrets) -> np.ndarray:
    """Different rows by chance, from among those whom some round of a twin draws: the others change nothing."""
    drawn = np.unique(np.concatenate([_cohort(assembly, store, number + 1, secrets) for number in range(rounds)]))
    if not 1 <= count <= len(drawn):
        raise SottoError(f"leave_out={count} must be from 1 to {len(drawn)}, the users who take part in any round")
    return philox(secrets.keys(1, "users").sampling).choice(drawn, size=count, replace=False)


def _cohort(assembly: Assembly, store: Store, round_number: int, secrets: Secrets) -> np.ndarray:
    if assembly.passes is not None:
        return assembly.passes.rows(store.users, round_number)
    key = secrets.keys(round_number, _RELEASE).sampling
    return assembly.algorithm.mechanism.sampler.sample(store.users, key, round_number)


def train_twin(
    assembly: Assembly, start: LanguageModel, store: Store, rounds: int, secrets: Secrets,
    after_round: Callable[[], None], watch: Watch | None = None,
) -> LanguageModel:  # fmt: skip
    """A model of the recipe, of which nothing leaves the process."""
    state = assembly.start(start)
    played = assembly.rounds(
        state, store, lambda number: secrets.keys(number, _RELEASE), _Unpaid(), assembly.sum_updates, watch
    )
    while state.round < rounds:
        state, _ = next(played)
        after_round()
    return state.model
