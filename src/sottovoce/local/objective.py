"""What a device minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import cross_entropy
from sottovoce.models.language_model import LanguageModel, State


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
    """Cross-entropy of the user's next word. Every lane has a key of its own."""
    del received
    outputs, state = jax.vmap(model.read)(batch.inputs, state, jax.random.split(key, len(batch.inputs)))
    return cross_entropy(model.score(outputs), batch.targets), state


@dataclass(frozen=True)
class Penalised:
    """An objective plus weight · ‖Δ‖², the squared length of what training changed so far (not of the model)."""

    objective: Objective
    weight: float

    def __call__(
        self, model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Float[Array, "lanes unroll"], State]:
        losses, state = self.objective(model, received, batch, state, key)
        pairs = zip(jax.tree.leaves(model), jax.tree.leaves(received), strict=True)
        # The same for every target, so it is in the mean once.
        return losses + self.weight * sum(jnp.sum(jnp.square(now - before)) for now, before in pairs), state
