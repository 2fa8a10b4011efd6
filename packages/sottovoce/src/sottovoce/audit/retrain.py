"""Train a recipe again in memory. Nothing of such a model is written or released, so no user is charged for it.

- **Retraining without a user** shares all randomness: cohorts, initial weights and noise are the same in all models,
  so that two of them differ only by the user who was left out. Shared noise hides nothing: this measures the influence
  of one user before noise hides it.
- **Shadow models** differ by many users, and have cohorts and noise of their own, as an attacker would have to draw
  them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.data.store import Store, made_up_names
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.rng import philox
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.strategy import Work
from sottovoce.training.types import RoundObserver
from sottovoce_evidence.errors import SettingError


@dataclass(frozen=True)
class Retraining:
    """What is trained again: a recipe's objects, the model it starts from, its users, and for how many rounds."""

    assembly: Assembly
    start: LanguageModel
    store: Store
    rounds: int
    after_round: Callable[[], None] = lambda: None

    def train(self, secrets: Secrets, observe: RoundObserver | None = None) -> LanguageModel:
        """A model of the recipe, kept in memory only."""
        assembly = self.assembly.with_frozen_of(self.start)
        state = assembly.start(self.start)
        # Models that are compared share their noise though their sums differ.
        played = assembly.rounds(state, Unpaid(secrets), Work(self.store, assembly.sum_updates, observe))
        while state.round < self.rounds:
            state, _ = next(played)
            self.after_round()
        return assembly.algorithm.model(state.params)


def train_without(training: Retraining, rows: np.ndarray, secrets: Secrets) -> Iterator[LanguageModel]:
    """The model of all users, then one without each of `rows`."""
    yield training.train(secrets)
    for row in rows:
        yield replace(training, store=training.store.without(int(row))).train(secrets)


def train_shadow_models(
    training: Retraining,
    always: np.ndarray,
    audited: Sequence[np.ndarray],
    inside: np.ndarray,
    secrets_of: Callable[[int], Secrets],
) -> Iterator[LanguageModel]:
    """A model for each row of `inside`.

    As many users join a round as in the run: at another rate, from another number of users.

    Args:
        training: the run.
        always: rows of the store that every model is trained on.
        audited: the texts of the audited users.
        inside: [models, audited users]; which of them a model is trained on.
        secrets_of: the secrets of each model.
    """
    store, mechanism = training.store, training.assembly.algorithm.mechanism
    fewest = len(always) + int(inside.sum(axis=1).min())
    # A cohort of the same size from another number of users.
    cohort = min(mechanism.sampler.expected(store.users), fewest)
    sampler = mechanism.sampler.of_population(cohort, fewest)
    algorithm = replace(training.assembly.algorithm, mechanism=mechanism.with_sampler(sampler))
    assembly = replace(training.assembly, algorithm=algorithm)
    others = [store[int(row)] for row in always]
    for number, chosen in enumerate(inside):
        users = [*others, *(text for text, there in zip(audited, chosen, strict=True) if there)]
        few = Store.from_users(users, store.vocabulary, store.tokens_per_user, names=made_up_names(len(users)))
        people = replace(few, public=store.public)
        yield replace(training, assembly=assembly, store=people).train(secrets_of(number))


def choose_users(training: Retraining, count: int, secrets: Secrets) -> np.ndarray:
    """Different rows by chance, from among the users whom some round draws: the others change nothing."""
    drawn = np.unique(np.concatenate([_cohort(training, number + 1, secrets) for number in range(training.rounds)]))
    if not 1 <= count <= len(drawn):
        text = f"{{leave_out}} must be from 1 to {len(drawn)}, the users who take part in any round"
        raise SettingError(text, leave_out=count)
    return philox(secrets.lasting_key("users")).choice(drawn, size=count, replace=False)


def _cohort(training: Retraining, round_number: int, secrets: Secrets) -> np.ndarray:
    assembly, store = training.assembly, training.store
    key = secrets.keys(round_number).sampling
    return assembly.strategy.drawn(assembly.algorithm, store, key, round_number)
