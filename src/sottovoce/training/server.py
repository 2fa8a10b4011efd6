"""The server's step: an optax optimiser that takes the averaged update for a descent direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import optax

from sottovoce.models.language_model import LanguageModel


class ServerState(NamedTuple):
    """All that a round changes."""

    round: int  # rounds done
    model: LanguageModel
    optimiser: Any


@dataclass(frozen=True)
class Server:
    """θ ← θ + Δ is `optax.sgd(1.0)`; other optimisers only post-process what was noised already."""

    optimiser: optax.GradientTransformation

    def start(self, model: LanguageModel) -> ServerState:
        return ServerState(0, model, self.optimiser.init(model))  # pyrefly: ignore

    def step(self, state: ServerState, update: Any) -> ServerState:
        descent = jax.tree.map(lambda leaf: -leaf, update)
        change, optimiser = self.optimiser.update(descent, state.optimiser, state.model)  # pyrefly: ignore
        return ServerState(state.round + 1, optax.apply_updates(state.model, change), optimiser)  # pyrefly: ignore
