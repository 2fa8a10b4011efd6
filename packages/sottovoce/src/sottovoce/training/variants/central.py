"""Central training: SGD over the pooled text of many users. The papers' baseline, and public pre-training.

A round is the text of as many users as a cohort has, so that its curves compare with those of federated runs. Nothing
is bounded or noised: there is no user-level guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.local.objective import Batch, Objective
from sottovoce.local.update import User, cut_into_lanes, fresh_states, local_steps, mean_loss_and_gradient
from sottovoce.models.contract import join
from sottovoce.privacy.clipping import finite_or_zero
from sottovoce.privacy.rng import philox
from sottovoce.training.server import Server, ServerState
from sottovoce.training.strategy import Strategy, Work
from sottovoce.training.types import Algorithm, Payment


@dataclass(frozen=True)
class Central(Strategy):
    """SGD over the texts of users: every user once in a shuffled order, then all again in another.

    The order, and the randomness of training, depend on the seed alone: a resumed run gives the same bits.
    """

    federated: ClassVar[bool] = False
    layout: ClassVar[str | None] = "pooled text"

    users_a_round: int
    seed: int

    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, PooledRound]:
        """The texts of a round's users, one after another, as one stream in lanes, with a step of SGD on each unroll.

        A step is that of FedSGD on a batch: -η times the gradient of its mean loss, applied by the server's optimiser.
        """
        number, local = state.round + 1, algorithm.user_update
        rows = self.rows(work.store.users, number)
        text = join_texts(work.store, rows)
        payment.charge(algorithm.mechanism.event(number))
        lesson = Lesson(
            batches=in_lanes(text, local.batch, local.unroll, local.bos),
            steps=int(local_steps(text.length, local.batch, local.unroll)),
            key=self.key(number),
            learning_rate=local.learning_rate,
            factor=algorithm.server.factor(number),
            frozen=algorithm.frozen,
        )
        params, optimiser, *losses = descend(local.objective, algorithm.server, state.params, state.optimiser, lesson)
        return state.next(params, optimiser), PooledRound(len(rows), int(text.length), *losses)

    def drawn(self, algorithm: Algorithm, store: Store, key: bytes, round_number: int) -> np.ndarray:
        return self.rows(store.users, round_number)

    def rows(self, users: int, round_number: int) -> np.ndarray:
        """The users of a round, out of `users`. A round may end one pass and begin the next."""
        turns = np.arange((round_number - 1) * self.users_a_round, round_number * self.users_a_round)
        passes, places = np.divmod(turns, users)
        return np.concatenate([_order(self.seed, users, int(one))[places[passes == one]] for one in np.unique(passes)])

    def key(self, round_number: int) -> PRNGKeyArray:
        """The randomness of a round's training (dropout). Central training promises nothing, so it is public."""
        words = f"training of round {round_number}, seed {self.seed}"
        return local_key(blake2b(words.encode(), digest_size=8).digest())


@lru_cache(maxsize=2)
def _order(seed: int, users: int, number: int) -> np.ndarray:
    key = blake2b(f"order of pass {number}, seed {seed}".encode(), digest_size=16).digest()
    return philox(key).permutation(users)


class PooledRound(NamedTuple):
    """Figures of a round: private, for diagnostics."""

    users: int
    tokens: int
    loss: Array  # mean over the targets, during training
    not_finite: Array  # steps that were skipped

    def diagnostics(self) -> dict[str, Any]:
        loss = float(self.loss)
        return {
            "users": self.users,
            "tokens": self.tokens,
            "not_finite": int(self.not_finite),
            "clipped_share": None,
            "loss": loss if math.isfinite(loss) else None,
        }


def join_texts(store: Store, rows: np.ndarray) -> User:
    """One stream of all these users' tokens, padded to the most there could be: every round has the same shape."""
    users = store.gather(rows)
    tokens = users.tokens[np.arange(store.tokens_per_user) < users.lengths[:, None]]
    stream = np.zeros(users.tokens.size, np.int32)
    stream[: len(tokens)] = tokens
    return User(stream, np.int32(len(tokens)))  # pyrefly: ignore


in_lanes = jax.jit(cut_into_lanes, static_argnums=(1, 2, 3))


class Lesson(NamedTuple):
    """A text that the server reads once, and how."""

    batches: Batch
    steps: Any  # to take, each on one batch
    key: PRNGKeyArray
    learning_rate: Any = 1.0
    factor: Any = None  # of the server's learning rate
    frozen: Any = None  # the part of the model that is not trained


@partial(jax.jit, static_argnums=(0, 1))
def descend(
    objective: Objective, server: Server, params: Any, optimiser: Any, lesson: Lesson
) -> tuple[Any, Any, Array, Array]:
    """One pass of the server over a text: new parameters and optimiser, the mean loss, steps that were not finite."""
    received, batches = join(params, lesson.frozen), lesson.batches

    def step(index: Array, carry: tuple) -> tuple:
        (params, optimiser), lane_states, losses, not_finite = carry
        batch = jax.tree.map(lambda part: part[index], batches)
        targets = jnp.sum(batch.mask)
        (loss, lane_states), gradient = mean_loss_and_gradient(
            objective, join(params, lesson.frozen), received, batch, lane_states, jax.random.fold_in(lesson.key, index)
        )
        update, sound = finite_or_zero(jax.tree.map(lambda leaf: -lesson.learning_rate * leaf, gradient))
        after = server.apply(params, optimiser, update, lesson.factor)
        # Optimisers with a memory move without a gradient too: such a step is not taken.
        counts = (sound > 0) & (targets > 0)
        after = jax.tree.map(partial(jnp.where, counts), after, (params, optimiser))
        return after, lane_states, losses + jnp.where(counts, loss * targets, 0), not_finite + (sound == 0)

    lanes = batches.inputs.shape[1]
    begin = ((params, optimiser), fresh_states(objective, received, lanes), jnp.zeros(()), jnp.zeros((), jnp.int32))
    (params, optimiser), _, losses, not_finite = jax.lax.fori_loop(0, lesson.steps, step, begin)
    return params, optimiser, losses / jnp.maximum(jnp.sum(batches.mask), 1), not_finite
