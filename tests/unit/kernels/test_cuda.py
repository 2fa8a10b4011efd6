"""The CUDA kernels against their plain twins, with the same kind of numbers. Only a Hopper GPU can run them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.experiments.bench import WORKLOADS, make_users
from sottovoce.kernels import cuda
from sottovoce.kernels.lstm_users import plain_products, train_users
from sottovoce.local.update import FedAvg, User
from sottovoce.models.lstm import LSTM
from sottovoce.privacy.clipping import FlatClip

USERS = 24


@pytest.mark.parametrize(
    ("clip_norm", "rate", "every_step"), [(15.0, 0.5, True), (2.0, 6.0, True), (0.3, 0.5, False)],
    ids=["not clipped", "clipped", "clipped at the end"],
)  # fmt: skip
def test_the_kernels_send_what_their_plain_twins_send(clip_norm, rate, every_step):
    model, update = LSTM(10_000, key=jax.random.key(7)), FedAvg(FlatClip(clip_norm), every_step, learning_rate=rate)
    kernels = cuda.products(update, model)
    if kernels is None:
        pytest.skip("needs a Hopper GPU")
    assert kernels.stored == (jnp.float16 if every_step else jnp.float32)
    block = make_users(WORKLOADS["mcmahan-lstm"], USERS).gather(range(USERS))
    block.lengths[1:4] = 0, 1, 801
    users, norms = User(jnp.asarray(block.tokens), jnp.asarray(block.lengths)), jnp.full((USERS, 1), clip_norm)

    def sent(products):
        return jax.jit(partial(train_users, products, update))(model, users, norms, 20)

    fast, again, twin = sent(kernels), sent(kernels), sent(plain_products(jnp.bfloat16, kernels.stored))
    one, two, other = (
        np.concatenate([np.float64(leaf).reshape(USERS, -1) for leaf in jax.tree.leaves(result.update)], axis=1)
        for result in (fast, again, twin)
    )
    np.testing.assert_array_equal(one, two)
    assert np.linalg.norm(one - other) / np.linalg.norm(other) < 0.01
    assert np.all(np.linalg.norm(one, axis=1) <= clip_norm)
    assert not np.any(one[1])
    np.testing.assert_array_equal(fast.clipped, twin.clipped)


def test_a_users_sums_are_made_in_one_order_whoever_else_is_in_the_block(monkeypatch):
    """How the softmax is split over programs depends on the vocabulary alone. No GPU is needed to see it."""
    grids = []

    def run(name, delta, warps, memory, grid, inputs, outputs, in_place=None):
        grids.append((grid[0], int(inputs[-1][1])))
        return [jnp.zeros(output.shape) for output in outputs]

    monkeypatch.setattr(cuda, "_run", run)
    table = jnp.zeros((10_000, cuda.SIZE), jnp.bfloat16)
    for users in (1, 7, 32, 100, 160):
        cuda._scores(
            jnp.zeros((users, 80, cuda.SIZE), jnp.bfloat16), table, jnp.zeros((users, 1, 1), jnp.float16),
            jnp.ones(users), jnp.zeros((users, 80)),
        )  # fmt: skip
    assert set(grids) == {(3, 3360)}
