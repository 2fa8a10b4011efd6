"""A secret in shares, of which some number opens it: Shamir's sharing over GF(2^128), by pycryptodome.

A pair of shares travels through the server, sealed with ChaCha20-Poly1305 (RFC 8439) to the one who keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from sottovoce.federation.masking.masks import SEED
from sottovoce.federation.messages import Code, Refused

SEALED = 2 * SEED + 16  # bytes: two shares and a tag
_NONCE = bytes(12)  # a key is for one message: it is bound to round, list, sender and receiver


def split(secret: bytes, holders: int, threshold: int) -> list[bytes]:
    """One share for each holder. Any `threshold` of them open the secret; fewer tell nothing."""
    from Crypto.Protocol.SecretSharing import Shamir

    return [share for _, share in Shamir.split(threshold, holders, secret, ssss=False)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from shares by the place of their holder. More than `threshold` are not needed."""
    from Crypto.Protocol.SecretSharing import Shamir

    if len(shares) < threshold:
        raise Refused(Code.FEW, f"{len(shares)} shares of a secret are left, and {threshold} open it")
    return Shamir.combine([(place + 1, shares[place]) for place in sorted(shares)[:threshold]], ssss=False)


def seal(key: bytes, first: bytes, second: bytes) -> bytes:
    """Two shares, for the one other device that has the key. A key seals once."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, first + second, None)


def unseal(key: bytes, sealed: bytes) -> tuple[bytes, bytes]:
    try:
        shares = ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise Refused(Code.MALFORMED, "a share was changed on its way, or is meant for another device") from None
    return shares[:SEED], shares[SEED:]
