"""The keys of a run's rounds, and paying for them."""

from __future__ import annotations

import secrets as os_entropy
from typing import TYPE_CHECKING

from sottovoce.errors import BudgetExhausted
from sottovoce.jobs.budget import charge_store
from sottovoce.jobs.holding import hold_on
from sottovoce.privacy.accounting import Event, rounded_up
from sottovoce.runs.ledger import Entry, lineage
from sottovoce.runs.secrets import RoundKeys

if TYPE_CHECKING:
    from sottovoce.jobs.training import Training


class RunSpender:
    """Hands out each round's keys and pays for it: an attempt that was paid for already is not paid for twice."""

    def __init__(self, training: Training):
        self._training = training
        self.lineage = training.parent
        self._attempt = 0
        fingerprint = training.assembly.fingerprint
        if not training.assembly.reproducible:
            # Sums that no later process can repeat: their entries must never be taken for its own.
            fingerprint += " " + os_entropy.token_hex(16)
        self._fingerprint = training.secrets.blind(fingerprint)

    def keys(self, round_number: int) -> RoundKeys:
        training = self._training
        self._attempt = training.ledger.attempt(round_number, training.parent, self._fingerprint)
        self.lineage = lineage(training.parent, self._fingerprint, self._attempt)
        self._refuse_beyond_budget(round_number)
        # Keyed by all that the sum depends on: a copy of the folder on another machine draws other noise by itself.
        # A seeded run promises nothing to those who know the seed, and is to come out alike anywhere.
        seeded = training.recipe.privacy.secrets == "seeded"
        return training.secrets.keys(round_number, f"attempt {self._attempt}" if seeded else self.lineage)

    def _refuse_beyond_budget(self, round_number: int) -> None:
        """The hard stop: before a cohort is drawn, not after its noise is out."""
        meter, ledger = self._training.meter, self._training.ledger
        if ledger.knows(round_number, self.lineage):
            return  # paid for before a crash
        spent = ledger.spent()
        if round_number > self._training.planned:
            raise BudgetExhausted(
                f"round {round_number} was not planned: the budget ε = {meter.budget:g} allowed "
                f"{self._training.planned} rounds; {rounded_up(meter(spent), 4)} is spent, and training ends here with "
                f"a usable model"
            )
        mechanism = self._training.assembly.algorithm.mechanism
        event = mechanism.event_again(round_number) if self._attempt else mechanism.event(round_number)
        if not meter.allows([*spent, (event, 1)]):
            raise BudgetExhausted(
                f"round {round_number} would pass the budget ε = {meter.budget:g}; {rounded_up(meter(spent), 4)} is "
                f"spent, and training ends here with a usable model"
            )

    def spend(self, round_number: int, event: Event) -> None:
        training = self._training
        hold_on(training)
        if training.ledger.knows(round_number, self.lineage):
            return
        if self._attempt:
            event = training.assembly.algorithm.mechanism.event_again(round_number)
            # The store first: a crash in between charges its people once too often, not once too little.
            charge_store(training.store, training.ledger.header["run"], "a round done again", event, 1)
        training.ledger.spend(Entry(round_number, self._attempt, event, self.lineage))
