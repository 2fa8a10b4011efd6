"""Which canaries were inserted into a run. Reading it needs no jax."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from sottovoce.audit.results import CanarySummary
from sottovoce.data.tokenizer import Tokenizer
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import Facts, Json

_ABOUT = (
    "made-up users who were added to the declared population; whether one of `users` was in is not told. A secret is "
    "what follows the first `prefix` words; it is ranked among all sequences of words of the vocabulary that could "
    "stand there"
)


@dataclass(frozen=True)
class Registry(Facts):
    """Which canaries were inserted: public, and chosen before any user's text was read.

    Sequences are words of the vocabulary, `prefix` known ones and then the secret. Their rows in the store come after
    those of the population: the `users`, then the holders of the first secret, of the second, and so on.
    """

    vocabulary: str  # its fingerprint
    prefix: int
    copies: int  # of a holder; 0 fills their text
    tokens_per_user: int
    users: tuple[tuple[str, ...], ...]
    secrets: tuple[tuple[str, ...], ...]
    holders: tuple[int, ...]  # of each secret

    @property
    def canaries(self) -> int:
        return len(self.users) + sum(self.holders)

    def summary(self) -> CanarySummary:
        """What a ledger and a statement say of it."""
        return CanarySummary(len(self.users), len(self.secrets), sum(self.holders), self.digest())

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(super().to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> Json:
        return {"registry": 1, "about": _ABOUT, **super().to_json()}

    @classmethod
    def from_json(cls, values: Json) -> Self:
        try:
            return super().from_json(values)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedRun(f"the registry of canaries is damaged ({type(error).__name__}: {error})") from None

    def rows(self, vocabulary: Tokenizer) -> list[np.ndarray]:
        """What each canary wrote: those of `users`, then the holders."""
        rows = [self._text(user, vocabulary, 0) for user in self.users]
        for secret, holders in zip(self.secrets, self.holders, strict=True):
            rows += [self._text(secret, vocabulary, self.copies)] * holders
        return rows

    def encode(self, sequence: Sequence[str], vocabulary: Tokenizer) -> np.ndarray:
        if vocabulary.fingerprint != self.vocabulary:
            raise SottoError("the registry of canaries is of another vocabulary than the model; take that of its run")
        return np.array([vocabulary.encode(word)[1] for word in sequence])

    def _text(self, sequence: Sequence[str], vocabulary: Tokenizer, copies: int) -> np.ndarray:
        specials = vocabulary.specials
        line = np.array([specials.bos, *self.encode(sequence, vocabulary), specials.eos])
        return np.tile(line, copies or self.tokens_per_user // len(line))
