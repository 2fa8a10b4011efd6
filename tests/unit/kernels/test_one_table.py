"""The CUDA kernels of one table for all users, emulated on a CPU, against `one_gradient` in JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import one_gradient, one_table
from sottovoce.kernels.any_users import plain_softmax
from sottovoce.kernels.one_gradient import OneGradient
from sottovoce.kernels.one_table import OneTable
from sottovoce.kernels.table_cuda import Shape
from sottovoce.local.update import FedSGD, User
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"), [("lstm", {"embedding": 24, "hidden": 16}), ("stacked_lstm", {"embedding": 20})]
)
def test_every_user_sends_what_the_program_in_jax_sends(kind, settings, emulated, monkeypatch):
    """A block of three users, one without text; the vocabulary is no multiple of a block of rows."""
    monkeypatch.setattr(one_table, "PART", 2)
    words, lengths = 300, (70, 0, 33)
    model = build(kind, words, settings, jax.random.key(3))
    update = FedSGD(FlatClip(0.3), batch=4, unroll=4, learning_rate=1.0)
    shape = Shape(16, settings["embedding"], False, kind == "stacked_lstm", False, "float16")
    assert one_table.fits(shape)
    tokens = np.random.default_rng(0).integers(3, words, (3, 80))
    users = User(jnp.asarray(tokens), jnp.asarray(lengths))
    keys, norms = jax.random.split(jax.random.key(1), 3), jnp.full((3, 1), 0.3)
    last = int(update.steps(np.asarray(lengths)).max())

    def sent(program):
        return jax.jit(partial(program.train, update))(model, users, keys, norms, last)

    slow, fast = sent(OneGradient(jnp.bfloat16)), sent(OneGradient(jnp.bfloat16, softmax=OneTable(shape)))
    assert one_gradient.fits(update, model)
    for name, leaf in zip(("fast", "slow"), (fast, slow), strict=True):
        assert np.all(np.isfinite(np.asarray(leaf.loss))), name
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-4)
    one, other = (
        np.concatenate([np.float64(leaf).reshape(3, -1) for leaf in jax.tree.leaves(x.update)], 1) for x in (fast, slow)
    )
    assert np.linalg.norm(one - other) < 0.005 * np.linalg.norm(other)
    assert np.linalg.norm(other[0]) > 0.01
    assert not np.any(one[1])


@pytest.mark.slow
@pytest.mark.parametrize("biased", [False, True])
def test_the_level_by_one_table_is_that_of_all_logits(biased, emulated, monkeypatch):
    monkeypatch.setattr(one_table, "PART", 1)
    normal = np.random.default_rng(0).standard_normal
    received = jnp.asarray(normal((200, 20)), jnp.bfloat16)
    outputs = jnp.asarray(5 * normal((2, 16, 20)), jnp.bfloat16)
    bias = jnp.asarray(normal(200), jnp.float32) if biased else None
    plain = plain_softmax(jnp.bfloat16)
    wanted = plain.other_level(received, True, outputs, bias)
    found = plain._replace(level=one_table.level_of).other_level(received, True, outputs, bias)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
