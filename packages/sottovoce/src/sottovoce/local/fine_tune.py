"""Local fine-tuning: a released model trained further on a device, for its owner alone. Nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from sottovoce.local.objective import Objective, plain
from sottovoce.local.update import Begins, FedAvg, User
from sottovoce.models.contract import LanguageModel, join, split
from sottovoce.privacy.clipping import NoClip
from sottovoce_evidence.errors import SettingError


@dataclass(frozen=True)
class FineTune:
    """The local training of FedAvg without a clip: what is not sent needs no bound."""

    epochs: int = 1
    learning_rate: float = 1.0
    batch: int = 8
    unroll: int = 10
    objective: Objective = plain
    gradient_clip: float | None = None
    bos: Begins = 0  # of the tokenizer

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise SettingError("{epochs} must be at least 1", epochs=self.epochs)
        if not 0 < self.learning_rate < float("inf"):
            raise SettingError(
                "{learning_rate:g} must be a number above 0, often 0.1 to 6", learning_rate=self.learning_rate
            )

    def __call__(self, model: LanguageModel, user: User, key: PRNGKeyArray, last: Any = None) -> LanguageModel:
        """The model after training on a user's tokens, in `last` steps an epoch; `model` itself where it diverged."""
        training = FedAvg(NoClip(), clip_every_step=False, **vars(self))
        steps = training.steps(user.tokens.shape[0]) if last is None else last
        update = training(model, user, key, jnp.asarray(NoClip().clip_norms), steps).update
        params, frozen = split(model)
        return join(jax.tree.map(jnp.add, params, update), frozen)
