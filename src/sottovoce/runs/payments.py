"""Who pays for a round, and when: the charge is on disk before the noise exists.

A payment knows ledger, store ledger, secrets, lease, planned rounds and budget. It knows neither the trainer nor what
the round computes: of a sum it sees a digest.
"""

from __future__ import annotations

import secrets as os_entropy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sottovoce.accounting import Event, NonPrivate, Spent, rounded_up
from sottovoce.data.store import Store
from sottovoce.errors import AnotherSum, BudgetExhausted, DamagedRun, SottoError
from sottovoce.privacy.fixed_point import digest_of
from sottovoce.runs.budget import Budget, Charges, total_of
from sottovoce.runs.lease import Lease
from sottovoce.runs.ledger import PREPARATION, Entry, Ledger, StoreLedger, lineage
from sottovoce.runs.secrets import RoundKeys, Secrets
from sottovoce.runs.sums import Sums


class Totals(Protocol):
    """The exact sums over a cohort: Σ w_k Δ_k, Σ w_k and Σ bits."""

    @property
    def total(self) -> Any: ...
    @property
    def weight(self) -> Any: ...
    @property
    def bits(self) -> Any: ...


@dataclass(frozen=True)
class Origin:
    """What is known to change the sum of a run's rounds: recipe, store, code, versions, machine."""

    fingerprint: str
    reproducible: bool  # will the same round on the same machine give the same sum to the bit?
    seeded: bool = False  # are the secrets those of a seed?


@dataclass
class Payments:
    """The payments of one run.

    Guarantee: a round is charged to the ledger, on disk, before the key of its noise is given. The same attempt is
    charged once. An attempt is the same if it has the same name and the same sum. The name follows from all that is
    known to change sums and from the rounds before; the digest of the sum catches what is not known.
    """

    ledger: Ledger
    store_ledger: StoreLedger
    lease: Lease
    secrets: Secrets  # the ratchet, at the round after the last checkpoint
    budget: Budget
    planned: int  # rounds that the store was charged for when the run began
    lineage: str  # the name of the last round that was released
    origin: Origin
    _refusal: BudgetExhausted | None = None
    _given_up: dict[int, set[int]] = field(default_factory=dict)  # attempts that were paid for with another sum

    def __post_init__(self) -> None:
        self._sums = Sums(self.lease.folder)
        fingerprint = self.origin.fingerprint
        if not self.origin.reproducible:
            # No later process can repeat these sums: it must never take their entries for its own.
            fingerprint += " " + os_entropy.token_hex(16)
        self._fingerprint = fingerprint

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.ledger.header["run"]

    def settle(self, done: int) -> list[str]:
        """Before a run goes on after `done` rounds: charge what the store lacks, and acquire the lease.

        Returns:
            Notes for the owner: what was charged, and why.
        """
        if not self.budget.private:
            return []
        notes = self._charge_missing()
        own = self.budget
        self.budget = own.counting(self.extra())
        try:
            if done < self.planned and not self._acquire(own, done):
                notes.append(
                    f"another copy of {self.lease.run} was taken up since, or its store was restored: rounds from "
                    f"{done + 1} on are charged to the store again"
                )
        except BudgetExhausted as error:  # raised at the first round, where training ends
            self._refusal = error
        return notes

    def begin(self, round_number: int) -> RoundPayment:
        """The next attempt at a round.

        Raises:
            BudgetExhausted: the round would pass the budget. No cohort was drawn.
        """
        if self._refusal:
            raise self._refusal
        given_up = self._given_up.get(round_number, set())
        attempt = self.ledger.attempt(round_number, self.lineage, self._blinded, given_up)
        payment = RoundPayment(self, round_number, attempt, lineage(self.lineage, self._blinded, attempt))
        if not payment.paid:
            self._refuse_beyond_budget(payment)
        return payment

    def epsilon(self, rounds: int) -> float:
        """ε spent up to a round."""
        return self.budget.spent(self.ledger.spent_up_to(rounds))

    def extra(self) -> Spent:
        """What the store was charged for the run beyond its own plan and ledger: by copies of its folder that went on.

        They are releases of the same run, so its ε counts them; and a charge that a crash left without a round. Runs of
        one seed share a name, and cannot be told from copies: theirs are in the store's total alone.
        """
        if not self.budget.private or self.origin.seeded:
            return ()
        return tuple((total_of(self.store_ledger.spent(self.run)) - total_of(self._owed)).items())

    def charged_to_store(self) -> int:
        """How many rounds of this run the store was charged for."""
        return sum(count for _, count in self.store_ledger.spent(self.run)) if self.budget.private else 0

    @property
    def _blinded(self) -> str:
        """The fingerprint of this copy, blinded. A copy that pays again draws its cohorts again, under its own name:
        two releases of one cohort cost more than two.
        """
        own = "" if self.origin.seeded else " " + self.lease.name
        return self.secrets.blind(self._fingerprint + own)

    @property
    def _owed(self) -> Spent:
        return [*self.budget.charges.events(self.planned), *self.ledger.repeated()]

    def _charge_missing(self) -> list[str]:
        """Charge what the store's ledger lacks: it is charged when a run begins, and for rounds done again.

        A ledger that does not know the run at all was lost with what others had spent, which nothing else tells.
        """
        charged = self.store_ledger.spent(self.run)
        if not charged:
            raise DamagedRun(
                f"{self.store_ledger.path} has no charge for this run, though it was charged when the run began: the "
                f"ledger was lost, or is from before; what was spent on these people cannot be told; put it back"
            )
        missing = total_of(self._owed) - total_of(charged)
        for event, count in missing.items():
            charge_store(self.store_ledger, self.run, "charges that were lost", event, count)
        path = self.store_ledger.path
        return [f"{path} had lost {missing.total()} charges of this run: they are made again"] if missing else []

    def _acquire(self, own: Budget, done: int) -> bool:
        """A copy of a folder pays for its rounds again, before it is the one that holds the lease."""
        charges = own.charges
        left = charges.events(self.planned, done)
        copied = own.counting([*self.extra(), *(() if self.origin.seeded else left)])

        def pay() -> None:
            if not copied.allows([*self.ledger.spent(), (charges.event(done + 1, again=True), 1)]):
                raise BudgetExhausted(
                    f"another copy of {self.lease.run} was taken up since, or its store was restored: rounds from "
                    f"{done + 1} on would be charged again and pass the budget ε = {copied.limit:g}; training ends "
                    f"here with a usable model"
                )
            for event, count in left:
                charge_store(self.store_ledger, self.run, "rounds of a copy", event, count)
            self.budget = copied

        return self.lease.acquire(self.ledger.state, pay)

    def _renew_lease(self, round_number: int) -> None:
        if self.budget.private and not self.lease.renew(self.ledger.state):
            raise SottoError(
                f"another copy of {self.lease.run} was taken up while this one was training, or its store restored: it "
                f"stops before round {round_number}; `sotto resume` goes on with it, and charges the rounds left to "
                f"the store again"
            )

    def _refuse_beyond_budget(self, payment: RoundPayment) -> None:
        """The hard stop: before a cohort is drawn, not after its noise is out."""
        spent, number = self.ledger.spent(), payment.round
        if number > self.planned:
            raise BudgetExhausted(
                f"round {number} was not planned: the budget ε = {self.budget.limit:g} allowed {self.planned} rounds; "
                f"{rounded_up(self.budget.spent(spent), 4)} is spent, and training ends here with a usable model"
            )
        charges = self.budget.charges
        event = charges.event(number, again=bool(payment.attempt))
        if not self.budget.allows([*spent, (event, 1)]):
            raise BudgetExhausted(
                f"round {number} would pass the budget ε = {self.budget.limit:g}; "
                f"{rounded_up(self.budget.spent(spent), 4)} is spent, and training ends here with a usable model"
            )


@dataclass(frozen=True)
class RoundPayment:
    """One attempt at a round: its keys, its name, its charge."""

    payments: Payments
    round: int
    attempt: int
    name: str  # of the release; the next round's name follows from it

    @property
    def keys(self) -> RoundKeys:
        """The secrets that are needed before the sum is there."""
        return self.payments.secrets.keys(self.round, self._release)

    @property
    def paid(self) -> bool:
        """Was this attempt charged before a crash?"""
        return self.payments.ledger.knows(self.round, self.name)

    def charge(self, event: Event, total: Totals | None) -> bytes:
        """Write the charge to disk; then give the key of the noise for this sum alone.

        Args:
            event: what the round charges if it is done for the first time.
            total: the sums of the cohort; None where nothing is added up.

        Raises:
            AnotherSum: this attempt was paid for with another sum. `Payments.begin` gives the next attempt.
        """
        payments = self.payments
        payments._renew_lease(self.round)
        private = payments.budget.private  # without a promise there is nothing that a digest could keep
        digest = digest_of((total.total, total.weight, total.bits)) if total is not None and private else b""
        tag, known = payments.secrets.tag(self.name, digest), payments._sums.tag_of(self.name)
        if private and (self.paid or known) and known != tag:
            payments._given_up.setdefault(self.round, set()).add(self.attempt)
            raise AnotherSum
        if not self.paid:
            # Before the ledger: an attempt that is paid for has its sum, or counts as one of another.
            if private:
                payments._sums.keep(payments.secrets.round, self.name, tag)
            if self.attempt:
                event = payments.budget.charges.event(self.round, again=True)
                # The store first: a crash in between charges its people once too often, not once too little.
                charge_store(payments.store_ledger, payments.run, "a round done again", event, 1)
            payments.ledger.spend(Entry(self.round, self.attempt, event, self.name))
            # Before the noise: a copy that was taken before this line was written is left with an old token.
            payments._renew_lease(self.round)
        payments.lineage = self.name
        return payments.secrets.noise_key(self.round, self._release, digest)

    @property
    def _release(self) -> str:
        """What the keys of an attempt are named by; those of a seeded run come out alike anywhere."""
        return f"attempt {self.attempt}" if self.payments.origin.seeded else self.name


@dataclass(frozen=True)
class Unpaid:
    """Payments that charge nothing: for rounds whose results stay in the process, as in audits and benchmarks.

    The noise of two sums of one round is the same, unless `hash_sums` is set as in a run.
    """

    secrets: Secrets
    release: str  # names the keys
    hash_sums: bool = False

    def begin(self, round_number: int) -> UnpaidRound:
        return UnpaidRound(self, round_number)


@dataclass(frozen=True)
class UnpaidRound:
    unpaid: Unpaid
    round: int

    @property
    def name(self) -> str:
        return self.unpaid.release

    @property
    def keys(self) -> RoundKeys:
        return self.unpaid.secrets.keys(self.round, self.unpaid.release)

    def charge(self, event: Event, total: Totals | None) -> bytes:
        digest = b""
        if self.unpaid.hash_sums and total is not None:
            digest = digest_of((total.total, total.weight, total.bits))
        return self.unpaid.secrets.noise_key(self.round, self.unpaid.release, digest)


def store_folder(store: Store) -> Path:
    assert store.path is not None  # a run trains on a store that is on disk
    return store.path


def store_ledger(store: Store) -> StoreLedger:
    return StoreLedger(store_folder(store) / "ledger.jsonl")


def charge_store(ledger: StoreLedger, run: str, what: str, event: Event, count: int) -> None:
    if not isinstance(event, NonPrivate):
        ledger.charge(run, what, event, count)


def charge_plan(ledger: StoreLedger, run: str, charges: Charges, planned: int) -> None:
    """Charge a store for all planned rounds of a run, before the first: stopping early earns nothing back."""
    for event, count in charges.events(planned):
        charge_store(ledger, run, "training", event, count)


def vocabulary_charges(store: Store) -> Spent:
    """What was spent on the words of a store, which every model trained on it is released with."""
    spent = store_ledger(store).spent(PREPARATION)
    if store.vocabulary_source["source"] == "private" and not spent:
        raise DamagedRun(
            f"the vocabulary of {store.path} was found in its users' text, but its ledger has no charge for it: what "
            f"was spent cannot be told; put the ledger back, or prepare another store"
        )
    return spent


def planned_rounds(budget: Budget, noise_multiplier: float | None) -> int:
    """The rounds that the budget allows, of those the recipe asks for."""
    allowed = budget.rounds_allowed()
    if not allowed:
        first = rounded_up(budget.spent([(budget.charges.event(1), 1)]), 4)
        raise BudgetExhausted(
            f"privacy.epsilon={budget.limit:g} does not allow one round at noise_multiplier={noise_multiplier:g} "
            f"(ε = {first}); raise the noise or the budget"
        )
    return allowed
