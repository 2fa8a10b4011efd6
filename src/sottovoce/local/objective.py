"""What a device minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.contract import LanguageModel, State
from sottovoce.models.head import cross_entropy, soft_cross_entropy


class Batch(NamedTuple):
    """Some tokens of one user: what is read, what should follow, and which of it counts."""

    inputs: Int[Array, "lanes unroll"]
    targets: Int[Array, "lanes unroll"]
    mask: Float[Array, "lanes unroll"]


# (model, the model as received, batch, state of each lane, key of the batch) -> (a loss for each target, new states)
Objective = Callable[
    [LanguageModel, LanguageModel, Batch, State, PRNGKeyArray], tuple[Float[Array, "lanes unroll"], State]
]


def plain(
    model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
) -> tuple[Float[Array, "lanes unroll"], State]:
    """Cross-entropy of the user's next word."""
    del received
    losses, state, _ = _read(model, batch, state, key)
    return losses, state


def _read(
    model: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
) -> tuple[Float[Array, "lanes unroll"], State, Float[Array, "lanes unroll vocabulary"]]:
    """The cross-entropy of each target, and the scores it is from. Every lane has a key of its own."""
    outputs, state = jax.vmap(model.read)(batch.inputs, state, jax.random.split(key, len(batch.inputs)))
    scores = model.score(outputs)
    return cross_entropy(scores, batch.targets), state, scores


def start_of(objective: Objective, model: LanguageModel) -> State:
    """The state of a lane before any token: the model's, unless the objective keeps more beside it."""
    start = getattr(objective, "start", None)
    return model.start() if start is None else start(model)


@dataclass(frozen=True)
class WithoutForgetting:
    """Learning without forgetting (Popov et al. 2018, equations 1 and 2): the truth is mixed with what was received.

    The target distribution is λ for the word that follows and 1 - λ for the prediction of the received model, which
    reads the same text beside the one that is trained, without its randomness.
    """

    user_share: float

    def start(self, model: LanguageModel) -> State:
        return model.start(), model.start()

    def __call__(
        self, model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Float[Array, "lanes unroll"], State]:
        own, before = state
        truth, own, scores = _read(model, batch, own, key)
        known, before = jax.vmap(received.read)(batch.inputs, before)
        soft = jax.nn.softmax(received.score(known))
        imitation = soft_cross_entropy(scores, soft)
        return self.user_share * truth + (1 - self.user_share) * imitation, (own, before)


@dataclass(frozen=True)
class Penalised:
    """An objective plus weight · ‖Δ‖², the squared length of what training changed so far (not of the model)."""

    objective: Objective
    weight: float

    def start(self, model: LanguageModel) -> State:
        return start_of(self.objective, model)

    def __call__(
        self, model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Float[Array, "lanes unroll"], State]:
        losses, state = self.objective(model, received, batch, state, key)
        pairs = zip(jax.tree.leaves(model), jax.tree.leaves(received), strict=True)
        # The same for every target, so it is in the mean once.
        return losses + self.weight * sum(jnp.sum(jnp.square(now - before)) for now, before in pairs), state
