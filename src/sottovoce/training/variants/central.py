"""Central training: SGD over the pooled text of many users. The papers' baseline, and public pre-training.

A round is the text of as many users as a cohort has, so that its curves lie beside those of federated runs. Nobody's
part is bounded and nothing is noised: there is no user-level guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.local.objective import Batch, Objective
from sottovoce.local.update import User, cut_into_lanes, fresh_states, local_steps, mean_loss_and_gradient
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import finite_or_zero
from sottovoce.privacy.rng import philox
from sottovoce.training.round import Algorithm, Keys, Spender
from sottovoce.training.server import Server, ServerState


@dataclass(frozen=True)
class Passes:
    """Whose text is read when: every user once in a shuffled order, then all again in another.

    The order, and the randomness of training, depend on the seed alone: a run that was stopped goes on with the next
    user, to the same bits.
    """

    users_a_round: int
    seed: int

    def rows(self, users: int, round_number: int) -> np.ndarray:
        """The users of a round, of a store with so many. A round may end one pass and begin the next."""
        turns = np.arange((round_number - 1) * self.users_a_round, round_number * self.users_a_round)
        passes, places = np.divmod(turns, users)
        return np.concatenate(
            [_order(self.seed, users, int(each))[places[passes == each]] for each in np.unique(passes)]
        )

    def key(self, round_number: int) -> PRNGKeyArray:
        """The randomness of a round's training (dropout). Central training promises nothing, so it is public."""
        words = f"training of round {round_number}, seed {self.seed}"
        return local_key(blake2b(words.encode(), digest_size=8).digest())


@lru_cache(maxsize=2)
def _order(seed: int, users: int, number: int) -> np.ndarray:
    key = blake2b(f"order of pass {number}, seed {seed}".encode(), digest_size=16).digest()
    return philox(key).permutation(users)


class PooledRound(NamedTuple):
    """What is known of a round: private, for diagnostics."""

    users: int
    tokens: int
    loss: Array  # mean over the targets, as training went on
    not_finite: Array  # steps that were passed over

    def diagnostics(self) -> dict[str, Any]:
        loss = float(self.loss)
        return {
            "users": self.users,
            "tokens": self.tokens,
            "not_finite": int(self.not_finite),
            "clipped_share": None,
            "loss": loss if math.isfinite(loss) else None,
        }


def play_round(
    algorithm: Algorithm, passes: Passes, state: ServerState, store: Store, ledger: Spender
) -> tuple[ServerState, PooledRound]:
    """One round: the texts of its users, one after another, as one stream in lanes, and a step of SGD on each unroll.

    A step is that of FedSGD on a batch: -η times the gradient of its mean loss, applied by the server's optimiser.
    """
    number, local = state.round + 1, algorithm.user_update
    rows = passes.rows(store.users, number)
    text = join_texts(store, rows)
    ledger.spend(number, algorithm.mechanism.event(number), None)
    steps = int(local_steps(text.length, local.batch, local.unroll))
    batches = in_lanes(text, local.batch, local.unroll)
    state, loss, not_finite = descend(
        local.objective, algorithm.server, state, batches, local.learning_rate, steps, passes.key(number),
        algorithm.server.factor(number),
    )  # fmt: skip
    return state._replace(round=number), PooledRound(len(rows), int(text.length), loss, not_finite)


def join_texts(store: Store, rows: np.ndarray) -> User:
    """One stream of all these users' tokens, padded to the most there could be: every round has the same shape."""
    users = store.gather(rows)
    there = np.arange(store.tokens_per_user) < users.lengths[:, None]
    stream = np.zeros(users.tokens.size, np.int32)
    length = int(users.lengths.sum())
    stream[:length] = users.tokens[there]
    return User(stream, np.int32(length))  # pyrefly: ignore


in_lanes = jax.jit(cut_into_lanes, static_argnums=(1, 2))


def descend(
    objective: Objective, server: Server, state: ServerState, batches: Batch, learning_rate: float, last: int,
    key: PRNGKeyArray, factor: float | None = None,
) -> tuple[ServerState, Array, Array]:  # fmt: skip
    """One pass of the server over a text, a step a batch up to the `last`; the mean loss, and how many steps failed."""
    model, optimiser, loss, not_finite = _descend(
        objective, server, state.model, state.optimiser, batches, learning_rate, last, key, factor
    )
    return state._replace(model=model, optimiser=optimiser), loss, not_finite


@partial(jax.jit, static_argnums=(0, 1))
def _descend(
    objective: Objective, server: Server, model: LanguageModel, optimiser: Any, batches: Batch, learning_rate: Any,
    last: Any, key: PRNGKeyArray, factor: Any,
) -> tuple[LanguageModel, Any, Array, Array]:  # fmt: skip
    received = model

    def step(index: Array, carry: tuple) -> tuple:
        before, lane_states, losses, not_finite = carry
        batch = jax.tree.map(lambda part: part[index], batches)
        targets = jnp.sum(batch.mask)
        (loss, lane_states), gradient = mean_loss_and_gradient(
            objective, before.model, received, batch, lane_states, jax.random.fold_in(key, index)
        )
        update, sound = finite_or_zero(jax.tree.map(lambda slope: -learning_rate * slope, gradient))
        after = server.step(before, update, factor)
        # Optimisers with a memory move without a gradient too: a step that teaches nothing is not taken.
        counts = (sound > 0) & (targets > 0)
        after = jax.tree.map(partial(jnp.where, counts), after, before)
        return after, lane_states, losses + jnp.where(counts, loss * targets, 0), not_finite + (sound == 0)

    start = ServerState(jnp.zeros((), jnp.int32), model, optimiser)  # pyrefly: ignore
    lanes = batches.inputs.shape[1]
    begin = (start, fresh_states(objective, model, lanes), jnp.zeros(()), jnp.zeros((), jnp.int32))
    end, _, losses, not_finite = jax.lax.fori_loop(0, last, step, begin)
    return end.model, end.optimiser, losses / jnp.maximum(jnp.sum(batches.mask), 1), not_finite


def rounds(
    algorithm: Algorithm, passes: Passes, state: ServerState, store: Store, last: int, keys_of: Callable[[int], Keys],
    ledger: Spender,
) -> Iterator[tuple[ServerState, PooledRound]]:  # fmt: skip
    """Play the rounds that are left, up to and including round `last`."""
    while state.round < last:
        keys_of(state.round + 1)  # none is used, but the ledger names a round by them
        state, played = play_round(algorithm, passes, state, store, ledger)
        yield state, played
