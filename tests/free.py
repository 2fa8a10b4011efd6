"""Payments that charge nothing: keys follow from a seed and the round, whatever its sum is."""

from __future__ import annotations

from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets


def free(seed: int = 3, round_number: int = 1) -> Unpaid:
    """The payment of one round."""
    return all_free(seed).begin(round_number)


def all_free(seed: int = 3) -> Unpaid:
    """Payments of all rounds."""
    return Unpaid(Secrets.seeded(seed))
