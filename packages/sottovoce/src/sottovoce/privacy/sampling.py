"""Who joins a round. docs/extending.md shows how to add a sampler.

What a sampler costs is in `sottovoce_evidence.sampling`: each sampler here is one of those, and draws its cohorts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sized
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from sottovoce.privacy.rng import chacha20
from sottovoce_evidence import sampling
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.registry import Registry


class Named(Sized, Protocol):
    """The users of a store, each with a number that follows from the user's name alone."""

    @property
    def names(self) -> np.ndarray: ...


class Sampler(sampling.Sampling):
    """Draws the cohort of a round, and knows what a round costs."""

    @abstractmethod
    def sample(self, people: Any, key: bytes, round_number: int = 0) -> np.ndarray:
        """The rows of the users that join, in increasing order.

        They follow from people, key and round alone: a round may be asked for before others, twice, or in vain.
        """


class Poisson(sampling.Poisson, Sampler):
    """Every user joins by a coin of their own.

    Guarantee: users are independent, and a user added after the others changes no other user's coin. The cost grows
    with the cohort, not with the number of users: the gaps between joining users are geometric.
    """

    def sample(self, people: Sized, key: bytes, round_number: int = 0) -> np.ndarray:
        users = len(people)
        generator = chacha20(key)
        # One chunk of gaps nearly always reaches past the last user.
        chunk = int(users * self.user_rate + 6 * (users * self.user_rate) ** 0.5) + 16
        rows, last = [], -1
        while last < users:
            # A gap beyond `users` only means that no user follows. The cap keeps the running sum within 64 bits.
            gaps = np.minimum(generator.geometric(self.user_rate, size=chunk), users + 1)
            rows.append(last + np.cumsum(gaps))
            last = int(rows[-1][-1])
        joined = np.concatenate(rows)
        return joined[joined < users]


class Examples(sampling.Examples, Sampler):
    """Every example of every user joins by a coin of its own."""

    def sample(self, people: Sized, key: bytes, round_number: int = 0) -> np.ndarray:
        if len(people) % self.examples_per_user:
            raise SottoError(f"{len(people)} rows are not {self.examples_per_user} places for each user")
        return Poisson(self.example_rate).sample(people, key, round_number)


class FixedSize(sampling.FixedSize, Sampler):
    """Every set of `cohort` places is equally likely."""

    def sample(self, people: Sized, key: bytes, round_number: int = 0) -> np.ndarray:
        places = max(len(people), self.users)
        drawn = np.sort(chacha20(key).choice(places, size=self.cohort, replace=False, shuffle=False))
        return drawn[drawn < len(people)]


class BoundedParticipation(sampling.BoundedParticipation, Sampler):
    """A public rule says when a user joins, from their name and public constants alone."""

    @abstractmethod
    def rounds_of(self, names: np.ndarray, rounds: int) -> np.ndarray:
        """The rounds, up to `rounds`, that each user joins: one row a user, in increasing order, after zeros."""

    def in_chunks(self, names: np.ndarray, rounds: int) -> Iterator[tuple[int, np.ndarray]]:
        """`rounds_of` for some users at a time, with the row of the first of them: all at once may not fit memory."""
        chunk = max(_AT_ONCE // self.participations(rounds), 1)
        for first in range(0, len(names), chunk):
            yield first, self.rounds_of(names[first : first + chunk], rounds)

    def _mixed(self, names: np.ndarray) -> np.ndarray:
        """A public hash of each name, keyed by the seed."""
        return _mix(names.astype(np.uint64) ^ self._key)

    @cached_property
    def _key(self) -> np.uint64:
        hashed = blake2b(f"whose turn it is, seed {self.seed}".encode(), digest_size=8).digest()
        return np.uint64(int.from_bytes(hashed, "big"))


_AT_ONCE = 2**21  # rounds of users that are computed at once


def _mix(numbers: np.ndarray) -> np.ndarray:
    """The last steps of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


class InTurn(sampling.InTurn, BoundedParticipation):
    """Users are in one of `groups` groups by a public hash, and every round asks the next group."""

    def group_of(self, names: np.ndarray) -> np.ndarray:
        return self._mixed(names) % np.uint64(self.groups)

    def rounds_of(self, names: np.ndarray, rounds: int) -> np.ndarray:
        groups = self.group_of(names).astype(np.int64)
        first = np.where(groups > 0, groups, self.groups)
        joined = first[:, None] + self.groups * np.arange(self.participations(rounds))
        return np.sort(np.where(joined <= rounds, joined, 0), axis=1)

    def sample(self, people: Named, key: bytes, round_number: int = 0) -> np.ndarray:
        """The rows of the group that this round asks."""
        rows, groups = _by_group(self, people)
        first, last = np.searchsorted(groups, np.uint64(round_number % self.groups) + np.arange(2, dtype=np.uint64))
        return rows[first:last]


@lru_cache(maxsize=1)  # otherwise every round would cost as much as there are users
def _by_group(sampler: InTurn, people: Named) -> tuple[np.ndarray, np.ndarray]:
    """All rows by group, those of one group in increasing order, and the group of each."""
    groups = sampler.group_of(people.names)
    rows = np.argsort(groups, kind="stable")
    return rows, groups[rows]


class MinSeparation(sampling.MinSeparation, BoundedParticipation):
    """The rounds of a user are k places on a circle of `span` rounds, turned by chance.

    k gaps of `min_separation` each, and what is left of the circle is shared out among them by chance. With many places
    the gaps are b and about a geometric number, as of users who come at any time once they may.
    """

    def rounds_of(self, names: np.ndarray, rounds: int) -> np.ndarray:
        # Whole numbers throughout: every machine finds the same rounds.
        k, b, span = (np.uint64(number) for number in (self.most_participations, self.min_separation, self.span))
        steps = np.arange(k, dtype=np.uint64)
        drawn = _mix(self._mixed(names)[:, None] + np.uint64(0x9E3779B97F4A7C15) * (steps + np.uint64(1)))
        places = drawn[:, :1] % span + steps * b
        places[:, 1:] += np.sort(drawn[:, 1:] % (span - k * b + np.uint64(1)), axis=1)
        joined = (places % span).astype(np.int64) + 1
        joined[joined > rounds] = 0
        return np.sort(joined, axis=1)

    def sample(self, people: Named, key: bytes, round_number: int = 0) -> np.ndarray:
        """The rows of the users who join this round; nobody does after the last round of the circle."""
        rows, rounds = _by_round(self, people, (round_number - 1) // self._part)
        first, last = np.searchsorted(rounds, round_number + np.arange(2))
        return rows[first:last]

    @property
    def _part(self) -> int:
        """Rounds in which users join about once each."""
        return self.users // self.cohort


@lru_cache(maxsize=1)  # a part of the rounds at a time: all rounds of all users may not fit memory
def _by_round(sampler: MinSeparation, people: Named, part: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of those who join in a part of the rounds, by round and in increasing order, and the round of each."""
    rows, rounds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for first, joined in sampler.in_chunks(people.names, (part + 1) * sampler._part):
        users, places = np.nonzero(joined > part * sampler._part)
        rows.append(first + users)
        rounds.append(joined[users, places])
    order = np.argsort(found := np.concatenate(rounds), kind="stable")
    return np.concatenate(rows)[order], found[order]


SAMPLERS = Registry[Sampler](
    "privacy.sampling",
    {
        "poisson": Poisson,
        "fixed": FixedSize,
        "in_turn": InTurn,
        "min_separation": MinSeparation,
        "examples": Examples,
    },
)
