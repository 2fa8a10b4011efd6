"""The losses that a device minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.contract import LanguageModel, State, split
from sottovoce.models.head import cross_entropy, rows_of, soft_cross_entropy, tables_of


class Batch(NamedTuple):
    """Some tokens of one user: the inputs, the targets, and 1 where a target counts."""

    inputs: Int[Array, "lanes unroll"]
    targets: Int[Array, "lanes unroll"]
    mask: Float[Array, "lanes unroll"]


Losses = Float[Array, "lanes unroll"]
# (model, model as received, batch, hidden state of each lane, key of the batch) -> (loss of each target, new states)
Objective = Callable[[LanguageModel, LanguageModel, Batch, State, PRNGKeyArray], tuple[Losses, State]]


def plain(
    model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
) -> tuple[Losses, State]:
    """Cross-entropy of the user's next word.

    Args:
        model: as it is trained.
        received: as the server sent it.
        batch: inputs and targets, a row for each lane.
        state: the hidden state of each lane.
        key: for what is random.
    """
    losses, state, _ = _read(model, batch, state, key)
    return losses, state


def _read(
    model: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
) -> tuple[Losses, State, Float[Array, "lanes unroll vocabulary"]]:
    """The cross-entropy of each target, the new hidden states, and the logits. Each lane has its own key."""
    keys, tables = jax.random.split(key, len(batch.inputs)), tables_of(model)
    if tables is None:
        outputs, state = jax.vmap(model.read)(batch.inputs, state, keys)
    else:
        rows = rows_of(getattr(model, tables.words), batch.inputs)
        outputs, state = jax.vmap(cast("Any", model).read_rows)(rows, state, keys)
    logits = model.logits(outputs)
    return cross_entropy(logits, batch.targets), state, logits


def initial_state(objective: Objective, model: LanguageModel) -> State:
    """The state of a lane before any token: the model's, unless the objective has an `initial_state` of its own."""
    own = getattr(objective, "initial_state", None)
    return model.initial_state() if own is None else own(model)


@dataclass(frozen=True)
class WithoutForgetting:
    """Learning without forgetting (Popov et al. 2018, equations 1 and 2).

    The target distribution is λ for the next word and 1 - λ for the prediction of the received model, which reads the
    same text without the randomness of training.
    """

    user_share: float

    def initial_state(self, model: LanguageModel) -> State:
        return model.initial_state(), model.initial_state()

    def __call__(
        self, model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Losses, State]:
        own, before = state
        hard, own, logits = _read(model, batch, own, key)
        outputs, before = jax.vmap(received.read)(batch.inputs, before)
        soft = soft_cross_entropy(logits, jax.nn.softmax(received.logits(outputs)))
        return self.user_share * hard + (1 - self.user_share) * soft, (own, before)


@dataclass(frozen=True)
class Penalised:
    """An objective plus weight · ‖Δ‖², the squared norm of the update so far (not of the model)."""

    objective: Objective
    weight: float

    def initial_state(self, model: LanguageModel) -> State:
        return initial_state(self.objective, model)

    def __call__(
        self, model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Losses, State]:
        losses, state = self.objective(model, received, batch, state, key)
        pairs = zip(*(jax.tree.leaves(split(each)[0]) for each in (model, received)), strict=True)
        # Equal for every target, so it is in the mean once.
        return losses + self.weight * sum(jnp.sum(jnp.square(now - before)) for now, before in pairs), state
