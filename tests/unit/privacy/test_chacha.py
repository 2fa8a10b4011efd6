"""The key stream of ChaCha20, block by block, against RFC 8439."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.privacy import chacha
from sottovoce.privacy.chacha import chacha20_block, chacha20_blocks, chacha20_by_openssl


def test_blocks_are_told_apart_by_counter_and_nonce():
    """The block of section 2.3.2, and many at once as one by one."""
    nonce = (0x09000000, 0x4A000000, 0)
    block = np.array(chacha20_block(bytes(range(32)), 1, nonce), "<u4").tobytes().hex()
    assert block.startswith("10f1e7e4d13b5915500fdd1fa32071c4")
    assert block.endswith("b5129cd1de164eb9cbd083e8a2503c4e")
    counters = np.array([0, 1, 7, 2**32 - 1], np.uint32)
    key = np.frombuffer(bytes(range(32)), "<u4")
    words = np.array(chacha20_blocks(key, counters, nonce)).T
    np.testing.assert_array_equal(words, [chacha20_block(bytes(range(32)), int(each), nonce) for each in counters])


@pytest.mark.parametrize("count", [0, 1, 4097])
def test_openssl_has_the_same_blocks(count):
    """Also where it is asked for several parts."""
    key, nonce = bytes(range(32)), (1, 5, 2**32 - 1)
    found = chacha20_by_openssl(key, count, nonce)
    assert len(chacha._ZEROS) < 64 * 4097
    expected = np.stack(chacha20_blocks(np.frombuffer(key, "<u4"), np.arange(count, dtype=np.uint32), nonce), axis=1)
    np.testing.assert_array_equal(found, expected)
    for counter in range(max(0, count - 3), count):
        assert chacha20_block(key, counter, nonce) == found[counter].tolist()


@pytest.mark.parametrize("count", [1, 300])
def test_the_kernel_makes_the_same_blocks(count):
    key, nonce = np.arange(8, dtype=np.uint32) * 0x9E3779B9, (1, 5, 2**32 - 1)
    counters = jnp.arange(count, dtype=jnp.uint32) + jnp.uint32(2**32 - 200)
    header = jnp.asarray([*chacha._CONSTANTS, *key, 0, *nonce], jnp.uint32)
    found = chacha._by_kernel(header, counters, interpret=True)
    np.testing.assert_array_equal(found, chacha20_blocks(key, counters, nonce))


def test_a_gpu_has_the_same_blocks(monkeypatch):
    """Where there is one with kernels, by its kernel; here interpreted."""
    key, nonce = np.arange(8, dtype=np.uint32), (0, 1, 0)
    counters = jnp.arange(5, dtype=jnp.uint32)
    expected = chacha20_blocks(key, counters, nonce)
    if not chacha.is_hopper():
        monkeypatch.setattr(chacha, "is_hopper", lambda: True)
        monkeypatch.setattr(chacha, "_by_kernel", partial(chacha._by_kernel, interpret=True))
    np.testing.assert_array_equal(chacha20_blocks(key, counters, nonce), expected)
    for each, block in zip(counters, np.array(expected).T, strict=True):
        assert chacha20_block(key.tobytes(), int(each), nonce) == block.tolist()


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(size):
    with pytest.raises(ValueError, match=f"32 bytes, not {size}"):
        chacha20_block(bytes(size), 0, (0, 0, 0))
