"""Drawing the cohort of a round: who joins is secret, and depends on nothing but the secret key and the user's row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from sottovoce.errors import SottoError
from sottovoce.privacy.generator import chacha20, philox


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

    def check(self, users: int) -> None:
        """Any store will do: a user's chance is `user_rate` among however many."""

    def sample(self, users: int, key: bytes, round_number: int = 0) -> np.ndarray:
        """The rows of the users that join, in increasing order. The key is the round's, and decides alone."""
        del round_number
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
    """Exactly `cohort` different users, every such set equally likely.

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

    def check(self, users: int) -> None:
        """Refuse a store with which the guarantee would not hold."""
        if users < self.users:
            raise SottoError(
                f"privacy.users={self.users} but the store has {users}: drawing a fixed number from fewer users than "
                f"declared would be charged too little; declare at most {users}"
            )

    def sample(self, users: int, key: bytes, round_number: int = 0) -> np.ndarray:
        del round_number
        self.check(users)
        generator = chacha20(key) if self.hardened else philox(key)
        return np.sort(generator.choice(users, size=self.cohort, replace=False, shuffle=False))


@dataclass(frozen=True)
class InTurn:
    """`cohort` users a round, in a public order: nobody is asked again before everybody was.

    It is how updates come into a queue whose devices return one each. Who joins when is no secret, so there is no
    amplification.
    Guarantee: in any run of rounds nobody joins more than `turns` of them, nor one of them twice.
    """

    cohort: int
    users: int
    seed: int
    hardened: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.cohort <= self.users:
            raise SottoError(
                f"cohort={self.cohort} must be from 1 to the declared users={self.users}; in turn, nobody joins a "
                f"round twice"
            )

    def check(self, users: int) -> None:
        """Refuse a store whose users would come round sooner than declared."""
        if users < self.users:
            raise SottoError(
                f"privacy.users={self.users} but the store has {users}: everybody's turn would come more often than "
                f"is charged; declare at most {users}"
            )

    def turns(self, rounds: int) -> int:
        """How often one user joins at most, in so many rounds one after another."""
        return -(-rounds * self.cohort // self.users)

    def sample(self, users: int, key: bytes, round_number: int) -> np.ndarray:
        """The rows of a round, in increasing order. The order of all rounds is one circle."""
        del key
        self.check(users)
        turns = np.arange((round_number - 1) * self.cohort, round_number * self.cohort)
        return np.sort(_circle(users, self.seed)[turns % users])


@lru_cache(maxsize=2)
def _circle(users: int, seed: int) -> np.ndarray:
    key = blake2b(f"whose turn it is, seed {seed}".encode(), digest_size=16).digest()
    return philox(key).permutation(users)


Sampler = Poisson | FixedSize | InTurn
