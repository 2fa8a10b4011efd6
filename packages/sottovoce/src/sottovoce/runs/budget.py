"""The ε of what a run was charged, and the limit it must not pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Covered, Event, Spent, total_of


class Charges(Protocol):
    """What rounds cost. A `Mechanism` is one, and documents all of this."""

    @property
    def repeatable(self) -> bool: ...
    def event(self, round_number: int, again: bool = False) -> Event: ...
    def events(self, rounds: int, done: int = 0) -> Spent: ...


@dataclass(frozen=True)
class Budget:
    """The privacy budget of a run. ε is looked up in a curve over the planned rounds, which is computed once.

    `before` counts too, and is not in the run's own ledger: the charge for a vocabulary, and rounds of copies of the
    run's folder.
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

    def counting(self, more: Spent) -> Budget:
        """The same budget, where this was charged before as well."""
        return replace(self, before=(*self.before, *more))

    def spent(self, charged: Spent) -> float:
        """ε of these charges (planned rounds from the first on, and rounds done again) and of `before`."""
        if not self.private:
            return math.inf if any(count for _, count in charged) else 0.0
        plan = tuple(self.charges.events(self.rounds))
        rounds, again = _split(plan, [(event, count) for event, count in charged if not isinstance(event, Covered)])
        if rounds <= sum(count for _, count in plan):
            shown = _curve(plan, self.delta, self.accountant, (*self.before, *again))(rounds)
            # The curve rounds up between the rounds it knows. Above the limit, the exact figure decides.
            if shown <= self.limit:
                return shown
        return accounting.epsilon([*self.before, *charged], self.delta, self.accountant)

    def allows(self, charged: Spent) -> bool:
        return self.spent(charged) <= self.limit

    def rounds_allowed(self, planned: int | None = None, done: int = 0, again: Spent = ()) -> int:
        """How many of the planned rounds fit the budget, if `done` were done, and some of them `again`."""
        planned = self.rounds if planned is None else planned

        def fits(rounds: int) -> bool:
            return self.allows([*self.charges.events(rounds), *again])

        if not self.private or done >= planned or fits(planned):
            return planned
        low, high = done, planned
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def _split(plan: Spent, charged: Spent) -> tuple[int, tuple[tuple[Event, int], ...]]:
    """How many of the planned rounds, in order, are among the charges, and what else was charged."""
    if len(plan) == 1:  # all rounds cost the same: a round done again counts as a later one
        return sum(count for _, count in charged), ()
    left = total_of(charged)
    rounds = 0
    for event, count in plan:
        taken = min(count, left[event])
        left[event] -= taken
        rounds += taken
        if taken < count:
            break
    return rounds, tuple((event, count) for event, count in left.items() if count)


_curve = lru_cache(maxsize=16)(accounting.epsilon_curve)
