"""Rounds in memory that no user is charged for, because nothing of them is released."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.accounting import Event
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import Keys, Summed


@dataclass(frozen=True)
class UnpaidRounds:
    """Keys and noise of such rounds. They do not depend on sums: rounds that are compared share their noise.

    `number`: use the keys of this round for every round.
    """

    secrets: Secrets
    name: str  # apart from all other uses of the same secrets
    number: int | None = None

    def keys(self, round_number: int) -> Keys:
        return self.secrets.keys(self.number or round_number, self.name)

    def spend(self, round_number: int, event: Event, sums: Summed | None) -> bytes:
        del event, sums
        return self.secrets.noise_key(self.number or round_number, self.name, b"")
