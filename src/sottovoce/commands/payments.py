"""The keys of a run's rounds, and paying for them."""

from __future__ import annotations

import secrets as os_entropy
from typing import TYPE_CHECKING

from sottovoce.accounting import Event, rounded_up
from sottovoce.commands.budget import charge_store
from sottovoce.commands.lease import hold_on
from sottovoce.errors import BudgetExhausted
from sottovoce.privacy.fixed_point import digest_of
from sottovoce.runs.lease import name_of
from sottovoce.runs.ledger import Entry, lineage
from sottovoce.runs.secrets import RoundKeys
from sottovoce.runs.sums import Sums
from sottovoce.training.round import AnotherSum, Summed

if TYPE_CHECKING:
    from sottovoce.commands.train import Training


class RunSpender:
    """Hands out each round's keys and pays for it: an attempt that was paid for already is not paid for twice.

    The same attempt is one of the same name and the same sum. The name follows from all that is known to change sums
    (recipe, store, code, versions, machine, the rounds before); the sum itself is what counts.
    """

    def __init__(self, training: Training):
        self._training = training
        self.lineage = training.parent
        self._attempt = 0
        self._given_up: dict[int, set[int]] = {}  # of a round, attempts that were paid for with another sum
        self._sums = Sums(training.run_folder.secrets)
        self._seeded = training.recipe.privacy.secrets == "seeded"
        fingerprint = training.assembly.fingerprint
        if not training.assembly.reproducible:
            # Sums that no later process can repeat: their entries must never be taken for its own.
            fingerprint += " " + os_entropy.token_hex(16)
        if not self._seeded:
            # A copy that pays again draws its cohorts again: two releases of one cohort cost more than two.
            fingerprint += " " + name_of(training.run_folder.secrets)
        self._fingerprint = training.secrets.blind(fingerprint)

    @property
    def _release(self) -> str:
        """What the keys of an attempt are named by; those of a seeded run come out alike anywhere."""
        return f"attempt {self._attempt}" if self._seeded else self.lineage

    def keys(self, round_number: int) -> RoundKeys:
        training = self._training
        given_up = self._given_up.get(round_number, set())
        self._attempt = training.ledger.attempt(round_number, training.parent, self._fingerprint, given_up)
        self.lineage = lineage(training.parent, self._fingerprint, self._attempt)
        self._refuse_beyond_budget(round_number)
        return training.secrets.keys(round_number, self._release)

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
        event = mechanism.event(round_number, again=bool(self._attempt))
        if not meter.allows([*spent, (event, 1)]):
            raise BudgetExhausted(
                f"round {round_number} would pass the budget ε = {meter.budget:g}; {rounded_up(meter(spent), 4)} is "
                f"spent, and training ends here with a usable model"
            )

    def spend(self, round_number: int, event: Event, sums: Summed | None) -> bytes:
        training = self._training
        hold_on(training)
        private = training.meter.private  # without a promise there is nothing that a hash could keep
        digest = digest_of((sums.total, sums.weight, sums.bits)) if sums is not None and private else b""
        tag, known = training.secrets.tag(self.lineage, digest), self._sums.tag_of(self.lineage)
        paid = training.ledger.knows(round_number, self.lineage)
        if private and (paid or known) and known != tag:
            self._given_up.setdefault(round_number, set()).add(self._attempt)
            raise AnotherSum
        if not paid:
            # Before the ledger: an attempt that is paid for has its sum, or counts as one of another.
            if private:
                self._sums.keep(training.secrets.round, self.lineage, tag)
            if self._attempt:
                event = training.assembly.algorithm.mechanism.event(round_number, again=True)
                # The store first: a crash in between charges its people once too often, not once too little.
                charge_store(training.store, training.ledger.header["run"], "a round done again", event, 1)
            training.ledger.spend(Entry(round_number, self._attempt, event, self.lineage))
            # Before the noise: a copy that was taken before this line was written is left with an old token.
            hold_on(training)
        return training.secrets.noise_key(round_number, self._release, digest)
