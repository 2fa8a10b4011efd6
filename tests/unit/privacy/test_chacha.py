"""The key stream of ChaCha20, block by block, against RFC 8439."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.privacy.chacha import chacha20_block, chacha20_blocks


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


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(size):
    with pytest.raises(ValueError, match=f"32 bytes, not {size}"):
        chacha20_block(bytes(size), 0, (0, 0, 0))
