"""Local fine-tuning is the training of FedAvg without a clip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.words import BOS, EOS
from sottovoce.local.fine_tune import FineTune
from sottovoce.local.update import FedAvg, User
from sottovoce.privacy.clipping import NoClip

KEY = jax.random.key(0)
HABIT = [BOS, *[50, 51, 52, 53] * 10, EOS]


@pytest.mark.slow
def test_it_is_the_training_of_fedavg_without_a_clip(model) -> None:
    user = User(jnp.asarray(HABIT), jnp.asarray(len(HABIT)))
    own = FineTune(epochs=2, learning_rate=0.5, batch=2, unroll=5)(model, user, KEY)
    local = FedAvg(NoClip(), False, epochs=2, batch=2, unroll=5, learning_rate=0.5)
    sent = local(model, user, KEY, jnp.array([jnp.inf]), local.steps(len(HABIT))).update
    for mine, received, change in zip(*map(jax.tree.leaves, (own, model, sent)), strict=True):
        assert jnp.array_equal(mine, received + change)
    assert any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(sent))


def test_training_that_runs_away_leaves_the_model_as_it_was(model) -> None:
    user = User(jnp.asarray(HABIT), jnp.asarray(len(HABIT)))
    own = jax.jit(FineTune(learning_rate=1e38, batch=2, unroll=5))(model, user, KEY)
    assert all(map(np.array_equal, jax.tree.leaves(own), jax.tree.leaves(model)))
