"""The rank and the loss of each target: all that most measures of a prediction ask of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sottovoce.models.head import cross_entropy


class Ranks(NamedTuple):
    """Of some targets."""

    rank: Any  # how many tokens come before it
    loss: Any  # -ln of its probability


def ranks_of(logits: Float[Array, "time vocabulary"], targets: Int[Array, " time"]) -> Ranks:
    """From all logits."""
    return Ranks(rank_of(logits, targets), cross_entropy(logits, targets))


def rank_of(logits: Float[Array, "time vocabulary"], targets: Int[Array, " time"]) -> Int[Array, " time"]:
    """The number of tokens that come before the target; of equal logits the lower id comes first, as in argmax.

    Counts all that do not come after it, so that a target with a logit of NaN ranks last, not first.
    """
    own = jnp.take_along_axis(logits, targets[:, None], axis=-1)
    later = jnp.arange(logits.shape[-1]) >= targets[:, None]
    return jnp.sum(~((logits < own) | ((logits == own) & later)), axis=-1)


class OfRanks(NamedTuple):
    """A measure of ranks as one of logits."""

    measure: Callable

    def __call__(self, logits: Array, targets: Array, counted: Array, facts: Any) -> Any:
        return self.measure(ranks_of(logits, targets), targets, counted, facts)
