"""The CUDA kernels of the LSTM against their plain twins, with the same kind of numbers. They need a Hopper GPU."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.commands.bench import made_up_users
from sottovoce.kernels import hopper, lstm_cuda
from sottovoce.kernels.lstm_users import plain_products, train_users
from sottovoce.local.update import FedAvg, User
from sottovoce.models.lstm import LSTM
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce_evidence.bounds import joint_norm

USERS = 24


@pytest.mark.parametrize(
    ("clipping", "rate", "every_step", "words"),
    [
        (FlatClip(15.0), 0.5, True, 10_000),
        (FlatClip(2.0), 6.0, True, 10_000),
        (FlatClip(0.3), 0.5, False, 10_000),
        (PerLayerClip(tuple(np.geomspace(2.0, 0.02, 11))), 6.0, True, 10_000),
        (NoClip(), 0.5, True, 10_000),
        (FlatClip(2.0), 6.0, True, 30_000),
    ],
    ids=["not clipped", "clipped", "clipped at the end", "per layer", "no clip", "30,000 words"],
)
def test_the_kernels_send_what_their_plain_twins_send(clipping, rate, every_step, words):
    update = FedAvg(clipping.normalised(), every_step, learning_rate=rate)
    make = partial(LSTM, words)
    kernels = lstm_cuda.products(update, jax.eval_shape(lambda key: make(key=key), jax.random.key(7)))
    if kernels is None:
        pytest.skip("needs a Hopper GPU")
    model = make(key=jax.random.key(7))
    bounded = every_step and not isinstance(clipping, NoClip)
    assert kernels.stored == (jnp.float16 if bounded else jnp.float32)
    block = made_up_users(USERS, words=10_000, tokens=1600).gather(range(USERS))
    block.lengths[1:4] = 0, 1, 801
    users = User(jnp.asarray(block.tokens), jnp.asarray(block.lengths))
    norms = jnp.broadcast_to(jnp.asarray(clipping.clip_norms), (USERS, len(clipping.clip_norms)))

    def sent(products):
        return jax.jit(partial(train_users, products, update))(model, users, norms, 20)

    fast, again, twin = sent(kernels), sent(kernels), sent(plain_products(jnp.bfloat16, kernels.stored))
    one, two, other = (
        np.concatenate([np.float64(leaf).reshape(USERS, -1) for leaf in jax.tree.leaves(result.update)], axis=1)
        for result in (fast, again, twin)
    )
    np.testing.assert_array_equal(one, two)
    assert np.linalg.norm(one - other) / np.linalg.norm(other) < 0.01
    assert np.all(np.linalg.norm(one, axis=1) <= joint_norm(clipping.clip_norms))
    assert not np.any(one[1])
    np.testing.assert_array_equal(fast.clipped, twin.clipped)


@pytest.mark.slow
def test_a_users_sums_are_made_in_one_order_whoever_else_is_in_the_block(monkeypatch):
    """How the softmax is split over programs depends on the vocabulary alone. No GPU is needed to see it."""
    grids = []

    def launch(name, text, warps, memory, grid, inputs, outputs, in_place=None):
        grids.append((grid[0], int(inputs[-1][1])))
        return [jnp.zeros(output.shape) for output in outputs]

    monkeypatch.setattr(hopper, "launch", launch)
    table = jnp.zeros((10_000, lstm_cuda.SIZE), jnp.bfloat16)
    for users in (1, 7, 32, 100, 160):
        lstm_cuda._scores(
            jnp.zeros((users, 80, lstm_cuda.SIZE), jnp.bfloat16), table, jnp.zeros((users, 1, 1), jnp.float16),
            jnp.ones(users), jnp.zeros((users, 80)),
        )  # fmt: skip
    assert set(grids) == {(3, 3392)}
