"""What the server asks of a device, and what a device answers, as bytes: named arrays and plain facts, no code.

A contribution travels in whole steps of the round's grid, so that sums at the server are exact. What goes wrong on a
device travels as a code: the text of an error could hold the text of a person.

Whoever sends a message may be hostile: sizes, depths and numbers are bounded before they are used, and whatever cannot
be read is `Refused`, and nothing else is raised.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np

PROTOCOL = 1
MOST_BYTES = 2**31  # of a message
MOST_HEAD = 2**20  # bytes of the list of its arrays
MOST_FACTS = 2**20  # bytes of what a task says beside its arrays: a recipe, mostly
MOST_LISTS = 200  # lists and tables in what is said, one in another or not
MOST_DIGITS = 18  # of a whole number, which then has 64 bits
_FEW_FACTS = 2**10  # bytes of what an answer says
_HEAD_OF_ARRAY = 2**8  # bytes of what is said of one array


class Code(StrEnum):
    """Why a device contributed nothing to a round: all that is ever said of it."""

    NOBODY = "nobody"  # no user of the device was drawn
    VERSION = "version"  # another sottovoce than the server's
    MALFORMED = "malformed"  # a message that cannot be read
    STRANGER = "stranger"  # of another federation or vocabulary, or from a device that is not on the roster
    LIMITS = "limits"  # more was asked than the device's owner allows
    TWICE = "twice"  # the round was answered already
    BOUNDS = "bounds"  # more users or weight than are registered
    FAILED = "failed"  # anything else
    AWAY = "away"  # no answer in time


class Refused(Exception):
    """A message that is not acted upon."""

    def __init__(self, code: Code):
        super().__init__(code.value)
        self.code = code


@dataclass(frozen=True)
class Task:
    """One round, as every device is asked for it. All of it is public to whoever takes part."""

    version: str  # of sottovoce: both sides must compute alike
    federation: str
    vocabulary: str  # its fingerprint
    run: str
    round: int
    attempt: str  # names the release: a round that was broken off is asked for again, with fresh coins and noise
    recipe: dict[str, Any]
    clip_norms: np.ndarray
    key: np.ndarray  # of the users' own randomness
    leaves: list[np.ndarray]  # of the model

    @property
    def release(self) -> str:
        """Names what a user may join once."""
        return f"{self.run} {self.round} {self.attempt}"

    def to_bytes(self) -> bytes:
        facts = {
            "protocol": PROTOCOL, "version": self.version, "federation": self.federation,
            "vocabulary": self.vocabulary, "run": self.run, "round": self.round, "attempt": self.attempt,
            "recipe": self.recipe,
        }  # fmt: skip
        return _pack(facts, {"clip_norms": self.clip_norms, "key": self.key}, self.leaves)

    @staticmethod
    def from_bytes(message: bytes) -> Task:
        facts, arrays, leaves = _unpack(message, MOST_FACTS)
        try:
            return Task(
                str(facts["version"]), str(facts["federation"]), str(facts["vocabulary"]), _word(facts["run"]),
                _whole(facts["round"]), _word(facts["attempt"]), dict(facts["recipe"]), arrays["clip_norms"],
                arrays["key"], leaves,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            refuse(Code.MALFORMED)


@dataclass(frozen=True)
class Contribution:
    """Sums over the users of one device that joined a round: one of them, or as many as a silo has."""

    task: str  # which task it answers: its digest
    users: int
    weight: int  # Σ w_k, in steps of `estimators.WEIGHT_STEP`
    bits: np.ndarray  # in halves
    leaves: list[np.ndarray]  # Σ w_k Δ_k in steps of the grid; in float32 where there is no clip, so no grid

    def to_bytes(self) -> bytes:
        facts = {"protocol": PROTOCOL, "task": self.task, "users": self.users, "weight": self.weight}
        return _pack(facts, {"bits": self.bits}, [_smallest(leaf) for leaf in self.leaves])


@dataclass(frozen=True)
class Nothing:
    """A device has nothing to add, and why. A user who was not drawn looks like one who is away."""

    code: Code

    def to_bytes(self) -> bytes:
        return _pack({"protocol": PROTOCOL, "nothing": self.code.value}, {}, [])


def read_answer(message: bytes) -> Contribution | Nothing:
    """What a device sent; `Refused` when it cannot be understood."""
    facts, arrays, leaves = _unpack(message, _FEW_FACTS)
    try:
        if "nothing" in facts:
            return Nothing(Code(_short(facts["nothing"])))
        return Contribution(
            _short(facts["task"]), _whole(facts["users"]), _whole(facts["weight"]), arrays["bits"], leaves
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        refuse(Code.MALFORMED)


def largest_answer(parameters: int, leaves: int, bits: int) -> int:
    """The most bytes that the answer of an honest device has."""
    return 8 * (parameters + bits) + _FEW_FACTS + _HEAD_OF_ARRAY * (leaves + 3)


def digest(message: bytes) -> str:
    return sha256(message).hexdigest()[:32]


def refuse(code: Code) -> NoReturn:
    raise Refused(code) from None


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _short(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def _word(value: Any) -> str:
    """A name without spaces: with them, two releases could be called alike."""
    if not (isinstance(value, str) and value.isalnum()):
        raise TypeError(value)
    return value


def _smallest(leaf: np.ndarray) -> np.ndarray:
    """Whole numbers in 32 bits where they fit, as those of up to 15 users always do: half of the bytes."""
    if leaf.dtype != np.int64 or np.abs(leaf).max(initial=0) >= 2**31:
        return leaf
    return leaf.astype(np.int32)


def _pack(facts: dict[str, Any], arrays: dict[str, np.ndarray], leaves: list[np.ndarray]) -> bytes:
    from safetensors.numpy import save

    said = json.dumps(facts, sort_keys=True, allow_nan=False).encode()
    named = {f"{number:04d}": leaf for number, leaf in enumerate(leaves)}
    tensors = {"facts": np.frombuffer(said, np.uint8), **arrays, **named}
    return save({name: np.ascontiguousarray(array) for name, array in tensors.items()})


def _unpack(message: bytes, most_facts: int) -> tuple[dict[str, Any], dict[str, np.ndarray], list[np.ndarray]]:
    from safetensors.numpy import load

    if len(message) > MOST_BYTES or int.from_bytes(message[:8], "little") > MOST_HEAD:
        raise Refused(Code.MALFORMED)
    try:
        arrays = load(message)
        said = arrays.pop("facts")
        if said.dtype != np.uint8 or said.ndim != 1 or said.size > most_facts:
            raise ValueError(said.shape)
        facts = _facts(said.tobytes())
        leaves = [arrays.pop(name) for name in sorted(name for name in arrays if name.isdecimal())]
    except Exception:  # noqa: BLE001 -- whatever the readers of arrays and of JSON raise on bytes that anybody may send
        refuse(Code.MALFORMED)
    # An older or newer protocol may have other facts: it is the one thing to look at first.
    if type(facts.get("protocol")) is not int or facts["protocol"] != PROTOCOL:
        raise Refused(Code.VERSION)
    return facts, arrays, leaves


def _facts(said: bytes) -> dict[str, Any]:
    """A JSON object: nothing twice, nothing deep, no number that is endless, large or none."""
    if said.count(b"[") + said.count(b"{") > MOST_LISTS:  # Python's own reader fails on a thousand in one another
        raise ValueError("deep")
    facts = json.loads(said, object_pairs_hook=_once, parse_int=_bounded, parse_constant=_no_number)
    if not isinstance(facts, dict):
        raise ValueError("no object")
    return facts


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    facts = dict(pairs)
    if len(facts) != len(pairs):
        raise ValueError("twice")
    return facts


def _bounded(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("large")
    return int(digits)


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)
