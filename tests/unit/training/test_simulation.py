from __future__ import annotations

import jax
import jax.numpy as jnp

from sottovoce.local.update import FedAvg, User
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training.simulation import Sums, _add_block


def test_clipped_updates_are_summed_in_full_precision(model):
    """On a GPU the default would round every contribution, some of them to above S."""
    users = User(jnp.zeros((2, 12), jnp.int32), jnp.zeros((2,), jnp.int32))
    program = _add_block.lower(
        FedAvg(FlatClip(1.0), True, batch=2, unroll=3), FlatClip(1.0), 1.0,
        Sums(model, jnp.zeros(()), jnp.zeros(1)), model, users, jnp.zeros((2,), jnp.uint32), jax.random.key(0),
        jnp.ones(1), 2,
    ).as_text()  # fmt: skip
    assert program.count("precision = [HIGHEST, HIGHEST]") == len(jax.tree.leaves(model))
