"""Shares of a secret: any threshold of them opens it, and a sealed pair opens for its one receiver."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sottovoce.federation.masking.sharing import SEALED, ChaCha20Poly1305, combine, seal, split, unseal
from sottovoce.federation.messages import Code, Refused


@st.composite
def shared(draw) -> tuple[bytes, int, list[int]]:
    """A secret, the number of its holders, and those of them that give their share."""
    holders = draw(st.integers(1, 12))
    threshold = draw(st.integers(1, holders))
    giving = draw(st.permutations(range(holders)))[:threshold]
    return draw(st.binary(min_size=16, max_size=16)), holders, giving


@examples(60)
@given(shared())
def test_any_threshold_of_the_shares_opens_the_secret(case):
    secret, holders, giving = case
    shares = split(secret, holders, len(giving))
    assert combine({place: shares[place] for place in giving}, len(giving)) == secret
    assert combine(dict(enumerate(shares)), len(giving)) == secret  # more than are needed


@examples(60)
@given(shared())
def test_fewer_shares_fit_every_secret(case):
    """One share less, and any other secret has shares that agree with those that are left."""
    secret, holders, giving = case
    shares, others = split(secret, holders, len(giving)), split(os.urandom(16), holders, len(giving))
    with pytest.raises(Refused) as refused:
        combine({place: shares[place] for place in giving[1:]}, len(giving))
    assert refused.value.code is Code.FEW
    if len(giving) > 1:
        mixed = {place: shares[place] for place in giving[1:]} | {giving[0]: others[giving[0]]}
        assert combine(mixed, len(giving)) != secret


@pytest.mark.parametrize(("slope", "doubled"), [(3 << 90, 3 << 91), (1 << 127, 0x87), (1 << 127 | 1, 0x87 ^ 2)])
def test_the_field_is_that_of_two_to_the_128_elements(slope, doubled):
    """x^128 = x^7 + x^2 + x + 1: shares of a line at the points 1 and x."""
    secret = int.from_bytes(os.urandom(16), "big")
    shares = {0: (secret ^ slope).to_bytes(16, "big"), 1: (secret ^ doubled).to_bytes(16, "big")}
    assert combine(shares, 2) == secret.to_bytes(16, "big")


def test_shares_are_sealed_as_the_standard_has_it():
    """RFC 8439, section 2.8.2."""
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would "
        b"be it."
    )
    sealed = ChaCha20Poly1305(key).encrypt(nonce, text, bytes.fromhex("50515253c0c1c2c3c4c5c6c7"))
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


def test_a_sealed_pair_opens_for_its_key_alone_and_not_after_a_change():
    key, first, second = os.urandom(32), os.urandom(16), os.urandom(16)
    sealed = seal(key, first, second)
    assert len(sealed) == SEALED
    assert unseal(key, sealed) == (first, second)
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    for other, wrong in ((os.urandom(32), sealed), (key, changed), (key, sealed[:-1]), (key, b"")):
        with pytest.raises(Refused, match="changed on its way, or is meant for another"):
            unseal(other, wrong)
