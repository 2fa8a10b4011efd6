"""Algorithm 1 of McMahan et al. 2018: one round, in the order and the words of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.language_model import LanguageModel
from sottovoce.privacy.accounting import Event
from sottovoce.privacy.estimators import user_weight
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import add_noise, noise_key
from sottovoce.training.server import Server, ServerState


@dataclass(frozen=True)
class Algorithm:
    """The public half of a round: what is done, to whomever it is done."""

    mechanism: Mechanism
    user_update: UserUpdate
    server: Server
    weight_cap: float = 1.0


class Keys(Protocol):
    """The secrets of one round."""

    @property
    def sampling(self) -> bytes: ...
    @property
    def noise(self) -> bytes: ...
    @property
    def local(self) -> bytes: ...


class Spender(Protocol):
    def spend(self, round_number: int, event: Event) -> None:
        """Put on disk, before it returns, that the round is paid for."""
        ...


class CohortSum(NamedTuple):
    """Σ w_k Δ_k and Σ w_k, and what is known of each user (private, for diagnostics)."""

    total: Any
    weight: Array
    norms: np.ndarray
    clipped: np.ndarray
    losses: np.ndarray


# (algorithm, model, users, rows of the cohort, key of the users' own randomness) -> the sum over the cohort
SumUpdates = Callable[[Algorithm, LanguageModel, Store, np.ndarray, PRNGKeyArray], CohortSum]


def play_round(
    algorithm: Algorithm, state: ServerState, store: Store, keys: Keys, ledger: Spender, sum_updates: SumUpdates
) -> tuple[ServerState, CohortSum]:
    """One round. An empty cohort is a round like any other: the same noise, the same entry in the ledger."""
    mechanism = algorithm.mechanism
    cohort = mechanism.sampler.sample(store.users, keys.sampling)
    summed = sum_updates(algorithm, state.model, store, cohort, noise_key(keys.local))
    estimate = mechanism.estimator.estimate(summed.total, summed.weight)
    ledger.spend(state.round + 1, mechanism.event())
    state = _privatise_and_step(algorithm, state, estimate, noise_key(keys.noise))
    return state, summed


@partial(jax.jit, static_argnums=0)
def _privatise_and_step(algorithm: Algorithm, state: ServerState, estimate: Any, key: PRNGKeyArray) -> ServerState:
    noise_std = algorithm.mechanism.noise_std()
    noised = add_noise(estimate, noise_std, key) if noise_std else estimate
    return algorithm.server.step(state, noised)


def sum_one_by_one(
    algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray
) -> CohortSum:
    """Σ w_k Δ_k, one user after another: the version to read. `simulation.SumInBlocks` is the one to run."""
    total, weight = jax.tree.map(jnp.zeros_like, model), jnp.zeros(())
    results: list[UserResult] = []
    for row in cohort:
        block = store.gather([row])
        user = User(jnp.asarray(block.tokens[0]), jnp.asarray(block.lengths[0]))
        result = _user_update(algorithm.user_update, model, user, jax.random.fold_in(key, row))
        user_share = result.sound * user_weight(user.length, algorithm.weight_cap)
        total = jax.tree.map(lambda whole, part, share=user_share: whole + share * part, total, result.update)
        weight = weight + user_share
        results.append(result)
    return CohortSum(total, weight, *diagnostics_of(results))


@partial(jax.jit, static_argnums=0)
def _user_update(update: UserUpdate, model: LanguageModel, user: User, key: PRNGKeyArray) -> UserResult:
    return update(model, user, key)


def diagnostics_of(results: list[UserResult]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Norms, clipped flags and losses of all users in order."""

    def column(name: str, kind: type) -> np.ndarray:
        parts = [np.atleast_1d(np.asarray(getattr(result, name), kind)) for result in results]
        return np.concatenate(parts) if parts else np.zeros(0, kind)

    return column("norm", float), column("clipped", bool), column("loss", float)
