"""Masks: X25519 and HKDF-SHA256 (RFC 7748, RFC 5869) give two devices a key, and ChaCha20 (RFC 8439) a stream from it.

A vector is added modulo 2^(8·width). Its numbers lie in planes: 32 bits first, then what is above them. So a mask has
no more bytes than the vector, and is added without being unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sottovoce.federation.masking.context import bind
from sottovoce.federation.messages import Code, Refused
from sottovoce.privacy.fixed_point import BITS
from sottovoce_evidence.errors import SottoError

SEED = 16  # bytes of what is shared: an element of GF(2^128)
KEY = 32
CHUNK = 2**14  # numbers whose stream is made at once, so that it stays in the cache; both sides must use the same
EXACT = 6  # bytes of a number that is divided in float64, and comes out of that as it was
PLANES = {4: ("<u4",), 5: ("<u4", "u1"), 6: ("<u4", "<u2"), 8: ("<u8",)}  # by width: one plane, or two


def new_seed() -> bytes:
    return os.urandom(SEED)


def key_from_seed(seed: bytes) -> X25519PrivateKey:
    """The mask key that follows from a seed. Whoever puts the seed together from its shares has the key."""
    return X25519PrivateKey.from_private_bytes(derived(seed, bind("mask key")))


def public_bytes(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def agreed(key: X25519PrivateKey, public: bytes, bound: bytes) -> bytes:
    """A key that two devices share, bound to its use. A public key that gives no secret is refused."""
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # of another length, or of low order: then the secret is zero for everybody
        raise Refused(Code.MALFORMED, "a public key of another device is malformed: it would give no secret") from None
    return derived(secret, bound)


def derived(secret: bytes, bound: bytes) -> bytes:
    """A key of 32 bytes by HKDF-SHA256 without salt; `bound` says what it is for."""
    return HKDF(SHA256(), KEY, None, bound).derive(secret)


def width_for(users: int, noise: int = 0) -> int:
    """The bytes of a number modulo which no sum over `users` wraps round, with noise within ± `noise`.

    Where devices add no noise, such a sum is within a quarter of the modulus, which `folded` leaves as it is.

    Guarantee: the sum of contributions of so many users, each within 2^27 steps, is told apart from all others.
    """
    bound, spare = users * 2**BITS + noise, 1 if noise else 2  # bits: one is for the sign
    most = EXACT if noise else max(PLANES)
    fits = [width for width in PLANES if width <= most and bound.bit_length() <= 8 * width - spare]
    if not fits:
        raise SottoError(f"a masked sum over {users:,} users needs more than {8 * most} bits; register fewer users")
    return min(fits)


def folded(numbers: np.ndarray, width: int) -> np.ndarray:
    """Numbers modulo 2^(8·width) folded at a quarter of it: what is beyond comes back by as much.

    Guarantee: where one number moves by a step, also where it wraps round, the result moves by a step at most. So a
    user moves a sum by no more than their contribution, whatever other devices sent.
    """
    most = np.int64(2 ** (8 * width - 1) - 1)
    quarter = most // 2 + 1
    back = np.where(numbers > 0, most - numbers + 1, -most - 1 - numbers)
    return np.where((numbers > quarter) | (numbers < -quarter), back, numbers)


class Modular:
    """A vector of whole numbers modulo 2^(8·width), to which vectors and masks are added."""

    def __init__(self, size: int, width: int):
        self.size, self.width = size, width
        self._kinds = [np.dtype(plane) for plane in PLANES[width]]
        self._planes = [np.zeros(size, kind) for kind in self._kinds]

    def add(self, numbers: np.ndarray) -> None:
        """Add integers of 64 bits, negative ones as well."""
        raw = numbers.view(np.uint64)
        self._add([raw.astype(self._kinds[0]), *((raw >> np.uint64(32)).astype(kind) for kind in self._kinds[1:])])

    def add_masks(self, keys: Iterable[bytes], sign: int = 1) -> None:
        """Add, or take away, the stream of each key. A key is used for one vector of one round only."""
        streams = [Cipher(ChaCha20(key, bytes(16)), None).encryptor() for key in keys]
        zeros, buffer = bytes(self.width * CHUNK), bytearray(self.width * CHUNK)
        carry = np.zeros(CHUNK, np.bool_)
        for start in range(0, self.size, CHUNK):
            count = min(CHUNK, self.size - start)
            length = self.width * count
            sums = [plane[start : start + count] for plane in self._planes]
            mask = self._split(memoryview(buffer)[:length], count)
            for stream in streams:
                stream.update_into(memoryview(zeros)[:length], buffer)
                _add_planes(sums, mask, sign, carry[:count])

    def add_bytes(self, packed: bytes | np.ndarray) -> None:
        """Add a vector as `to_bytes` has it."""
        self._add(self._split(packed, self.size))

    def to_bytes(self) -> bytes:
        return b"".join(plane.tobytes() for plane in self._planes)

    def signed(self) -> np.ndarray:
        """The numbers as integers of 64 bits, from -2^(8·width - 1) up."""
        numbers = self._planes[0].astype(np.uint64)
        for plane in self._planes[1:]:
            numbers += plane.astype(np.uint64) << np.uint64(32)
        unused = 64 - 8 * self.width
        return (numbers << np.uint64(unused)).view(np.int64) >> np.int64(unused)

    def _add(self, planes: list[np.ndarray]) -> None:
        _add_planes(self._planes, planes, 1, np.zeros(self.size, np.bool_))

    def _split(self, packed: bytes | memoryview | np.ndarray, count: int) -> list[np.ndarray]:
        views, start = [], 0
        for kind in self._kinds:
            views.append(np.frombuffer(packed, kind, count, start))
            start += count * kind.itemsize
        return views


def _add_planes(sums: list[np.ndarray], other: list[np.ndarray], sign: int, carry: np.ndarray) -> None:
    """Add numbers to sums in place, or take them away; what leaves the lower of two planes enters the upper."""
    operation, low, added = (np.add if sign > 0 else np.subtract), sums[0], other[0]
    if len(sums) > 1 and sign < 0:
        np.less(low, added, out=carry)  # they will borrow
    operation(low, added, out=low)
    if len(sums) > 1:
        if sign > 0:
            np.less(low, added, out=carry)  # they wrapped round
        operation(sums[1], other[1], out=sums[1])
        operation(sums[1], carry.view(np.uint8), out=sums[1])
