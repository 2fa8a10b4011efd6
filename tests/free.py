"""A payment that charges nothing."""

from __future__ import annotations

from sottovoce.runs.secrets import RoundKeys, Secrets


class Free:
    """The key of a round's noise follows from secrets and the round, whatever its sum is."""

    def __init__(self, keys: RoundKeys | None = None, secrets: Secrets | None = None, round_number: int = 1):
        self.secrets, self.round = secrets or Secrets.seeded(3), round_number
        self.keys = keys or self.secrets.keys(round_number)

    def ask(self) -> bool:
        return True

    def charge(self, event) -> bytes:
        return self.secrets.noise_key(self.round)

    def once_committed(self, show) -> None:
        show()


class AllFree:
    """Payments that give such a payment for every round."""

    def __init__(self, keys_of, secrets: Secrets | None = None):
        self.keys_of, self.secrets = keys_of, secrets

    def begin(self, round_number: int) -> Free:
        return Free(self.keys_of(round_number), self.secrets, round_number)
