"""Who joins a round: by secret coins that depend on a user's place alone, or in turn, by the user's name alone."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Protocol

import numpy as np

from sottovoce.errors import SottoError
from sottovoce.privacy.rng import chacha20, philox


class Named(Sized, Protocol):
    """The users of a store, each known by a number that follows from that user's name alone."""

    @property
    def names(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Poisson:
    """Every user joins with probability `user_rate`, independently of everyone else.

    Guarantee: users are independent, and a user added after the others changes nobody else's coin. The cost grows
    with the cohort, not with the number of users: the gaps between joining users are geometric.
    """

    user_rate: float
    hardened: bool = False  # coins from ChaCha20

    def __post_init__(self) -> None:
        if not 0 < self.user_rate <= 1:
            raise SottoError(
                f"user_rate={self.user_rate:g} must be in (0, 1]; it is the chance that a user joins a round "
                f"(cohort {self.user_rate * 100:g} of 100 users?)"
            )

    @property
    def generator(self) -> str:
        return "ChaCha20" if self.hardened else "Philox"

    def sample(self, people: Sized, key: bytes, round_number: int = 0) -> np.ndarray:
        """The rows of the users that join, in increasing order. The key is the round's, and decides alone."""
        del round_number
        users = len(people)
        generator = chacha20(key) if self.hardened else philox(key)
        # One chunk of gaps nearly always reaches past the last user.
        chunk = int(users * self.user_rate + 6 * (users * self.user_rate) ** 0.5) + 16
        rows, last = [], -1
        while last < users:
            # Beyond `users` a gap only says "nobody": capping it keeps the running sum within 64 bits.
            gaps = np.minimum(generator.geometric(self.user_rate, size=chunk), users + 1)
            rows.append(last + np.cumsum(gaps))
            last = int(rows[-1][-1])
        joined = np.concatenate(rows)
        return joined[joined < users]


@dataclass(frozen=True)
class FixedSize:
    """Exactly `cohort` different places, every such set equally likely.

    There are as many places as users, and no fewer than declared; where users are missing, a place is empty and adds
    nothing. So no store is refused for the number of its people.
    Guarantee: a user's chance to join is at most cohort / `users`, the declared population, which is what is charged.
    """

    cohort: int
    users: int
    hardened: bool = False  # drawn with ChaCha20

    def __post_init__(self) -> None:
        if not 0 < self.cohort <= self.users:
            raise SottoError(
                f"cohort={self.cohort} must be from 1 to the declared users={self.users}; "
                f"it is the number of users drawn for a round"
            )

    @property
    def generator(self) -> str:
        return "ChaCha20" if self.hardened else "Philox"

    def sample(self, people: Sized, key: bytes, round_number: int = 0) -> np.ndarray:
        del round_number
        generator = chacha20(key) if self.hardened else philox(key)
        places = max(len(people), self.users)
        drawn = np.sort(generator.choice(places, size=self.cohort, replace=False, shuffle=False))
        return drawn[drawn < len(people)]


@dataclass(frozen=True)
class InTurn:
    """Everybody in turn: users are in one of `groups` groups, about `cohort` in each, and a round asks one group.

    It is how updates come into a queue whose devices return one each. Who joins when is no secret, so there is no
    amplification.
    Guarantee: a user's group follows from their name and public constants alone, whoever else is there. In any run of
    rounds nobody joins more than `turns` of them, nor one of them twice.
    """

    cohort: int
    users: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.cohort <= self.users:
            raise SottoError(
                f"cohort={self.cohort} must be from 1 to the declared users={self.users}; in turn, nobody joins a "
                f"round twice"
            )

    @property
    def generator(self) -> str:
        return "none: turns are public"

    @property
    def groups(self) -> int:
        """From what is declared: a store of more or fewer people has larger or smaller groups."""
        return self.users // self.cohort

    def turns(self, rounds: int) -> int:
        """How often one user joins at most, in so many rounds one after another."""
        return -(-rounds // self.groups)

    def group_of(self, names: np.ndarray) -> np.ndarray:
        """The group of each user: a public hash of the name (the last steps of SplitMix64), keyed by the seed."""
        mixed = names.astype(np.uint64) ^ self._key
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return (mixed ^ (mixed >> np.uint64(31))) % np.uint64(self.groups)

    def sample(self, people: Named, key: bytes, round_number: int) -> np.ndarray:
        """The rows of the group whose turn it is, in increasing order."""
        del key
        rows, groups = _by_group(self, people)
        first, last = np.searchsorted(groups, np.uint64(round_number % self.groups) + np.arange(2, dtype=np.uint64))
        return rows[first:last]

    @cached_property
    def _key(self) -> np.uint64:
        hashed = blake2b(f"whose turn it is, seed {self.seed}".encode(), digest_size=8).digest()
        return np.uint64(int.from_bytes(hashed, "big"))


@lru_cache(maxsize=1)  # else every round would cost as much as there are users
def _by_group(sampler: InTurn, people: Named) -> tuple[np.ndarray, np.ndarray]:
    """All rows by group, those of one group in increasing order, and the group of each."""
    groups = sampler.group_of(people.names)
    rows = np.argsort(groups, kind="stable")
    return rows, groups[rows]


Sampler = Poisson | FixedSize | InTurn
