"""Primitives give what their standards say; a vector and its masks add up modulo a power of two."""

from __future__ import annotations

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sottovoce.federation.masking import masks
from sottovoce.federation.masking.masks import (
    PLANES,
    Modular,
    agreed,
    derived,
    folded,
    key_from_seed,
    public_bytes,
    width_for,
)
from sottovoce.federation.messages import Code, Refused
from sottovoce.privacy.fixed_point import MOST
from sottovoce_evidence.errors import SottoError

# RFC 7748, section 6.1.
ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
THEIR_SECRET = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
# RFC 5869, test case 3: neither salt nor info.
HKDF_KEY = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
# RFC 8439, appendix A.1, vectors 1 and 2: the first two blocks of the zero key.
STREAM = (
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11c"
    "c387b669b2ee65869f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed29b721769ce64e43d57133b074d839d5"
    "31ed1f28510afb45ace10a1f4b794d6f"
)
# Points of small order, and their encodings that are not reduced: any key gives a secret of zeros with them.
LOW_ORDER = [
    bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little"), (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]  # fmt: skip


def test_two_devices_agree_on_the_secret_of_the_standard():
    bob = X25519PrivateKey.from_private_bytes(bytes.fromhex(BOB))
    assert public_bytes(bob).hex() == BOB_PUBLIC
    assert agreed(bob, bytes.fromhex(ALICE_PUBLIC), b"use") == derived(bytes.fromhex(THEIR_SECRET), b"use")


def test_keys_are_derived_as_the_standard_has_it():
    assert derived(b"\x0b" * 22, b"").hex() == HKDF_KEY
    assert derived(b"\x0b" * 22, b"one use") != derived(b"\x0b" * 22, b"another")


def test_a_mask_is_the_stream_of_the_standard():
    mask = Modular(16, 8)
    mask.add_masks([bytes(32)])
    assert mask.to_bytes().hex() == STREAM
    mask = Modular(20, 5)  # 20 numbers: a plane of 32 bits, then one of 8
    mask.add_masks([bytes(32)])
    assert mask.to_bytes().hex() == STREAM[:200]


@pytest.mark.parametrize("public", [*LOW_ORDER, bytes(31), b"", bytes(33)], ids=lambda public: public.hex()[:8])
def test_a_key_that_gives_no_secret_is_refused(public):
    with pytest.raises(Refused) as refused:
        agreed(X25519PrivateKey.generate(), public, b"")
    assert refused.value.code is Code.MALFORMED


def test_a_mask_key_follows_from_its_seed_and_another_seed_has_another():
    one, other = masks.new_seed(), masks.new_seed()
    assert public_bytes(key_from_seed(one)) == public_bytes(key_from_seed(one))
    assert public_bytes(key_from_seed(one)) != public_bytes(key_from_seed(other))


@pytest.mark.parametrize("width", PLANES)
@pytest.mark.parametrize("size", [1, 7, masks.CHUNK + 3])
def test_masks_that_are_taken_away_leave_the_exact_sum(width, size):
    generator = np.random.default_rng(width)
    bound = 2 ** (8 * width - 3)
    vectors = [generator.integers(-bound, bound, size) for _ in range(3)]
    vectors[0][0], vectors[1][0], vectors[2][0] = -bound, -bound, -bound
    keys, total = [os.urandom(32) for _ in range(3)], Modular(size, width)
    for vector, key in zip(vectors, keys, strict=True):
        masked = Modular(size, width)
        masked.add(vector)
        masked.add_masks([key, keys[0]])
        masked.add_masks([keys[1]], sign=-1)
        assert len(masked.to_bytes()) == width * size
        total.add_bytes(masked.to_bytes())
    total.add_masks([*keys, *[keys[0]] * 3], sign=-1)
    total.add_masks([keys[1]] * 3)
    assert total.signed().tolist() == sum(vectors).tolist()


@examples(100)
@given(users=st.integers(1, MOST), noise=st.integers(0, 2**46))
def test_no_sum_over_the_declared_users_wraps_round(users, noise):
    width, largest = width_for(users, noise), users * 2**27 + noise
    spare = 1 if noise else 2
    assert largest < 2 ** (8 * width - spare)
    assert width <= (6 if noise else 8)  # noise is added to the sum in float64, modulo its range
    narrower = [each for each in PLANES if each < width]
    assert all(largest >= 2 ** (8 * each - spare) for each in narrower)  # and no wider than that needs
    for extreme in (largest, -largest):
        one = Modular(1, width)
        one.add(np.array([extreme], np.int64))
        assert one.signed().tolist() == [extreme]
        assert noise or folded(one.signed(), width).tolist() == [extreme]


@examples(200)
@given(st.sampled_from(list(PLANES)), st.integers(-4, 4), st.integers(-4, 3), st.integers(-(2**27), 2**27))
def test_a_folded_sum_moves_no_further_than_a_user_also_where_it_wraps_round(width, near, eighth, move):
    """Near every eighth of the modulus: the fold and the end of the range are among them."""
    hostile = eighth * 2 ** (8 * width - 3) + near
    without, present = Modular(1, width), Modular(1, width)
    for vector, number in ((without, hostile), (present, hostile), (present, move)):
        vector.add(np.array([(number + 2**63) % 2**64 - 2**63], np.int64))
    before, after = (folded(vector.signed(), width).tolist()[0] for vector in (without, present))
    assert abs(after - before) <= abs(move)
    assert max(abs(before), abs(after)) <= 2 ** (8 * width - 2)


def test_a_sum_of_more_than_64_bits_is_refused():
    with pytest.raises(SottoError, match="more than 64 bits"):
        width_for(2**40)
