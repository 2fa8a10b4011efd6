from __future__ import annotations

import numpy as np
import pytest

from sottovoce.privacy.chacha import chacha20_block
from sottovoce.privacy.rng import chacha20, philox


def test_chacha20_is_the_cipher_of_rfc_8439():
    """Its first key stream block for the zero key and nonce (appendix A.1, vector 1)."""
    stream = chacha20(bytes(32)).bit_generator.random_raw(8).astype("<u8").tobytes()
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert stream.hex() == expected
    assert np.array(chacha20_block(bytes(32), 0, (0, 0, 0)), "<u4").tobytes().hex() == expected


@pytest.mark.parametrize("place", [0, 15, 31])
def test_every_byte_of_a_chacha20_key_counts(place):
    key = bytearray(32)
    key[place] = 1
    assert not np.array_equal(chacha20(bytes(key)).integers(0, 2**60, 4), chacha20(bytes(32)).integers(0, 2**60, 4))


def test_a_short_chacha20_key_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        chacha20(bytes(16))


def test_philox_uses_128_bits_of_its_key():
    high = bytes(15) + b"\x01"
    assert not np.array_equal(philox(high).integers(0, 2**60, 4), philox(bytes(16)).integers(0, 2**60, 4))
