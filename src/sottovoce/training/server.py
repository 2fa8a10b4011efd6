"""The server's step: an optax optimiser that takes the averaged update for a descent direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.schedule import CONSTANT, Schedule


class ServerState(NamedTuple):
    """All that a round changes."""

    round: int  # rounds done
    model: LanguageModel
    optimiser: Any
    clip_norms: Any = None  # where they adapt: those of the next round
    deployed: Any = None  # where devices are behind: the models they may have, newest first


@dataclass(frozen=True)
class Server:
    """θ ← θ + Δ is `optax.sgd(1.0)`; other optimisers only post-process what was noised already.

    A `schedule` of the learning rate scales what the optimiser makes of an update.
    """

    optimiser: optax.GradientTransformation
    schedule: Schedule = CONSTANT

    def start(self, model: LanguageModel, clip_norms: Any = None) -> ServerState:
        # `jnp.full` gives a weak type and a step does not: the second round would compile every program anew.
        model = jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), model)
        return ServerState(0, model, self.optimiser.init(model), clip_norms)  # pyrefly: ignore

    def factor(self, round_number: int) -> float | None:
        """Of the learning rate in a round; None where it never changes, and a step need not scale."""
        return None if self.schedule == CONSTANT else self.schedule(round_number)

    def step(self, state: ServerState, update: Any, factor: Any = None) -> ServerState:
        descent = jax.tree.map(lambda leaf: -leaf, update)
        change, optimiser = self.optimiser.update(descent, state.optimiser, state.model)  # pyrefly: ignore
        if factor is not None:
            change = jax.tree.map(lambda leaf: factor * leaf, change)
        model = optax.apply_updates(state.model, change)  # pyrefly: ignore
        return state._replace(round=state.round + 1, model=model, optimiser=optimiser)  # pyrefly: ignore
