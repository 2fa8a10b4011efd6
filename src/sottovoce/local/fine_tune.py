"""A released model made a person's own, on their device and for them alone: nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from sottovoce.errors import SettingError
from sottovoce.local.objective import Objective, plain
from sottovoce.local.update import FedAvg, User
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.clipping import NoClip


@dataclass(frozen=True)
class Personalise:
    """The local training of FedAvg without a clip: what stays with its owner needs no bound."""

    epochs: int = 1
    learning_rate: float = 1.0
    batch: int = 8
    unroll: int = 10
    objective: Objective = plain
    gradient_clip: float | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise SettingError(
                "{epochs} must be at least 1; it is how often the user's text is read", epochs=self.epochs
            )
        if not 0 < self.learning_rate < float("inf"):
            raise SettingError(
                "{learning_rate:g} must be a number above 0, often 0.1 to 6", learning_rate=self.learning_rate
            )

    def __call__(self, model: LanguageModel, user: User, key: PRNGKeyArray, last: Any = None) -> LanguageModel:
        """The model after training on a user's tokens; `model` itself where the training ran away to no finite numbers.

        `last` is how many steps a pass takes, as in `FedAvg`: by default those of the whole (padded) text.
        """
        local = FedAvg(
            NoClip(), False, epochs=self.epochs, batch=self.batch, unroll=self.unroll,
            learning_rate=self.learning_rate, objective=self.objective, gradient_clip=self.gradient_clip,
        )  # fmt: skip
        steps = local.steps(user.tokens.shape[0]) if last is None else last
        changed = local(model, user, key, jnp.asarray(NoClip().clip_norms), steps).update
        return jax.tree.map(jnp.add, model, changed)
