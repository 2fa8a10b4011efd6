from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels.narrow import Narrow
from sottovoce.local.update import FedAvg, User
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip


@pytest.mark.slow
def test_it_is_the_update_itself_with_other_products():
    model = build("gru", 20, {"embedding": 4, "hidden": 4}, jax.random.key(0))
    update = FedAvg(FlatClip(0.3), True, batch=2, unroll=3)
    users = User(jnp.full((2, 6), 5), jnp.asarray([6, 0]))
    arguments = (model, users, jax.random.split(jax.random.key(0), 2), jnp.full((2, 1), 0.3), 1)
    lowered = jax.jit(lambda *given: Narrow().train(update, *given)).lower(*arguments)
    assert "BF16" in lowered.as_text() or "bf16" in lowered.as_text()
    exact = jax.vmap(update, in_axes=(None, 0, 0, 0, None))
    fast, slow = (jax.jit(each)(*arguments) for each in (lambda *given: Narrow("float32").train(update, *given), exact))
    for one, other in zip(jax.tree.leaves(fast.update), jax.tree.leaves(slow.update), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert Narrow().put_together(model) is model
