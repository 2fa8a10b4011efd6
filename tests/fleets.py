"""Devices in one process: a federation of a few people, and a transport without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from sottovoce.data.store import Store
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation.device import Device
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.members import BY_SERVER, Membership
from sottovoce.federation.roster import Enrolment, Member, Roster
from sottovoce.federation.transport import Exchange
from sottovoce_evidence.recipe import Recipe

FEDERATION = "0123456789abcdef"
_UNUSED_KEY = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBLuOytapLa1uwh/8+HcdUMDo+CP4QljwJE/d8KnB"
    "in14UtTVLflaoEB8CqRMysJpZyBqnzGrYJ1b1MPFUzC17ug="
)


def some_of(store: Store, start: int, end: int) -> Store:
    """Users of a store as a store of their own."""
    rows = [store[row] for row in range(start, end)]
    names = [blake2b(f"user {row}".encode(), digest_size=16).digest() for row in range(start, end)]
    return Store.from_users(rows, store.vocabulary, tokens_per_user=store.tokens_per_user, names=names)


@dataclass(frozen=True)
class Seat:
    """A device's own secret, and what it knows of the others."""

    secret: int = 0
    membership: Membership | None = None


def make_device(
    folder: Path, store: Store, name: str, first: int, users: int, *, limits: Limits | None = None, secret: int = 0
) -> Device:
    return seated_device(folder, store, Enrolment(FEDERATION, name, first, users), Seat(secret), limits)


def seated_device(folder: Path, store: Store, enrolment: Enrolment, seat: Seat, limits: Limits | None = None) -> Device:
    folder.mkdir(parents=True, exist_ok=True)
    participation = Participation(folder / f"{enrolment.name}.jsonl")
    own = some_of(store, enrolment.first, enrolment.first + enrolment.users)
    secret = bytes([seat.secret]) * 32
    return Device(enrolment, own, secret, participation, limits or Limits(), seat.membership)


def make_roster(
    folder: Path, vocabulary: Vocabulary, tokens: int, shares: dict[str, int], keys: Mapping[str, str] | None = None
) -> Roster:
    """A roster for fleets without a network, where a device signs nothing unless `keys` has one for it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(vocabulary, folder)
    firsts = np.cumsum([0, *shares.values()]).tolist()
    public = keys or {}
    members = tuple(
        Member(name, first, shares[name], public.get(name, _UNUSED_KEY), BY_SERVER)
        for name, first in zip(shares, firsts, strict=False)
    )
    roster = Roster(folder, FEDERATION, "localhost", 1, tokens, members)
    roster.save()
    return roster


class InProcess:
    """A transport without a network. `spoil` may change what a device sends, or swallow it."""

    def __init__(self, devices: dict[str, Device], spoil: Callable[[str, bytes], bytes | None] | None = None):
        self.devices, self.spoil = devices, spoil
        self.tasks: list[bytes] = []
        self.asked: list[set[str]] = []  # the devices, by exchange

    def here(self) -> set[str]:
        return set(self.devices)

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        self.tasks += set(exchange.messages.values())
        self.asked.append(set(exchange.messages))
        for name, message in exchange.messages.items():
            if name in self.devices:
                answer: bytes | None = self.devices[name].answer(message)
                if self.spoil is not None and answer is not None:
                    answer = self.spoil(name, answer)
                if answer is not None:
                    yield name, answer


def tiny_recipe(folder: Path | str, **sections: dict) -> Recipe:
    recipe = Recipe.from_dict({
        "data": {"store": str(folder)},
        "model": {"embedding": 4, "hidden": 5},
        "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
        "privacy": {
            "users": 13, "cohort": 6, "clip_norm": 0.3, "noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp",
        },
        "run": {"rounds": 3, "evaluate_every": 0, "block": 1, "devices": 1},
    })  # fmt: skip
    return recipe.replace(**sections)
