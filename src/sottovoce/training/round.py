"""Algorithm 1 of McMahan et al. 2018: one round, in the order and the words of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from sottovoce.accounting import Event
from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg, User, UserResult, UserUpdate
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import norms_for
from sottovoce.privacy.estimators import user_weight
from sottovoce.privacy.fixed_point import quantise
from sottovoce.privacy.mechanism import Estimate, Mechanism
from sottovoce.training.server import Server, ServerState


@dataclass(frozen=True)
class Algorithm:
    """The public half of a round: what is done, to whomever it is done."""

    mechanism: Mechanism
    user_update: UserUpdate
    server: Server
    weight_cap: float = 1.0

    def __post_init__(self) -> None:
        if self.user_update.clipping != self.mechanism.clipping:
            raise ValueError("users clip otherwise than the mechanism assumes: its sensitivity would not be theirs")


class Keys(Protocol):
    """The secrets of one round, up to its sum."""

    @property
    def sampling(self) -> bytes: ...
    @property
    def local(self) -> bytes: ...


class Summed(Protocol):
    """What a round needs of its cohort: Σ w_k Δ_k, Σ w_k and Σ bits, in float64."""

    @property
    def total(self) -> Any: ...
    @property
    def weight(self) -> Any: ...
    @property
    def bits(self) -> Any: ...


class Spender(Protocol):
    def spend(self, round_number: int, event: Event, sums: Summed | None) -> bytes:
        """Put on disk, before it returns, that the round is paid for; then the key of the noise for just this sum.

        `AnotherSum` if this attempt at the round was paid for with another one. None: where nothing is added up.
        """
        ...


class AnotherSum(Exception):
    """A round was released before under the same name, and its sum was another: it must be played with other keys."""


class CohortSum(NamedTuple):
    """Σ w_k Δ_k and Σ w_k, in float64, and what is known of each user (private, for diagnostics)."""

    total: Any
    weight: Any
    bits: Any  # over users, +1/2 for every part of an update that was not clipped and -1/2 for one that was
    results: list[UserResult]  # of users together, without their updates; still on the device
    places: list[np.ndarray]  # where in the cohort they stand
    behind: np.ndarray | None = None  # where devices are behind: by how many rounds each user was

    @property
    def users(self) -> int:
        return sum(map(len, self.places))

    @property
    def norms(self) -> np.ndarray:
        return self._of_users([result.norm for result in self.results])

    @property
    def clipped(self) -> np.ndarray:
        return self._of_users([np.any(result.clipped, axis=-1) for result in self.results]).astype(bool)

    @property
    def losses(self) -> np.ndarray:
        return self._of_users([result.loss for result in self.results])

    def diagnostics(self) -> dict[str, Any]:
        """Exact figures of the cohort: private."""
        users, norms, losses = self.users, self.norms, self.losses
        finite, losses = norms[np.isfinite(norms)], losses[np.isfinite(losses)]
        facts = {
            "users": users,
            "weight": float(self.weight),
            "not_finite": users - len(finite),
            "clipped_share": float(np.mean(self.clipped)) if users else None,
            "norm_quantiles": [float(q) for q in np.quantile(finite, [0.1, 0.5, 0.9])] if len(finite) else None,
            "loss": float(np.mean(losses)) if len(losses) else None,
        }
        if self.behind is not None:
            facts["rounds_behind"] = float(np.mean(self.behind)) if users else None
            facts["most_rounds_behind"] = int(np.max(self.behind)) if users else None
        return facts

    def _of_users(self, columns: list[Any]) -> np.ndarray:
        """One column for all users in their order. Reading it waits for the device."""
        if not columns:
            return np.zeros(0)
        read = [np.atleast_1d(column)[: len(places)] for column, places in zip(columns, self.places, strict=True)]
        return np.concatenate(read)[np.argsort(np.concatenate(self.places))]


# (algorithm, model, users, rows of the cohort, key of the users' own randomness, clip norms) -> the sum over the cohort
SumUpdates = Callable[[Algorithm, LanguageModel, Store, np.ndarray, PRNGKeyArray, np.ndarray], CohortSum]


class Seen(NamedTuple):
    """All of a round, for an audit that stands beside it: private, but for the model and what was noised."""

    round: int
    model: LanguageModel  # as it was sent
    cohort: np.ndarray
    key: PRNGKeyArray  # of the users' own randomness
    clip_norms: np.ndarray
    summed: CohortSum
    noised: Estimate


Watch = Callable[[Seen], None]


def until_paid(
    number: int, keys_of: Callable[[int], Keys], play: Callable[[Keys], tuple[ServerState, CohortSum]]
) -> tuple[ServerState, CohortSum]:
    """Play a round; if it was released with another sum, play it anew, with a cohort of its own, as another release."""
    while True:
        try:
            return play(keys_of(number))
        except AnotherSum:  # the next keys are of another attempt
            continue


def play_round(
    algorithm: Algorithm, state: ServerState, store: Store, keys: Keys, ledger: Spender, sum_updates: SumUpdates,
    watch: Watch | None = None,
) -> tuple[ServerState, CohortSum]:  # fmt: skip
    """One round. An empty cohort is a round like any other: the same noise, the same entry in the ledger."""
    mechanism, number = algorithm.mechanism, state.round + 1
    clip_norms = mechanism.clip_norms(number, state.clip_norms)
    cohort = mechanism.sampler.sample(store, keys.sampling, number)
    summed = sum_updates(algorithm, state.model, store, cohort, local_key(keys.local), clip_norms)
    after, noised = release(algorithm, state, summed, clip_norms, ledger)
    if watch is not None:
        watch(Seen(number, state.model, cohort, local_key(keys.local), clip_norms, summed, noised))
    return after, summed


def release(
    algorithm: Algorithm, state: ServerState, summed: Summed, clip_norms: np.ndarray, ledger: Spender
) -> tuple[ServerState, Estimate]:
    """The half of a round that follows the sum, wherever that was made: estimate, pay, noise, step."""
    mechanism, number = algorithm.mechanism, state.round + 1
    estimate = mechanism.estimate(summed.total, summed.weight, summed.bits)
    key = ledger.spend(number, mechanism.event(number), summed)
    noised = mechanism.add_noise(estimate, number, clip_norms, key)
    state = _step(algorithm.server, state, noised.update, algorithm.server.factor(number))
    return state._replace(round=number, clip_norms=mechanism.next_clip_norms(state.clip_norms, noised)), noised


@partial(jax.jit, static_argnums=0)
def _step(server: Server, state: ServerState, update: Any, factor: float | None) -> ServerState:
    return server.step(state, update, factor)


def sum_one_by_one(
    algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray,
    clip_norms: np.ndarray,
) -> CohortSum:  # fmt: skip
    """Σ w_k Δ_k, one user after another: the version to read. `simulation.SumInBlocks` is the one to run."""
    grid = algorithm.mechanism.grid(clip_norms)
    total: Any = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), model)
    weight, bits = 0.0, np.zeros(len(clip_norms))
    results: list[UserResult] = []
    for share, result in train_one_by_one(algorithm, model, store, cohort, key, clip_norms):
        sent = jax.tree.map(lambda part, share=share: np.asarray(share * part), result.update)
        # Whole multiples of the grid: float64 adds them exactly. Without a clip there is no grid, and no promise.
        if grid is not None:
            sent = jax.tree.map(lambda part: quantise(part, grid) * grid, sent)
        total = jax.tree.map(np.add, total, sent)
        weight += float(share)
        bits += (share > 0) * (0.5 - np.asarray(result.clipped))
        results.append(result._replace(update=None))
    return CohortSum(total, np.float64(weight), bits, results, [np.array([place]) for place in range(len(cohort))])


def train_one_by_one(
    algorithm: Algorithm, model: LanguageModel, store: Store, cohort: np.ndarray, key: PRNGKeyArray,
    clip_norms: np.ndarray,
) -> Iterator[tuple[np.ndarray, UserResult]]:  # fmt: skip
    """w_k, and what the device of user k computes: 0 where it sends nothing."""
    for row in cohort:
        block = store.gather([row])
        named = row + store.first
        public = excerpts_for(algorithm.user_update, store, np.array([named]), key)
        public = None if public is None else jnp.asarray(public[0])
        user = User(jnp.asarray(block.tokens[0]), jnp.asarray(block.lengths[0]), public)
        share = user_weight(user.length, algorithm.weight_cap)
        their_norms = norms_for(algorithm.mechanism.clipping, jnp.asarray(clip_norms), share)
        steps = algorithm.user_update.steps(block.lengths[0])
        result = _user_update(algorithm.user_update, model, user, jax.random.fold_in(key, named), their_norms, steps)
        yield np.asarray(result.sound * share), result


def excerpts_for(
    update: UserUpdate, store: Store, rows: np.ndarray, key: PRNGKeyArray
) -> Int[np.ndarray, "users more"] | None:
    """The public text that goes to each of these users with the model, if any does."""
    if not isinstance(update, FedAvg) or store.public is None or update.user_share == 1:
        return None
    size = int(update.rehearsed(store.tokens_per_user))
    return store.public.excerpts(rows, size, np.asarray(jax.random.key_data(key)).tobytes())


@partial(jax.jit, static_argnums=0)
def _user_update(
    update: UserUpdate, model: LanguageModel, user: User, key: PRNGKeyArray, clip_norms: Array, steps: int
) -> UserResult:
    return update(model, user, key, clip_norms, steps)
