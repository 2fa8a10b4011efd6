"""Messages between the server and a device, as bytes: named arrays and a JSON object of facts, no code.

A contribution is sent in whole steps of the round's grid, so sums at the server are exact. An error on a device is
sent as a code: the text of an error could hold the text of a person.

The sender of a message may be hostile. Sizes, depths and numbers are bounded before they are used. A message that
cannot be read raises `Refused`, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

import numpy as np

Facts = dict[str, Any]  # a parsed JSON object
Which = tuple[str, int]  # a run, and a round of it

PROTOCOL = 1
MAX_BYTES = 2**31  # of a message
MAX_HEAD = 2**20  # bytes of the list of its arrays
MAX_FACTS = 2**20  # bytes of the facts of a task: a recipe, mostly
MAX_LISTS = 200  # lists and objects in the facts, nested or not
MAX_DIGITS = 18  # of a whole number, which then has 64 bits
MAX_ANSWER_FACTS = 2**10  # bytes
HEAD_OF_ARRAY = 2**8  # bytes that describe one array


class Code(StrEnum):
    """Why a device contributed nothing to a round. The server learns nothing else about it.

    No code depends on who is in the store of a device.
    """

    VERSION = "version"  # another sottovoce than the server's
    MALFORMED = "malformed"  # a message that cannot be read
    STRANGER = "stranger"  # another federation or vocabulary, or a device that is not on the roster
    LIMITS = "limits"  # the task exceeds what the device's owner allows
    TWICE = "twice"  # the round was answered already
    BOUNDS = "bounds"  # more users or weight than are registered
    FROZEN = "frozen"  # it lacks the frozen part of the model, which is sent once
    KEPT = "kept"  # it has that part now
    SIGNATURE = "signature"  # what another device signed is not by the key that this device knows of it
    FEW = "few"  # fewer devices are left than a masked sum needs
    LOST = "lost"  # it does not know of this masked round: it was started again, or took up another round
    FAILED = "failed"  # any other error
    AWAY = "away"  # no answer in time


class Refused(Exception):
    """A message that is not acted upon. `why` is for the log of the one who refuses; only the code is sent."""

    def __init__(self, code: Code, why: str = ""):
        super().__init__(why or code.value)
        self.code = code


_TASK = {
    "version": str,
    "federation": str,
    "vocabulary": str,
    "run": str,
    "round": int,
    "recipe": dict,
    "frozen": str,
}
LATER = ("share", "mask", "confirm", "unmask")  # the phases of a masked round after its task
_FROZEN = "frozen "  # before the names of the arrays of a frozen part


@dataclass(frozen=True)
class Task:
    """One round, as every device is asked for it. All of it is public to the devices."""

    version: str  # of sottovoce: both sides must compute alike
    federation: str
    vocabulary: str  # its fingerprint
    run: str
    round: int
    recipe: Facts
    clip_norms: np.ndarray
    key: np.ndarray  # for the users' own randomness
    leaves: list[np.ndarray]  # of the model's parameters
    frozen: str = ""  # a hash of the part that is not trained; empty where all is

    @property
    def which(self) -> Which:
        """The round of a run. It has one task: a server that asks for it again sends the same bytes, or is refused."""
        return self.run, self.round

    def to_bytes(self) -> bytes:
        facts = {"protocol": PROTOCOL, "kind": "task", **{name: getattr(self, name) for name in _TASK}}
        return pack(facts, {"clip_norms": self.clip_norms, "key": self.key}, self.leaves)


@dataclass(frozen=True)
class FrozenPart:
    """The part of a model that is not trained, for a device that lacks it."""

    federation: str
    name: str  # its hash, as tasks have it
    arrays: dict[str, np.ndarray]

    def to_bytes(self) -> bytes:
        facts = {"protocol": PROTOCOL, "kind": "frozen", "federation": self.federation, "name": self.name}
        return pack(facts, {f"{_FROZEN}{name}": array for name, array in self.arrays.items()}, [])


@dataclass(frozen=True)
class Contribution:
    """Sums over the users of one device that joined a round: one user on a phone, many in a silo, or nobody."""

    task: str  # the digest of the task that it answers
    users: int
    weight: int  # Σ w_k, in steps of `estimators.WEIGHT_STEP`
    bits: np.ndarray  # in halves
    leaves: list[np.ndarray]  # Σ w_k Δ_k in steps of the grid; in float32 where there is no clip, so no grid

    def to_bytes(self) -> bytes:
        facts = {"protocol": PROTOCOL, "task": self.task, "users": self.users, "weight": self.weight}
        return pack(facts, {"bits": self.bits}, [_narrow(leaf) for leaf in self.leaves])


@dataclass(frozen=True)
class Nothing:
    """A device adds nothing, and why."""

    code: Code

    def to_bytes(self) -> bytes:
        return pack({"protocol": PROTOCOL, "nothing": self.code.value}, {}, [])


@dataclass(frozen=True)
class Later:
    """A later phase of a masked round. `masking/messages.py` reads it."""

    kind: str
    facts: Facts
    arrays: dict[str, np.ndarray]


def read_request(message: bytes) -> Task | FrozenPart | Later:
    """A task, the frozen part of a model, or a later phase of a masked round.

    Raises `Refused` for other kinds, and for what cannot be read.
    """
    facts, arrays, leaves = unpack(message, MAX_FACTS)
    try:
        kind = typed(facts["kind"], str)
        if kind == "frozen":
            named = {name.removeprefix(_FROZEN): array for name, array in arrays.items() if name.startswith(_FROZEN)}
            return FrozenPart(typed(facts["federation"], str), typed(facts["name"], str), named)
        if kind in LATER:
            return Later(kind, facts, arrays)
        if kind != "task":
            raise Refused(Code.VERSION)  # a newer server
        known = {name: typed(facts[name], kind) for name, kind in _TASK.items()}
        if not known["run"].isalnum():
            raise ValueError("a space could give two rounds the same name")
        return Task(**known, clip_norms=arrays["clip_norms"], key=arrays["key"], leaves=leaves)
    except (KeyError, TypeError, ValueError):
        raise Refused(Code.MALFORMED) from None


def read_answer(message: bytes) -> Contribution | Nothing:
    """What a device sent. Raises `Refused` if it cannot be read."""
    facts, arrays, leaves = unpack(message, MAX_ANSWER_FACTS)
    try:
        if "nothing" in facts:
            return Nothing(Code(typed(facts["nothing"], str)))
        users, weight = typed(facts["users"], int), typed(facts["weight"], int)
        return Contribution(typed(facts["task"], str), users, weight, arrays["bits"], leaves)
    except (KeyError, TypeError, ValueError):
        raise Refused(Code.MALFORMED) from None


def largest_answer(parameters: int, leaves: int, bits: int) -> int:
    """The most bytes in the answer of an honest device."""
    return 8 * (parameters + bits) + MAX_ANSWER_FACTS + HEAD_OF_ARRAY * (leaves + 3)


def digest(message: bytes) -> str:
    return sha256(message).hexdigest()[:32]


def typed(value: Any, kind: type) -> Any:
    """The value, which must be of exactly this type: `True` is not an integer here."""
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _narrow(leaf: np.ndarray) -> np.ndarray:
    """Whole numbers in 32 bits where they fit. Those of up to 15 users always do, which halves the message."""
    if leaf.dtype != np.int64 or np.abs(leaf).max(initial=0) >= 2**31:
        return leaf
    return leaf.astype(np.int32)


def pack(facts: Facts, arrays: Mapping[str, np.ndarray], leaves: list[np.ndarray]) -> bytes:
    from safetensors.numpy import save

    encoded = json.dumps(facts, sort_keys=True, allow_nan=False).encode()
    named = {f"{number:04d}": leaf for number, leaf in enumerate(leaves)}
    tensors = {"facts": np.frombuffer(encoded, np.uint8), **arrays, **named}
    return save({name: np.asarray(array, order="C") for name, array in tensors.items()})


def unpack(message: bytes, max_facts: int) -> tuple[Facts, dict[str, np.ndarray], list[np.ndarray]]:
    from safetensors.numpy import load

    if len(message) > MAX_BYTES or int.from_bytes(message[:8], "little") > MAX_HEAD:
        raise Refused(Code.MALFORMED)
    try:
        arrays = load(message)
        encoded = arrays.pop("facts")
        if encoded.dtype != np.uint8 or encoded.ndim != 1 or encoded.size > max_facts:
            raise ValueError(encoded.shape)
        facts = _parse(encoded.tobytes())
        leaves = [arrays.pop(name) for name in sorted(name for name in arrays if name.isdecimal())]
    except Exception:  # noqa: BLE001 -- anything that the readers of arrays and of JSON raise on hostile bytes
        raise Refused(Code.MALFORMED) from None
    # Checked first: another protocol may have other facts.
    if type(facts.get("protocol")) is not int or facts["protocol"] != PROTOCOL:
        raise Refused(Code.VERSION)
    return facts, arrays, leaves


def _parse(encoded: bytes) -> Facts:
    """A JSON object without repeated keys, deep nesting, large integers, infinity or NaN."""
    if encoded.count(b"[") + encoded.count(b"{") > MAX_LISTS:  # Python's reader fails on a thousand nested ones
        raise ValueError("deep")
    facts = json.loads(encoded, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_integer)
    return typed(facts, dict)


def _unique(pairs: list[tuple[str, Any]]) -> Facts:
    facts = dict(pairs)
    if len(facts) != len(pairs):
        raise ValueError("twice")
    return facts


def _integer(text: str) -> int:
    """An integer of at most 18 digits. "NaN" and "Infinity" raise ValueError too."""
    if len(text) > MAX_DIGITS:
        raise ValueError("large")
    return int(text)
