from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from family import send
from sottovoce.local.quantise import EightBit, plain_size
from sottovoce.local.update import FedAvg, FedSGD, Trained, User, clip_update
from sottovoce.privacy.clipping import FlatClip, PerLayerClip

KEY = jax.random.key(3)
LOCAL = {"batch": 2, "unroll": 3, "learning_rate": 1.5}
CODE = EightBit()


def an_update(seed: int = 0) -> dict:
    generator = np.random.default_rng(seed)
    wide = generator.normal(size=(20, 30)) * np.geomspace(1e-6, 10, 20)[:, None]
    return {"wide": jnp.asarray(wide, jnp.float32), "bias": jnp.asarray(generator.normal(size=7), jnp.float32)}


@jax.jit
def there_and_back(update, keys):
    return jax.vmap(lambda key: CODE.dequantise(CODE.quantise(update, key)))(keys)


def norms_of(updates) -> np.ndarray:
    """Of each update along the first axis, in float64."""
    squares = [np.sum(np.float64(leaf) ** 2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(updates)]
    return np.sqrt(sum(squares))


def norm(update) -> float:
    return float(norms_of(jax.tree.map(lambda leaf: leaf[None], update))[0])


def test_every_number_is_within_a_step_of_its_rows_unit():
    update = an_update()
    packed = jax.jit(CODE.quantise)(update, KEY)
    assert all(leaf.dtype == jnp.int8 for leaf in jax.tree.leaves(packed.numbers))
    for name, leaf in jax.jit(CODE.dequantise)(packed).items():
        unit = np.max(np.abs(update[name]), axis=-1, keepdims=True) / 127
        assert np.all(np.abs(leaf - update[name]) <= unit * 1.001)
        assert np.max(np.abs(packed.numbers[name])) == 127


def test_rounding_is_right_on_average():
    update = an_update()
    many = there_and_back(update, jax.random.split(KEY, 4000))
    for name, leaf in update.items():
        unit = np.max(np.abs(leaf), axis=-1, keepdims=True) / 127
        error = np.abs(np.mean(np.float64(many[name]), axis=0) - leaf) / unit
        assert np.max(error) < 5 * 0.5 / np.sqrt(4000)  # five standard errors of a fair coin's
        assert np.mean(np.std(np.float64(many[name]) / unit, axis=0)) > 0.2, "nothing was rounded by chance"


def test_nothing_stays_nothing():
    zeros = jax.tree.map(np.zeros_like, an_update())
    assert np.all(norms_of(there_and_back(zeros, KEY[None])) == 0)


def test_bytes_are_counted_as_they_travel():
    update = an_update()
    packed = jax.jit(CODE.quantise)(update, KEY)
    assert CODE.size(update) == sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(packed))
    assert plain_size(update) == 4 * (600 + 7)


@pytest.mark.parametrize("clipping", [FlatClip(0.001), PerLayerClip.even(0.001, 2)], ids=["flat", "per layer"])
@pytest.mark.parametrize("kind", [partial(FedAvg, clip_every_step=True), FedSGD], ids=["FedAvg", "FedSGD"])
def test_a_packed_update_is_never_longer_than_the_clip_norm(clipping, kind):
    """Guarantee: what the server adds is clipped after it is unpacked, since rounding may lengthen it."""
    local, norms, keys = kind(clipping, compression=CODE), jnp.asarray(clipping.clip_norms), jax.random.split(KEY, 20)
    trained = Trained(an_update(), jnp.zeros(()), jnp.array(False), jnp.zeros(()))
    sent = jax.jit(jax.vmap(lambda key: clip_update(local, trained, norms, key)))(keys)
    whole = jax.jit(lambda: clip_update(replace(local, compression=None), trained, norms).update)()
    assert np.all(np.asarray(sent.sound) == 1)
    assert np.all(norms_of(sent.update) <= 0.001)
    lengthened = norms_of(there_and_back(whole, keys)) > 0.001
    assert np.any(lengthened), "rounding never lengthened an update: the second clip was not tested"


@pytest.mark.slow
def test_users_round_by_chances_of_their_own(model):
    update = FedAvg(FlatClip(0.3), True, compression=CODE, **LOCAL)
    user = User(jnp.arange(3, 27), jnp.asarray(24))
    norms = jnp.asarray([0.3])
    one, again, other = (
        send(update, model, user, jax.random.key(k), norms, update.steps(24)).update for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.embedding, again.embedding)
    assert np.any(one.embedding != other.embedding)


@pytest.mark.slow
def test_what_is_not_finite_is_sent_as_nothing(model):
    update = FedAvg(FlatClip(0.3), True, compression=CODE, batch=2, unroll=3, learning_rate=1e38)
    user = User(jnp.arange(3, 27), jnp.asarray(24))
    sent = send(update, model, user, KEY, jnp.asarray([0.3]), update.steps(24))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(sent.update))
    assert norm(sent.update) <= 0.3


def test_what_a_clip_makes_not_finite_of_what_is_sent_is_nothing(model):
    class Divides(FlatClip):
        def shorten(self, part, bound):
            return [leaf * (bound / norm(part)) for leaf in part], norm(part) > bound

    update = FedAvg(Divides(0.3), False, compression=CODE, batch=2, unroll=3, learning_rate=1.0)
    zero = jax.tree.map(jnp.zeros_like, model)
    clipped = clip_update(update, Trained(zero, jnp.zeros(()), jnp.zeros(1, bool), jnp.zeros(())), jnp.ones(1), KEY)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(clipped.update))
