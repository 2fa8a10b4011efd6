from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from sottovoce.local.keys import local_key


@pytest.mark.parametrize("place", range(8))
def test_every_byte_of_a_local_key_counts(place):
    changed = bytes(1 if index == place else 0 for index in range(8))
    assert not jnp.array_equal(
        jax.random.normal(local_key(changed), (8,)), jax.random.normal(local_key(bytes(8)), (8,))
    )


def test_a_local_key_is_of_the_first_eight_bytes():
    assert jnp.array_equal(
        jax.random.key_data(local_key(bytes(range(32)))), jax.random.key_data(local_key(bytes(range(8))))
    )
