"""The messages of a masked round, after its task. A reader raises `Refused`, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import numpy as np

from sottovoce.federation.masking.context import bind
from sottovoce.federation.masking.masks import KEY, SEED
from sottovoce.federation.masking.sharing import SEALED
from sottovoce.federation.messages import (
    HEAD_OF_ARRAY,
    MAX_ANSWER_FACTS,
    PROTOCOL,
    Code,
    Facts,
    Later,
    Nothing,
    Refused,
    pack,
    typed,
    unpack,
)

ENTRY = 2 * KEY + 32  # bytes of what a device shows: two public keys and a commitment


def commitment(seed: bytes, context: str, name: str) -> bytes:
    """What binds a device to the seed of its self-mask: nobody finds another seed for it, or the seed from it."""
    return sha256(bind("self-mask seed", context, name, seed)).digest()


@dataclass(frozen=True)
class Advert:
    """What a device answers to its task: two fresh public keys, and a commitment to the seed of its self-mask.

    They are signed with its registered key. The mask key is its own commitment: its seed gives the public key again.
    """

    context: str
    mask_key: bytes
    seal_key: bytes
    commitment: bytes
    signature: bytes

    @property
    def entry(self) -> bytes:
        return self.mask_key + self.seal_key + self.commitment

    @staticmethod
    def claim(context: str, name: str, entry: bytes) -> bytes:
        """What is signed."""
        return bind("keys", context, name, entry)

    def to_bytes(self) -> bytes:
        return _message("keys", self.context, {"signature": self.signature.hex()}, keys=self.entry)


def read_advert(message: bytes, context: str) -> Advert:
    facts, arrays = _read_answer(message, "keys", context)
    try:
        entry = _rows(arrays["keys"], ENTRY)[0]
        signature = bytes.fromhex(typed(facts["signature"], str))
        return Advert(context, entry[:KEY], entry[KEY : 2 * KEY], entry[2 * KEY :], signature)
    except (KeyError, TypeError, ValueError, IndexError):
        raise Refused(Code.MALFORMED) from None


@dataclass(frozen=True)
class KeyList:
    """All devices of a round with their keys: the same list for everybody."""

    context: str
    names: tuple[str, ...]
    keys: tuple[bytes, ...]  # the mask key, the seal key and the commitment of each
    signatures: tuple[bytes, ...] = field(compare=False)
    users: int = 0  # numbers have room for so many: all that are registered, whether or not their devices take part

    @cached_property
    def digest(self) -> str:
        return sha256(bind("list", self.context, str(self.users), *self.names, *self.keys)).hexdigest()

    def entry(self, name: str) -> Advert:
        """What a device showed."""
        place = self._places[name]
        shown = self.keys[place]
        return Advert(self.context, shown[:KEY], shown[KEY : 2 * KEY], shown[2 * KEY :], self.signatures[place])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def to_bytes(self) -> bytes:
        signatures = [one.hex() for one in self.signatures]
        facts: Facts = {"names": list(self.names), "signatures": signatures, "users": self.users}
        return _message("share", self.context, facts, keys=b"".join(self.keys))


@dataclass(frozen=True)
class Shares:
    """A pair of shares for each neighbour, sealed, in the order of the neighbours' names."""

    context: str
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return _message("shares", self.context, {}, sealed=b"".join(self.sealed))


@dataclass(frozen=True)
class Forwarded:
    """The sealed shares that a device keeps for its neighbours."""

    context: str
    names: tuple[str, ...]
    sealed: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return _message("mask", self.context, {"names": list(self.names)}, sealed=b"".join(self.sealed))


@dataclass(frozen=True)
class Masked:
    context: str
    vector: bytes | np.ndarray

    def to_bytes(self) -> bytes:
        return _message("vector", self.context, {}, vector=self.vector)


@dataclass(frozen=True)
class Survivors:
    """The devices whose vectors the server has, and would add up."""

    context: str
    names: tuple[str, ...]

    def claim(self, list_digest: str) -> bytes:
        """What is signed."""
        return bind("survivors", self.context, list_digest, *self.names)

    def to_bytes(self) -> bytes:
        return _message("confirm", self.context, {"names": list(self.names)})


@dataclass(frozen=True)
class Confirmed:
    context: str
    signature: bytes

    def to_bytes(self) -> bytes:
        return _message("confirmed", self.context, {"signature": self.signature.hex()})


@dataclass(frozen=True)
class Signatures:
    """Who signed the set of survivors."""

    context: str
    names: tuple[str, ...]
    signatures: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        facts: Facts = {"names": list(self.names), "signatures": [one.hex() for one in self.signatures]}
        return _message("unmask", self.context, facts)


@dataclass(frozen=True)
class Revealed:
    """A device's own self-mask seed, and one share for each neighbour whose shares it keeps, in their order."""

    context: str
    seed: bytes
    shares: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        return _message("revealed", self.context, {}, seed=self.seed, shares=b"".join(self.shares))


Request = KeyList | Forwarded | Survivors | Signatures


def read_later(later: Later) -> Request:
    """What the server asks in a later phase."""
    facts, arrays = later.facts, later.arrays
    try:
        context, names = typed(facts["context"], str), None
        names = tuple(typed(name, str) for name in typed(facts["names"], list))
        if list(names) != sorted(set(names)):
            raise ValueError("names twice, or out of order")
        if later.kind == "confirm":
            return Survivors(context, names)
        if later.kind == "mask":
            return Forwarded(context, names, _as_many(names, _rows(arrays["sealed"], SEALED)))
        signatures = tuple(bytes.fromhex(typed(one, str)) for one in typed(facts["signatures"], list))
        signatures = _as_many(names, signatures)
        if later.kind == "unmask":
            return Signatures(context, names, signatures)
        keys, users = _as_many(names, _rows(arrays["keys"], ENTRY)), typed(facts["users"], int)
        return KeyList(context, names, keys, signatures, users)
    except (KeyError, TypeError, ValueError):
        raise Refused(Code.MALFORMED) from None


def read_shares(message: bytes, context: str, count: int) -> tuple[bytes, ...]:
    """The sealed shares of a device, by its number of neighbours."""
    return _exactly(count, _read_rows(message, "shares", context, "sealed", SEALED))


def read_vector(message: bytes, context: str, size: int) -> np.ndarray:
    """A masked vector, by its number of bytes."""
    _, arrays = _read_answer(message, "vector", context)
    vector = arrays.get("vector")
    if vector is None or vector.dtype != np.uint8 or vector.shape != (size,):
        raise Refused(Code.MALFORMED)
    return vector


def read_confirmed(message: bytes, context: str) -> bytes:
    facts, _ = _read_answer(message, "confirmed", context)
    try:
        return bytes.fromhex(typed(facts["signature"], str))
    except (KeyError, TypeError, ValueError):
        raise Refused(Code.MALFORMED) from None


def read_revealed(message: bytes, context: str, count: int) -> Revealed:
    _, arrays = _read_answer(message, "revealed", context)
    try:
        (seed,) = _rows(arrays["seed"], SEED)
        return Revealed(context, seed, _exactly(count, _rows(arrays["shares"], SEED)))
    except (KeyError, TypeError, ValueError):
        raise Refused(Code.MALFORMED) from None


def largest(size: int) -> int:
    """The most bytes in an answer whose arrays have `size` bytes."""
    return size + MAX_ANSWER_FACTS + 4 * HEAD_OF_ARRAY


def _message(kind: str, context: str, facts: Facts, **arrays: bytes | np.ndarray) -> bytes:
    named = {name: np.frombuffer(raw, np.uint8) for name, raw in arrays.items()}
    return pack({"protocol": PROTOCOL, "kind": kind, "context": context, **facts}, named, [])


def _read_answer(message: bytes, kind: str, context: str) -> tuple[Facts, dict[str, np.ndarray]]:
    facts, arrays, _ = unpack(message, MAX_ANSWER_FACTS)
    try:
        if "nothing" in facts:
            raise Refused(Nothing(Code(typed(facts["nothing"], str))).code)
        if typed(facts["kind"], str) != kind:
            raise Refused(Code.MALFORMED)
        if typed(facts["context"], str) != context:
            raise Refused(Code.TWICE)  # of another round
    except (KeyError, TypeError, ValueError):
        raise Refused(Code.MALFORMED) from None
    return facts, arrays


def _read_rows(message: bytes, kind: str, context: str, name: str, size: int) -> tuple[bytes, ...]:
    _, arrays = _read_answer(message, kind, context)
    try:
        return _rows(arrays[name], size)
    except (KeyError, ValueError):
        raise Refused(Code.MALFORMED) from None


def _rows(array: np.ndarray, size: int) -> tuple[bytes, ...]:
    """Bytes, in pieces of one size."""
    if array.dtype != np.uint8 or array.ndim != 1 or array.size % size:
        raise ValueError(array.shape)
    raw = array.tobytes()
    return tuple(raw[start : start + size] for start in range(0, len(raw), size))


def _as_many(names: Sequence[str], rows: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if len(rows) != len(names):
        raise ValueError(len(rows))
    return rows


def _exactly(count: int, rows: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if len(rows) != count:
        raise Refused(Code.MALFORMED)
    return rows
