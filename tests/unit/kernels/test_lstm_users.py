"""The LSTM's program for many users against `FedAvg`, which it spells out."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.build.assembly import assemble
from sottovoce.kernels import cpu
from sottovoce.kernels.lstm_users import PLAIN, model_of, nothing, plain_products
from sottovoce.local.update import FedAvg, User
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce_evidence.recipe import Recipe

LOCAL = {"batch": 3, "unroll": 4, "learning_rate": 3.0}


@partial(jax.jit, static_argnums=(0, 1))  # compiled once for each update and program, whatever the norms are
def many(products, update, model, users, norms, last):
    return products.train(update, model, users, None, norms, last)


@partial(jax.jit, static_argnums=0)
def one_by_one(update, *arguments):
    return jax.vmap(update, in_axes=(None, 0, None, 0, None))(*arguments)


def both(model, store, update, norms, products=PLAIN, by_part=1.0):
    """The results of a block, by either program."""
    block = store.gather(range(store.users))
    users = User(jnp.asarray(block.tokens), jnp.asarray(block.lengths))
    norms = jnp.broadcast_to(jnp.asarray(norms, jnp.float32), (store.users,))[:, None]
    norms = norms * jnp.asarray(by_part)
    last = int(update.steps(block.lengths).max())
    general = one_by_one(update, model, users, jax.random.key(0), norms, last)
    train = partial(many, products, update)
    if isinstance(products, cpu.OneUser):
        alone = [
            train(model, User(users.tokens[who : who + 1], users.length[who : who + 1]), norms[who : who + 1], last)
            for who in range(store.users)
        ]
        fast = jax.tree.map(lambda *parts: jnp.concatenate(parts), *alone)
    else:
        fast = train(model, users, norms, last)
    return general, fast._replace(update=jax.vmap(model_of)(fast.update))


def lengths_of(updates) -> np.ndarray:
    """Of each user's update, in float64."""
    squares = [np.sum(np.float64(leaf) ** 2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(updates)]
    return np.sqrt(sum(squares))


CLIPS = [FlatClip(0.4), FlatClip(1e3), PerLayerClip.even(0.4, 11), PerLayerClip((0.01,) * 5 + (1e3,) * 6), NoClip()]


KINDS = dict(zip(("flat", "wide", "per layer", "some layers", "none"), CLIPS, strict=True))
ONE_USER = cpu.OneUser(tile=25)  # of 60 words: two tiles and a rest
PRODUCTS = {"many users": PLAIN, "one user": ONE_USER}
# A program for each kind of clip, products and order. `make test-all` has them all.
QUICK = {(True, "many users", "flat")}
SENT = [
    pytest.param(every_step, clip, products, id=f"{products}, {name}, {'every step' if every_step else 'at the end'}",
                 marks=[] if (every_step, products, name) in QUICK else [pytest.mark.slow])
    for products in PRODUCTS for name, clip in KINDS.items() for every_step in (True, False)
]  # fmt: skip


@pytest.mark.parametrize(("every_step", "clipping", "products"), SENT)
def test_every_user_sends_what_fedavg_sends(model, store, every_step, clipping, products):
    update = FedAvg(clipping.normalised(), every_step, **LOCAL)
    general, fast = both(model, store, update, 1.0, PRODUCTS[products], clipping.clip_norms)
    for a, b in zip(jax.tree.leaves(general.update), jax.tree.leaves(fast.update), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6)
    assert jax.tree.structure(general.update) == jax.tree.structure(fast.update)
    np.testing.assert_allclose(general.norm, fast.norm, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(general.clipped, fast.clipped)
    np.testing.assert_array_equal(general.sound, fast.sound)
    np.testing.assert_allclose(general.loss, fast.loss, rtol=1e-4, atol=1e-6)
    assert float(jnp.max(jnp.abs(jax.tree.leaves(fast.update)[0]))) > 1e-3


def test_each_user_has_a_norm_of_their_own(model, store):
    norms = np.geomspace(0.05, 2.0, store.users)
    general, fast = both(model, store, FedAvg(FlatClip(1.0), True, **LOCAL), norms)
    for a, b in zip(jax.tree.leaves(general.update), jax.tree.leaves(fast.update), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6)
    lengths = np.sqrt(
        sum(np.sum(np.float64(leaf) ** 2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(fast.update))
    )
    assert np.all(lengths <= norms)
    assert np.any(lengths > 0.99 * norms)


@pytest.mark.slow
def test_products_of_bfloat16_stay_within_the_clip_and_close(model, store):
    """Its rounding is a hundredth of an update; the clip that follows is in float32 all the same."""
    general, fast = both(model, store, FedAvg(FlatClip(0.4), True, **LOCAL), 0.4, plain_products(jnp.bfloat16))
    leaves = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.update)]) for result in (general, fast)]
    assert 1e-5 < np.linalg.norm(leaves[0] - leaves[1]) / np.linalg.norm(leaves[0]) < 0.03
    lengths = np.sqrt(
        sum(np.sum(np.float64(leaf) ** 2, axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(fast.update))
    )
    assert np.all(lengths <= 0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "clipping",
    [FlatClip(1.0), pytest.param(PerLayerClip.even(1.0, 11), marks=pytest.mark.slow)],
    ids=["flat", "per layer"],
)
@pytest.mark.parametrize("clip_norm", [1e-3, 0.4, 1e3])
def test_updates_kept_in_float16_lose_little_at_any_clip_norm(model, store, clip_norm, clipping):
    """The unit follows the clip norm, so that neither small nor large ones leave the range."""
    update = FedAvg(clipping, True, **LOCAL)
    products = plain_products(stored=jnp.float16)
    general, fast = both(model, store, update, clip_norm, products, clipping.clip_norms)
    leaves = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.update)]) for result in (general, fast)]
    assert np.linalg.norm(leaves[0] - leaves[1]) / np.linalg.norm(leaves[0]) < 5e-4
    assert np.all(lengths_of(fast.update) <= clip_norm)


@pytest.mark.slow
def test_a_step_that_float16_cannot_hold_is_cut_and_clipped(model, store):
    """Steps of some hundred times the clip norm, one coordinate of which is beyond the end of float16."""
    update = FedAvg(FlatClip(1e-3), True, batch=3, unroll=4, learning_rate=1e5)
    _, fast = both(model, store, update, 1e-3, plain_products(stored=jnp.float16))
    lengths, there = lengths_of(fast.update), np.asarray(fast.norm) > 0
    assert np.all(np.asarray(fast.norm)[there] > 1e3 * 1e-3)
    assert np.all(np.asarray(fast.sound) == 1)
    assert np.all(lengths <= 1e-3)
    assert np.all(lengths[there] > 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "products", [PLAIN, pytest.param(ONE_USER, marks=pytest.mark.slow)], ids=["many users", "one user"]
)
def test_a_diverging_user_contributes_zero(model, store, products):
    _, fast = both(model, store, FedAvg(FlatClip(0.4), True, batch=3, unroll=4, learning_rate=1e38), 0.4, products)
    for leaf in jax.tree.leaves(fast.update):
        assert np.all(np.isfinite(leaf))
    assert np.all(lengths_of(fast.update) <= 0.4)


def test_on_a_cpu_a_large_model_trains_one_user_at_a_time(model, store):
    """Blocks of one user have a program written for them; larger ones, and `kernels = "off"`, the general one."""
    recipe = Recipe.load("demo").replace(
        model={"embedding": 6, "hidden": 8}, privacy={"users": store.users, "cohort": 2, "noise_multiplier": 1.0,
        "epsilon": None, "delta": 1e-9}, local={"batch": 3, "unroll": 4}, run={"block": 1},
    )  # fmt: skip
    assert assemble(recipe, store).sum_updates.products is cpu.ONE_USER
    assert assemble(recipe.replace(run={"block": 2}), store).sum_updates.products is None
    assert assemble(recipe.replace(run={"kernels": "off"}), store).sum_updates.products is None


@pytest.mark.parametrize("kind", [jnp.float16, jnp.float32])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 5), (3, 1)])
def test_nothing_is_zero_in_every_bit(shape, kind):
    found = nothing(shape, kind)
    assert (found.shape, found.dtype) == (shape, kind)
    assert not any(np.asarray(found).tobytes())
