"""The program of any model with tables for many users against `FedAvg`, which it spells out."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels.any_users import Sparse, fits, plain_softmax
from sottovoce.kernels.recurrence import in_jax
from sottovoce.local.objective import Penalised, WithoutForgetting, plain
from sottovoce.local.update import FedAvg, FedSGD, User
from sottovoce.models.gru import GRU
from sottovoce.models.head import tables_of
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip

LOCAL = {"batch": 3, "unroll": 4, "learning_rate": 1.0}
WORDS = 40
LENGTHS = (50, 0, 13, 1, 37)
MODELS = {
    "gru": ("gru", {"embedding": 6, "hidden": 8}),
    "lstm": ("lstm", {"embedding": 6, "hidden": 8}),
    "stacked": ("stacked_lstm", {"embedding": 6, "dropout": 0.2}),
    "stacked and tied": ("stacked_lstm", {"embedding": 6, "tied": True, "variational": True}),
    "gated cnn": ("gated_cnn", {"embedding": 6, "bottleneck": 3}),
    "gated cnn, tied": ("gated_cnn", {"embedding": 6, "bottleneck": 3, "tied": True}),
}
WAYS = {
    "flat": (FlatClip(0.3), True, {}),
    "per layer, two epochs": (PerLayerClip, True, {"epochs": 2}),
    "without forgetting, clipped at the end": (FlatClip(0.3), False, {"objective": WithoutForgetting(0.3)}),
    "no clip": (NoClip(), True, {}),
}
QUICK = {("gru", "flat")}


def both(name, way, softmax):
    kind, settings = MODELS[name]
    model = build(kind, WORDS, settings, jax.random.key(3))
    clip, every_step, more = WAYS[way]
    clip = clip.even(0.3, len(jax.tree.leaves(model))) if clip is PerLayerClip else clip
    update = FedAvg(clip, every_step, **LOCAL, **more)
    assert fits(update, model)
    tokens = np.random.default_rng(0).integers(3, WORDS, (len(LENGTHS), max(LENGTHS)))
    tokens[0, :6] = tokens[0, 0]  # one word in a row
    users = User(jnp.asarray(tokens), jnp.asarray(LENGTHS))
    keys = jax.random.split(jax.random.key(1), len(LENGTHS))
    norms = jnp.broadcast_to(jnp.asarray(clip.clip_norms), (len(LENGTHS), len(clip.clip_norms)))
    last = int(update.steps(np.asarray(LENGTHS)).max())
    slow = jax.jit(jax.vmap(update, in_axes=(None, 0, 0, 0, None)))(model, users, keys, norms, last)
    return slow, jax.jit(partial(softmax.train, update))(model, users, keys, norms, last)


def flat(result) -> np.ndarray:
    return np.concatenate(
        [np.float64(leaf).reshape(len(LENGTHS), -1) for leaf in jax.tree.leaves(result.update)], axis=1
    )


CASES = [
    pytest.param(name, way, marks=[] if (name, way) in QUICK else [pytest.mark.slow]) for name in MODELS for way in WAYS
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_user_sends_what_fedavg_sends(name, way):
    slow, fast = both(name, way, plain_softmax())
    np.testing.assert_allclose(flat(fast), flat(slow), rtol=0, atol=2e-6)
    assert jax.tree.structure(slow.update) == jax.tree.structure(fast.update)
    np.testing.assert_allclose(fast.norm, slow.norm, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(fast.clipped, slow.clipped)
    np.testing.assert_array_equal(fast.sound, slow.sound)
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-5, atol=1e-6)
    assert np.abs(flat(fast)).max() > 1e-3


@pytest.mark.parametrize(
    "name", ["gru", *(pytest.param(name, marks=pytest.mark.slow) for name in ("stacked and tied", "gated cnn"))]
)
def test_rows_that_are_padded_send_the_same(name):
    """Rows of 6 numbers, kept as 8."""
    slow, fast = both(name, "flat", plain_softmax()._replace(aligned=True))
    np.testing.assert_allclose(flat(fast), flat(slow), rtol=0, atol=2e-6)
    np.testing.assert_allclose(fast.norm, slow.norm, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_narrow_numbers_stay_within_the_clip_and_close(name):
    """Products of bfloat16 and Δ in float16: a hundredth of an update. The last clip is in float32 all the same."""
    slow, fast = both(name, "flat", plain_softmax(jnp.bfloat16, jnp.float16))
    assert 1e-5 < np.linalg.norm(flat(fast) - flat(slow)) / np.linalg.norm(flat(slow)) < 0.02
    assert np.all(np.linalg.norm(flat(fast), axis=1) <= 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "stacked"])
@pytest.mark.parametrize("way", ["flat", "without forgetting, clipped at the end"])
def test_a_recurrence_of_all_users_sends_what_fedavg_sends(name, way):
    """In float32; and with narrow numbers within a hundredth of an update."""
    slow, fast = both(name, way, plain_softmax()._replace(recurrence=in_jax(jnp.float32)))
    np.testing.assert_allclose(flat(fast), flat(slow), rtol=0, atol=2e-6)
    slow, fast = both(name, way, plain_softmax(jnp.bfloat16)._replace(recurrence=in_jax()))
    assert 1e-5 < np.linalg.norm(flat(fast) - flat(slow)) / np.linalg.norm(flat(slow)) < 0.02


@pytest.mark.slow
def test_rows_that_are_read_are_all_that_changes():
    sparse = Sparse.zeros(2, jnp.zeros((5, 3)))
    whole, rng = np.zeros((2, 5, 3)), np.random.default_rng(0)
    for ids, factor in [
        ([[1, 1, 4], [0, 2, 3]], 0.5),
        ([[4, 0, 4], [2, 2, 2]], 1e-9),
        ([[1, 2, 3], [0, 0, 1]], 1e-9),
    ]:
        change = np.float32(rng.standard_normal((2, 3, 3)))
        sparse = sparse.add(jnp.asarray(ids), jnp.asarray(change)).clip(jnp.full(2, factor))
        for user in range(2):
            np.add.at(whole[user], ids[user], change[user])
        whole *= factor
        np.testing.assert_allclose(sparse.squares, np.sum(whole**2, axis=(1, 2)), rtol=1e-3)
    np.testing.assert_allclose(sparse.whole(), whole, rtol=1e-4, atol=1e-24)


def test_only_what_it_computes_is_given_to_it():
    model = build("gru", WORDS, {"embedding": 6, "hidden": 8}, jax.random.key(0))
    assert fits(FedAvg(FlatClip(1.0), True), model)
    others = [
        FedAvg(FlatClip(1.0), True, gradient_clip=1.0),
        FedAvg(FlatClip(1.0), True, objective=Penalised(plain, 0.1)),
        FedSGD(FlatClip(1.0)),
    ]
    assert not any(fits(update, model) for update in others)
    assert not fits(FedAvg(FlatClip(1.0), True), {"a": 1})

    class Otherwise(GRU):  # it reads otherwise, and says nothing of rows
        def read(self, tokens, state, key=None):
            return super().read(tokens[::-1], state, key)

    own = Otherwise(WORDS, embedding=6, hidden=8, key=jax.random.key(0))
    assert tables_of(own) is None
    assert not fits(FedAvg(FlatClip(1.0), True), own)
