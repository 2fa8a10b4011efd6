"""What a run may spend and has spent: ε by the number of charges, the hard stop, the ledger of the store."""

from __future__ import annotations

import math
from functools import lru_cache

from sottovoce.assembly import Assembly
from sottovoce.data.store import Store
from sottovoce.errors import BudgetExhausted
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import Event, NonPrivate
from sottovoce.runs.ledger import StoreLedger


class Meter:
    """ε after a number of charges: a look-up in a curve that was worked out once."""

    def __init__(self, assembly: Assembly):
        privacy = assembly.recipe.privacy
        self._event = assembly.algorithm.mechanism.event()
        self._delta, self._accountant = privacy.delta, assembly.accountant
        self.budget = privacy.epsilon if privacy.epsilon is not None and self.private else math.inf
        rounds = assembly.recipe.run.rounds
        self._curve = _curve(((self._event, rounds),), self._delta, self._accountant) if self.private else None

    @property
    def private(self) -> bool:
        """Without a promise nothing can be spent."""
        return not isinstance(self._event, NonPrivate)

    def __call__(self, charges: int) -> float:
        if self._curve is None:
            return math.inf if charges else 0.0
        if charges <= self._curve.known_rounds[-1]:
            shown = self._curve(charges)
            # The curve rounds up between the rounds it knows; where that passes the budget the exact figure is asked.
            if shown <= self.budget:
                return shown
        return accounting.epsilon([(self._event, charges)], self._delta, self._accountant)

    def allows(self, charges: int) -> bool:
        return self(charges) <= self.budget

    def rounds_allowed(self, asked: int) -> int:
        """How many of the rounds asked for fit the budget."""
        if self._curve is None or self.allows(asked):
            return asked
        low, high = self._curve.rounds_within(self.budget), asked
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.allows(middle) else (low, middle)
        return low


_curve = lru_cache(maxsize=16)(accounting.epsilon_curve)


def planned_rounds(assembly: Assembly) -> int:
    """The rounds that the ε budget allows, of those the recipe asks for."""
    meter = Meter(assembly)
    allowed = meter.rounds_allowed(assembly.recipe.run.rounds)
    if not allowed:
        raise BudgetExhausted(
            f"privacy.epsilon={meter.budget:g} does not allow one round at noise_multiplier="
            f"{assembly.recipe.privacy.noise_multiplier:g} (ε = {meter(1):.4g}); raise the noise or the budget"
        )
    return allowed


def store_ledger(store: Store) -> StoreLedger:
    assert store.path is not None  # a run trains on a store that is on disk
    return StoreLedger(store.path / "ledger.jsonl")


def charge_store(store: Store, run: str, what: str, event: Event, count: int) -> None:
    if not isinstance(event, NonPrivate):
        store_ledger(store).charge(run, what, event, count)
