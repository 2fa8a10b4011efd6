"""Any update of any model, with products of bfloat16 numbers and float32 sums. All else is as the update has it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PRNGKeyArray

from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.contract import LanguageModel


class Narrow(NamedTuple):
    """`jax.vmap` of the update. The last clip has no products, so it is as exact as ever."""

    precision: str = "BF16_BF16_F32"
    name: str = "the general program, products of bfloat16"

    def train(
        self, update: UserUpdate, model: LanguageModel, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
    ) -> UserResult:
        """What each user of a block sends. `clip_norms` is [users, parts]."""
        with jax.default_matmul_precision(self.precision):
            return jax.vmap(update, in_axes=(None, 0, 0, 0, None))(model, users, keys, clip_norms, last)

    def put_together(self, update: Any) -> Any:
        return update
