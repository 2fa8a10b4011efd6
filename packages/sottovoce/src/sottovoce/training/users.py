"""The users of a cohort as their devices see them: their text, and public text for rehearsal."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.update import FedAvg, User, UserUpdate


def users_of(update: UserUpdate, store: Store, cohort: np.ndarray, key: PRNGKeyArray) -> Iterator[tuple[int, User]]:
    """The users of a cohort, each with the row that decides their randomness."""
    for row in cohort:
        block, named = store.gather([row]), row + store.first
        public = excerpts_for(update, store, np.array([named]), key)
        public = None if public is None else jnp.asarray(public[0])
        yield named, User(jnp.asarray(block.tokens[0]), jnp.asarray(block.lengths[0]), public)


def excerpts_for(
    update: UserUpdate, store: Store, rows: np.ndarray, key: PRNGKeyArray
) -> Int[np.ndarray, "users more"] | None:
    """The public text that each of these users gets with the model, if the update rehearses any."""
    if not isinstance(update, FedAvg) or store.public is None or update.user_share == 1:
        return None
    size = int(update.rehearsed(store.tokens_per_user))
    return store.public.excerpts(rows, size, np.asarray(jax.random.key_data(key)).tobytes())
