"""The payment of a round: the charge is on disk before the noise exists.

A payment knows ledger, store ledger, secrets, lease, planned rounds and budget. It does not know the trainer, or what
the round computes: it hashes the sum.
"""

from __future__ import annotations

import secrets as os_entropy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from sottovoce.data.store import Store
from sottovoce.privacy.fixed_point import digest_of
from sottovoce.runs.budget import Budget, Charges
from sottovoce.runs.hash_chain import damaged
from sottovoce.runs.lease import Lease
from sottovoce.runs.ledger import PREPARATION, Entry, Ledger, StoreLedger, lineage
from sottovoce.runs.secrets import RoundKeys, Secrets, Sums
from sottovoce_evidence.accounting import Event, Spent, rounded_up, total_of
from sottovoce_evidence.errors import AnotherSum, BudgetExhausted, SottoError, count_of


class Totals(Protocol):
    """The exact sums over a cohort: Σ w_k Δ_k, Σ w_k and Σ bits."""

    @property
    def total(self) -> Any: ...
    @property
    def weight(self) -> Any: ...
    @property
    def bits(self) -> Any: ...


def _digest(total: Totals) -> bytes:
    return digest_of((total.total, total.weight, total.bits))


@dataclass(frozen=True)
class Origin:
    """What is known to change the sum of a run's rounds: recipe, store, code, versions, machine."""

    fingerprint: str
    reproducible: bool  # will the same round on the same machine give the same sum to the bit?
    seeded: bool = False  # do the secrets come from a seed?


@dataclass
class Payments:
    """The payments of one run.

    Guarantee: a round is charged to the ledger, on disk, before the key of its noise is given. The same attempt is
    charged once. An attempt is the same if it has the same name and the same sum. The name follows from the rounds
    before and from all that is known to change sums; the digest of the sum catches the rest.
    """

    ledger: Ledger
    store_ledger: StoreLedger
    lease: Lease
    secrets: Secrets  # of the round after the last checkpoint
    budget: Budget
    planned: int  # rounds that the store was charged for when the run began
    lineage: str  # the name of the last round that was released
    origin: Origin
    _refusal: BudgetExhausted | None = None
    _is_copy: bool = False  # whose rounds were charged to the store again
    _given_up: dict[int, set[int]] = field(default_factory=dict)  # attempts that were paid for with another sum

    def __post_init__(self) -> None:
        self._sums = Sums(self.lease.folder)
        fingerprint = self.origin.fingerprint
        if not self.origin.reproducible:
            # No later process can repeat these sums, so none may find these entries.
            fingerprint += " " + os_entropy.token_hex(16)
        self._fingerprint = fingerprint

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.ledger.header["run"]

    def settle(self, done: int) -> list[str]:
        """Before a run goes on after `done` rounds: charge what the store's ledger lacks, and acquire the lease.

        Returns:
            Notes for the owner: what was charged, and why.
        """
        if not self.budget.private:
            return []
        begin_payment(self.ledger, self.store_ledger, self.lease, self.budget.charges, self.origin.seeded)
        notes = self._charge_missing()
        own = self.budget
        self.budget = own.counting(self.extra())
        try:
            if done < self.planned and not self._acquire(own, done):
                self._is_copy = True
                notes.append(f"{self._copied}: rounds from {done + 1} on are charged to the store again")
        except BudgetExhausted as error:  # raised at the first round, where training ends
            self._refusal = error
        return notes

    def begin(self, round_number: int) -> RoundPayment:
        """The next attempt at a round.

        Raises:
            BudgetExhausted: the round would pass the budget, or may not be done again. No cohort was drawn.
        """
        if self._refusal:
            raise self._refusal
        return self._attempt(round_number, self.lineage, self.ledger.spent())

    def _attempt(self, round_number: int, parent: str, spent: Spent) -> RoundPayment:
        """The next attempt at a round, where `parent` was released before it and this much is spent."""
        given_up = self._given_up.get(round_number, set())
        attempt = self.ledger.attempt(round_number, parent, self._blinded, given_up)
        payment = RoundPayment(self, round_number, attempt, lineage(parent, self._blinded, attempt))
        if attempt and not self._repeatable:
            raise _never_again(round_number)
        if not payment.paid:
            self._refuse_beyond_budget(payment, spent)
        return payment

    def goes_on(self, done: int) -> bool:
        """May another round follow? What was charged beyond the plan leaves fewer rounds than were planned."""
        try:
            self.begin(done + 1)
        except BudgetExhausted:
            return False
        return True

    def epsilon(self, rounds: int) -> float:
        """ε spent up to a round."""
        return self.budget.spent(self.ledger.spent_up_to(rounds))

    def paid_again(self, done: int) -> int:
        """The last of the rounds after `done` that may be done again at no further cost: the same ones were paid for.

        It is `done` where there is none. A sum that differs after all, to the bit, is charged.
        """
        parent, number = self.lineage, done
        while not self._refusal and not self._is_copy:
            name = lineage(parent, self._blinded, self.ledger.attempt(number + 1, parent, self._blinded))
            kept = not self.budget.private or self._sums.tag_of(name)
            if not kept or not self.ledger.knows(number + 1, name):
                break
            parent, number = name, number + 1
        return number

    def extra(self) -> Spent:
        """What the store was charged for this run beyond its plan and ledger, by copies of its folder.

        These are releases of the same run, so its ε counts them, and charges that a crash left without a round. Runs of
        one seed share a name and look like copies: their charges are in the store's total alone.
        """
        if not self.budget.private or self.origin.seeded:
            return ()
        return tuple((total_of(self.store_ledger.spent(self.run)) - total_of(self._owed)).items())

    def charged_to_store(self) -> int:
        """The number of rounds that the store was charged for this run."""
        return sum(count for _, count in self.store_ledger.spent(self.run)) if self.budget.private else 0

    @property
    def _blinded(self) -> str:
        """The blinded fingerprint of this copy. A copy that pays again must draw other cohorts, so it has another name:
        two releases of one cohort cost more than two releases.
        """
        own = "" if self.origin.seeded else " " + self.lease.name
        return self.secrets.blind(self._fingerprint + own)

    @property
    def _owed(self) -> Spent:
        return [*self.budget.charges.events(self.planned), *self.ledger.repeated()]

    @property
    def _repeatable(self) -> bool:
        """May a round be done again for another charge? Where nothing is promised, nothing is lost."""
        return not self.budget.private or self.budget.charges.repeatable

    @property
    def _copied(self) -> str:
        return f"another copy of {self.lease.run} was resumed, or its store was restored"

    def _charge_missing(self) -> list[str]:
        """Charge what the store's ledger lacks. It is charged when a run begins, and for rounds done again.

        A ledger without any charge for the run was lost, with the charges of other runs, which are nowhere else.
        """
        charged = self.store_ledger.spent(self.run)
        if not charged:
            raise damaged(f"{self.store_ledger.path} has no charge for this run, though it was charged when it began")
        missing = total_of(self._owed) - total_of(charged)
        for event, count in missing.items():
            self.store_ledger.charge(self.run, "charges that were lost", event, count)
        if not (lost := missing.total()):
            return []
        again = count_of(lost, "charge of this run; it is", "charges of this run; they are")
        return [f"{self.store_ledger.path} had lost {again} written again"]

    def _acquire(self, own: Budget, done: int) -> bool:
        """A copy of a folder pays for its rounds again before it holds the lease."""
        charges = own.charges
        left = charges.events(self.planned, done)
        copied = own.counting([*self.extra(), *(() if self.origin.seeded else left)])

        def pay() -> None:
            if not charges.repeatable:
                raise BudgetExhausted(f"{self._copied}, and {_SHARED_NOISE}; this copy ends after round {done}")
            if not copied.allows([*self.ledger.spent(), (charges.event(done + 1, again=True), 1)]):
                raise BudgetExhausted(
                    f"{self._copied}: rounds from {done + 1} on would be charged again and pass the budget "
                    f"ε = {copied.limit:g}; training ends here with a usable model"
                )
            for event, count in left:
                self.store_ledger.charge(self.run, "rounds of a copy", event, count)
            self.budget = copied

        return self.lease.acquire(self.ledger.chain, pay)

    def _renew_lease(self, round_number: int) -> None:
        if self.budget.private and not self.lease.renew(self.ledger.chain):
            stops = f"{self._copied}: this one stops before round {round_number}"
            if not self._repeatable:
                raise SottoError(f"{stops} for good, since {_SHARED_NOISE}")
            raise SottoError(f"{stops}; `sotto resume` goes on with it, and its rounds are charged to the store again")

    def _refuse_beyond_budget(self, payment: RoundPayment, spent: Spent) -> None:
        """The hard stop: before a cohort is drawn."""
        number, limit = payment.round, self.budget.limit
        if number > self.planned:
            reason = f"was not planned: the budget ε = {limit:g} allowed {count_of(self.planned, 'round')}"
        elif not self.budget.allows([*spent, (self.budget.charges.event(number, again=bool(payment.attempt)), 1)]):
            reason = f"would pass the budget ε = {limit:g}"
        else:
            return
        now = rounded_up(self.budget.spent(spent), 4)
        raise BudgetExhausted(f"round {number} {reason}; {now} is spent, and training ends here with a usable model")


_SHARED_NOISE = "two releases of a round with correlated noise share earlier noise, which no charge covers"


def _never_again(round_number: int) -> BudgetExhausted:
    return BudgetExhausted(
        f"round {round_number} was paid for and has now another sum, or another machine or version; {_SHARED_NOISE}; "
        f"training ends here with a usable model"
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
        """The keys that are needed before the sum exists."""
        return self.payments.secrets.keys(self.round, self._release)

    @property
    def paid(self) -> bool:
        """Was this attempt charged before a crash?"""
        return self.payments.ledger.knows(self.round, self.name)

    def charge(self, event: Event, total: Totals | None) -> bytes:
        """Write the charge to disk; then give the key of the noise for this sum alone.

        Args:
            event: what the round charges if it is done for the first time.
            total: the sums of the cohort; None where there are none.

        Raises:
            AnotherSum: this attempt was paid for with another sum. `Payments.begin` gives the next attempt.
        """
        payments = self.payments
        payments._renew_lease(self.round)
        private = payments.budget.private  # without a guarantee, a digest protects nothing
        digest = _digest(total) if total is not None and private else b""
        tag, known = payments.secrets.tag(self.name, digest), payments._sums.tag_of(self.name)
        if private and (self.paid or known) and known != tag:
            if not payments._repeatable:
                raise _never_again(self.round)
            payments._given_up.setdefault(self.round, set()).add(self.attempt)
            raise AnotherSum
        if not self.paid:
            # Before the ledger: a paid attempt without a tag counts as one with another sum.
            if private:
                payments._sums.keep(payments.secrets.round, self.name, tag)
            if self.attempt:
                event = payments.budget.charges.event(self.round, again=True)
                # The store first: a crash in between charges its people once too often, never too little.
                payments.store_ledger.charge(payments.run, "a round done again", event, 1)
            payments.ledger.spend(Entry(self.round, self.attempt, event, self.name))
            # Before the noise: a copy that was made before this line was written now has an old token.
            payments._renew_lease(self.round)
        payments.lineage = self.name
        return payments.secrets.noise_key(self.round, self._release, digest)

    @property
    def _release(self) -> str:
        """The name from which keys are derived; in a seeded run it is the same on every machine."""
        return f"attempt {self.attempt}" if self.payments.origin.seeded else self.name


@dataclass(frozen=True)
class Unpaid:
    """Payments that charge nothing: for rounds whose results stay in the process, as in audits and benchmarks.

    Two sums of one round have the same noise, unless `hash_sums` is set as in a run.
    """

    secrets: Secrets
    name: str  # from which keys are derived
    hash_sums: bool = False
    round: int = 0

    def begin(self, round_number: int) -> Unpaid:
        return replace(self, round=round_number)

    @property
    def keys(self) -> RoundKeys:
        return self.secrets.keys(self.round, self.name)

    def charge(self, event: Event, total: Totals | None) -> bytes:
        digest = _digest(total) if self.hash_sums and total is not None else b""
        return self.secrets.noise_key(self.round, self.name, digest)


def store_folder(store: Store) -> Path:
    assert store.path is not None  # a run trains on a store that is on disk
    return store.path


def store_ledger(store: Store) -> StoreLedger:
    return StoreLedger(store_folder(store) / "ledger.jsonl")


def begin_payment(ledger: Ledger, people: StoreLedger, lease: Lease, charges: Charges, seeded: bool) -> None:
    """Charge a store for all planned rounds of a run before the first, once. Stopping early refunds nothing.

    The folder of the run has its name before, so what is paid for is not lost. A run that a crash left unpaid is
    charged when it goes on, less what it was charged already. Runs of one seed share a name, and each is charged.
    """
    run, planned = ledger.header["run"], int(ledger.header["planned"])

    def pay() -> None:
        before = () if seeded else people.spent(run)
        for event, count in (total_of(charges.events(planned)) - total_of(before)).items():
            people.charge(run, "training", event, count)

    lease.begin(ledger.chain, pay)


def vocabulary_charges(store: Store) -> Spent:
    """What was spent on the words of a store. Every model trained on it is released with them."""
    ledger = store_ledger(store)
    spent = ledger.spent(PREPARATION)
    if store.vocabulary_source["source"] == "private" and not spent:
        raise damaged(f"{ledger.path} has no charge for the vocabulary, which was found in the users' text")
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
