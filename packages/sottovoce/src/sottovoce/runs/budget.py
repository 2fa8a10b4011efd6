"""The ε of the rounds of a run, and the limit it must not pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Event, Spent


class Charges(Protocol):
    """What rounds cost. A `Mechanism` is one, and documents all of this."""

    def event(self, round_number: int) -> Event: ...
    def events(self, rounds: int) -> Spent: ...


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a run. ε is looked up in a curve over the planned rounds, which is computed once.

    `before` counts too, and is not in the run's own ledger: the charge for a vocabulary, and those of the runs that it
    starts from.
    """

    charges: Charges
    rounds: int  # that the recipe asks for
    delta: float
    accountant: str
    private: bool  # without a promise nothing can be spent
    epsilon: float | None = None
    before: tuple[tuple[Event, int], ...] = ()

    @property
    def limit(self) -> float:
        return self.epsilon if self.epsilon is not None and self.private else math.inf

    def spent(self, rounds: int) -> float:
        """ε of the first planned rounds and of `before`."""
        if not self.private:
            return math.inf if rounds else 0.0
        curve = _curve(tuple(self.charges.events(self.rounds)), self.delta, self.accountant, self.before)
        shown = curve(sum(count for _, count in self.charges.events(rounds)))  # some rounds are covered by others
        # The curve rounds up between the rounds it knows. Above the limit, the exact figure decides.
        if shown <= self.limit:
            return shown
        return accounting.epsilon([*self.before, *self.charges.events(rounds)], self.delta, self.accountant)

    def rounds_allowed(self) -> int:
        """How many of the planned rounds fit the budget."""
        if not self.private or self.spent(self.rounds) <= self.limit:
            return self.rounds
        low, high = 0, self.rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.spent(middle) <= self.limit else (low, middle)
        return low


_curve = lru_cache(maxsize=16)(accounting.epsilon_curve)
