"""What a run may spend and has spent: ε by its charges, the hard stop, the ledger of the store."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from pathlib import Path

from sottovoce import accounting
from sottovoce.accounting import Covered, Event, NonPrivate, Spent
from sottovoce.build.assembly import Assembly
from sottovoce.data.store import Store
from sottovoce.errors import BudgetExhausted, DamagedRun
from sottovoce.runs.ledger import PREPARATION, StoreLedger


class Meter:
    """ε of what a run was charged: a look-up in a curve over its planned rounds that was worked out once.

    `beside` was charged for the run, too, and not by its own ledger: rounds of copies of its folder that went on.
    """

    def __init__(self, assembly: Assembly, beside: Spent = ()):
        privacy, self._asked = assembly.recipe.privacy, assembly.recipe.run.rounds
        self._mechanism = assembly.algorithm.mechanism
        self._plan = tuple(self._mechanism.events(self._asked))
        self._private = assembly.is_private
        self._delta, self._accountant = privacy.delta, assembly.accountant
        self._before = (*assembly.before, *beside)
        self.budget = privacy.epsilon if privacy.epsilon is not None and self.private else math.inf

    @property
    def private(self) -> bool:
        """Without a promise nothing can be spent."""
        return self._private

    def __call__(self, charged: Spent) -> float:
        """ε of these charges (planned rounds from the first on, and any made again) and of what was before."""
        if not self.private:
            return math.inf if any(count for _, count in charged) else 0.0
        rounds, again = self._split([(event, count) for event, count in charged if not isinstance(event, Covered)])
        if rounds <= sum(count for _, count in self._plan):
            shown = _curve(self._plan, self._delta, self._accountant, (*self._before, *again))(rounds)
            # The curve rounds up between the rounds it knows; where that passes the budget the exact figure is asked.
            if shown <= self.budget:
                return shown
        return accounting.epsilon([*self._before, *charged], self._delta, self._accountant)

    def _split(self, charged: Spent) -> tuple[int, tuple[tuple[Event, int], ...]]:
        """How many of the planned rounds, in order, are among the charges, and what was charged besides."""
        if len(self._plan) == 1:  # all alike: a round made again is as good as a later one
            return sum(count for _, count in charged), ()
        left = total_of(charged)
        rounds = 0
        for event, count in self._plan:
            taken = min(count, left[event])
            left[event] -= taken
            rounds += taken
            if taken < count:
                break
        return rounds, tuple((event, count) for event, count in left.items() if count)

    def allows(self, charged: Spent) -> bool:
        return self(charged) <= self.budget

    def rounds_allowed(self, planned: int | None = None, done: int = 0, again: Spent = ()) -> int:
        """How many of the planned rounds fit the budget, if some were done, and some of them again."""
        planned = self._asked if planned is None else planned

        def fits(rounds: int) -> bool:
            return self.allows([*self._mechanism.events(rounds), *again])

        if not self.private or done >= planned or fits(planned):
            return planned
        low, high = done, planned
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


@lru_cache(maxsize=16)
def _curve(plan: tuple, delta: float, accountant: str, again: tuple) -> accounting.Curve:
    return accounting.epsilon_curve(plan, delta, accountant, before=again)


def planned_rounds(assembly: Assembly) -> int:
    """The rounds that the ε budget allows, of those the recipe asks for."""
    meter = Meter(assembly)
    allowed = meter.rounds_allowed()
    if not allowed:
        first = accounting.rounded_up(meter([(assembly.algorithm.mechanism.event(1), 1)]), 4)
        raise BudgetExhausted(
            f"privacy.epsilon={meter.budget:g} does not allow one round at noise_multiplier="
            f"{assembly.recipe.privacy.noise_multiplier:g} (ε = {first}); raise the noise or the budget"
        )
    return allowed


def store_folder(store: Store) -> Path:
    assert store.path is not None  # a run trains on a store that is on disk
    return store.path


def store_ledger(store: Store) -> StoreLedger:
    return StoreLedger(store_folder(store) / "ledger.jsonl")


def vocabulary_charges(store: Store) -> Spent:
    """What was spent on the words of a store, which every model trained on it is released with."""
    spent = store_ledger(store).spent(PREPARATION)
    if store.vocabulary_source["source"] == "private" and not spent:
        raise DamagedRun(
            f"the vocabulary of {store.path} was found in its users' text, but its ledger has no charge for it: what "
            f"was spent cannot be told; put the ledger back, or prepare another store"
        )
    return spent


def charge_store(store: Store, run: str, what: str, event: Event, count: int) -> None:
    if not isinstance(event, NonPrivate):
        store_ledger(store).charge(run, what, event, count)


def total_of(charges: Spent) -> Counter[Event]:
    """How often each event was charged."""
    total: Counter[Event] = Counter()
    for event, count in charges:
        total[event] += count
    return total
