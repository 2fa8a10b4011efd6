"""A recipe trained again in memory. Nothing of such a model is written or released, so nobody is charged for it.

- **Twins** differ by one user, and share all randomness. Cohorts, initial weights and noise are the same in all of
  them: whatever sets two twins apart is the user who was left out. A noise that is shared hides nothing, so what is
  measured is the influence that is left to one user before noise hides it.
- **References** differ by many users, and have cohorts and noise of their own, as whoever attacks a run would have to
  draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.data.store import Store, made_up_names
from sottovoce.errors import SettingError
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.rng import philox
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.strategy import Work
from sottovoce.training.types import RoundObserver
from sottovoce.training.variants.central import Central

_RELEASE = "twins of an audit"  # names their keys


def twins(
    assembly: Assembly, start: LanguageModel, store: Store, rows: np.ndarray, rounds: int, secrets: Secrets,
    after_round: Callable[[], None] = lambda: None,
) -> Iterator[LanguageModel]:  # fmt: skip
    """The model of everybody, then one without each of `rows`."""
    yield train_twin(assembly, start, store, rounds, secrets, after_round)
    for row in rows:
        yield train_twin(assembly, start, store.without(int(row)), rounds, secrets, after_round)


def references(
    assembly: Assembly, start: LanguageModel, store: Store, always: np.ndarray, audited: Sequence[np.ndarray],
    inside: np.ndarray, rounds: int, secrets_of: Callable[[int], Secrets],
    after_round: Callable[[], None] = lambda: None,
) -> Iterator[LanguageModel]:  # fmt: skip
    """For each row of `inside`, the model of those in the rows `always` of the store and of the audited users it marks.

    As many join a round as in the run: another chance to be drawn, from another number of people.
    """
    fewest = len(always) + int(inside.sum(axis=1).min())
    mechanism = assembly.algorithm.mechanism
    # A cohort of the same size from another number of users.
    cohort = min(mechanism.sampler.expected(store.users), fewest)
    sampler = mechanism.sampler.of_population(cohort, fewest)
    algorithm = replace(assembly.algorithm, mechanism=replace(mechanism, sampler=sampler))
    others = [store[int(row)] for row in always]
    for number, chosen in enumerate(inside):
        users = [*others, *(text for text, there in zip(audited, chosen, strict=True) if there)]
        few = Store.from_users(users, store.vocabulary, store.tokens_per_user, names=made_up_names(len(users)))
        people = replace(few, public=store.public)
        yield train_twin(replace(assembly, algorithm=algorithm), start, people, rounds, secrets_of(number), after_round)


def choose_users(assembly: Assembly, store: Store, count: int, rounds: int, secrets: Secrets) -> np.ndarray:
    """Different rows by chance, from among those whom some round of a twin draws: the others change nothing."""
    drawn = np.unique(np.concatenate([_cohort(assembly, store, number + 1, secrets) for number in range(rounds)]))
    if not 1 <= count <= len(drawn):
        raise SettingError(
            f"{{leave_out}} must be from 1 to {len(drawn)}, the users who take part in any round", leave_out=count
        )
    return philox(secrets.keys(1, "users").sampling).choice(drawn, size=count, replace=False)


def _cohort(assembly: Assembly, store: Store, round_number: int, secrets: Secrets) -> np.ndarray:
    if isinstance(assembly.strategy, Central):
        return assembly.strategy.rows(store.users, round_number)
    key = secrets.keys(round_number, _RELEASE).sampling
    return assembly.algorithm.mechanism.sampler.sample(store, key, round_number)


def train_twin(
    assembly: Assembly, start: LanguageModel, store: Store, rounds: int, secrets: Secrets,
    after_round: Callable[[], None], observe: RoundObserver | None = None,
) -> LanguageModel:  # fmt: skip
    """A model of the recipe, of which nothing leaves the process."""
    assembly = assembly.with_frozen_of(start)
    state = assembly.start(start)
    # Twins are compared, so they share their noise though their sums differ.
    played = assembly.rounds(state, Unpaid(secrets, _RELEASE), Work(store, assembly.sum_updates, observe))
    while state.round < rounds:
        state, _ = next(played)
        after_round()
    return assembly.algorithm.model(state.params)
