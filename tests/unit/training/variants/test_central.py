"""Whose text a round reads. That its steps are SGD is in equivalence/test_central.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.training.variants.central import Central, PooledRound, join_texts


def test_the_randomness_of_training_follows_from_the_seed_and_the_round():
    keys = {seed: [Central(5, seed).key(number) for number in (1, 2)] for seed in (0, 11)}
    data = {tuple(jax.random.key_data(key).tolist()) for pair in keys.values() for key in pair}
    assert len(data) == 4
    assert jnp.array_equal(jax.random.key_data(keys[11][1]), jax.random.key_data(Central(7, 11).key(2)))


def test_every_pass_reads_every_user_once_in_an_order_of_its_own():
    users, passes = 13, Central(users_a_round=4, seed=2)
    turns = np.concatenate([passes.rows(users, number) for number in range(1, 27)])  # 104 turns: eight passes
    orders = turns.reshape(8, users)
    assert all(sorted(order) == list(range(users)) for order in orders)
    assert len({tuple(order) for order in orders}) == 8
    assert not np.array_equal(Central(4, seed=3).rows(users, 1), passes.rows(users, 1))
    assert sorted(Central(3, seed=1).rows(1, 5)) == [0, 0, 0]  # more a round than there are


def test_texts_are_joined_in_order_and_padded_to_the_most_there_could_be(store):
    text = join_texts(store, np.array([4, 1, 3]))
    expected = [*store[4], *store[1], *store[3]]
    assert int(text.length) == len(expected)
    assert text.tokens.shape == (3 * store.tokens_per_user,)
    assert text.tokens[: len(expected)].tolist() == expected
    assert not np.any(text.tokens[len(expected) :])


def test_a_loss_that_is_not_finite_is_left_out_of_diagnostics():
    facts = PooledRound(3, 40, jnp.float32(2.5), jnp.int32(1)).diagnostics()
    assert facts == {"users": 3, "tokens": 40, "not_finite": 1, "clipped_share": None, "loss": 2.5}
    assert PooledRound(3, 40, jnp.float32(jnp.nan), jnp.int32(1)).diagnostics()["loss"] is None
    assert not Central.federated
