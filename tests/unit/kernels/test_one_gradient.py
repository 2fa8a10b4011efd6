"""FedSGD with its steps computed together, against `FedSGD`."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels.one_gradient import OneGradient, fits
from sottovoce.local.objective import WithoutForgetting
from sottovoce.local.update import FedAvg, FedSGD, User
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip

WORDS = 40
LENGTHS = (50, 0, 13, 1, 37)


def both(kind, program, **local):
    settings = {"embedding": 6, "dropout": 0.2} if kind == "stacked_lstm" else {"embedding": 6}
    model = build(kind, WORDS, settings, jax.random.key(3))
    update = FedSGD(FlatClip(0.3), batch=3, unroll=4, learning_rate=1.0, **local)
    assert fits(update, model)
    tokens = np.random.default_rng(0).integers(3, WORDS, (len(LENGTHS), max(LENGTHS)))
    users = User(jnp.asarray(tokens), jnp.asarray(LENGTHS))
    keys = jax.random.split(jax.random.key(1), len(LENGTHS))
    norms, last = jnp.full((len(LENGTHS), 1), 0.3), int(update.steps(np.asarray(LENGTHS)).max())
    slow = jax.jit(jax.vmap(update, in_axes=(None, 0, 0, 0, None)))(model, users, keys, norms, last)
    return slow, jax.jit(partial(program.train, update))(model, users, keys, norms, last)


def flat(result) -> np.ndarray:
    return np.concatenate(
        [np.float64(leaf).reshape(len(LENGTHS), -1) for leaf in jax.tree.leaves(result.update)], axis=1
    )


@pytest.mark.parametrize(
    ("kind", "logits", "local"),
    [
        pytest.param("gru", 2 * 12 * WORDS, {}, marks=pytest.mark.slow),  # two steps together
        pytest.param("stacked_lstm", 2**23, {}, marks=pytest.mark.slow),
        pytest.param("gated_cnn", 2**23, {"tokens": 20}, marks=pytest.mark.slow),
        pytest.param("lstm", 2**23, {}, marks=pytest.mark.slow),
    ],
)
def test_every_user_sends_what_fedsgd_sends(kind, logits, local):
    slow, fast = both(kind, OneGradient(logits=logits), **local)
    np.testing.assert_allclose(flat(fast), flat(slow), rtol=0, atol=2e-6)
    np.testing.assert_allclose(fast.norm, slow.norm, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(fast.clipped, slow.clipped)
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-5, atol=1e-6)
    assert np.abs(flat(fast)).max() > 1e-3


@pytest.mark.slow
def test_narrow_numbers_stay_within_the_clip_and_close():
    slow, fast = both("lstm", OneGradient(jnp.bfloat16))
    assert 1e-5 < np.linalg.norm(flat(fast) - flat(slow)) / np.linalg.norm(flat(slow)) < 0.02
    assert np.all(np.linalg.norm(flat(fast), axis=1) <= 0.3)


def test_only_what_it_computes_is_given_to_it():
    model = build("gru", WORDS, {"embedding": 6}, jax.random.key(0))
    assert fits(FedSGD(FlatClip(1.0)), model)
    assert not fits(FedSGD(FlatClip(1.0), objective=WithoutForgetting(0.5)), model)
    assert not fits(FedAvg(FlatClip(1.0), True), model)
