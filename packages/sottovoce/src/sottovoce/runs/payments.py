"""The payments of a run: a round is charged when its checkpoint is committed, and nothing of it is shown before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sottovoce.data.store import Store
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.budget import Budget
from sottovoce.runs.checkpoint import Checkpoint
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.hash_chain import damaged
from sottovoce.runs.ledger import NONE, PREPARATION, Commit, FellBehind, Ledger, StoreLedger
from sottovoce.runs.secrets import RoundKeys, Secrets
from sottovoce_evidence.accounting import Event, Spent, rounded_up, total_of
from sottovoce_evidence.errors import BudgetExhausted, count_of


@dataclass
class Payments:
    """The payments of one run.

    Guarantee: the lines of a round are on disk, in the run's ledger, before its checkpoint is committed; and a
    checkpoint is committed, in the store's ledger, before anything of its rounds is shown. Of two processes, or two
    copies of a run, one commits.
    """

    run: RunFolder
    ledger: Ledger
    store_ledger: StoreLedger
    secrets: Secrets  # of the rounds up to the next checkpoint
    budget: Budget
    planned: int  # rounds that the store was charged for when the run began
    committed: Commit = NONE
    _queued: list[Event] = field(default_factory=list)  # of the rounds after the last checkpoint
    _to_show: list[Callable[[], None]] = field(default_factory=list)  # of the same rounds

    def begin(self, round_number: int) -> RoundPayment:
        """The payment of the next round.

        Raises:
            BudgetExhausted: the round was not planned. No cohort was drawn.
        """
        if round_number > self.planned:
            allowed = f"the budget ε = {self.budget.limit:g} allowed {count_of(self.planned, 'round')}"
            raise BudgetExhausted(f"round {round_number} was not planned: {allowed}")
        return RoundPayment(self, round_number)

    def epsilon(self, rounds: int) -> float:
        """ε spent up to a round."""
        return self.budget.spent(rounds)

    def commit(
        self, checkpoint: Checkpoint, noise: dict[str, np.ndarray] | None = None, *, declared: bool = True
    ) -> None:
        """Commit a checkpoint, with the lines of its rounds.

        Args:
            checkpoint: what it holds.
            noise: the state of correlated noise, a secret.
            declared: does it fall on a round that the recipe says? Where the owner stops elsewhere, the rounds up to
                the next declared one keep their keys: else a stop would draw a cohort anew that crashed.

        Raises:
            FellBehind: another process, or another copy of the run, went on. Nothing of these rounds was shown, and
                nothing of them is kept.
        """
        run, ahead = self.run, self.secrets.next() if declared else self.secrets
        named = ahead.save(run.secrets, noise)
        checkpoint = replace(checkpoint, facts={**checkpoint.facts, **named})
        commit = checkpoints.save_draft(run.checkpoints, checkpoint)
        first = checkpoint.round + 1 - len(self._queued)
        judge = self.store_ledger if self.budget.private else self.ledger
        try:
            judge.commit(self.ledger.run, commit, self.committed, lambda: self.ledger.spend(self._queued, first))
        except FellBehind:
            checkpoints.drop_draft(run.checkpoints, commit)
            Secrets.drop(run.secrets, named)
            raise
        checkpoints.give_name(run.checkpoints, commit)
        Secrets.forget(run.secrets, named)
        self.secrets, self.committed = ahead, commit
        self._queued.clear()
        for show in self._to_show:
            show()
        self._to_show.clear()


def commits_of(ledger: Ledger, people: StoreLedger, *, private: bool) -> list[Commit]:
    """What a run committed, in its order."""
    return people.commits(ledger.run) if private else ledger.commits


@dataclass(frozen=True)
class RoundPayment:
    """The payment of one round: its keys, its charge, and what is shown of it."""

    payments: Payments
    round: int

    @property
    def keys(self) -> RoundKeys:
        """The keys that are needed before the sum exists."""
        return self.payments.secrets.keys(self.round)

    def ask(self) -> bool:
        """Note, on disk, that devices are asked for this masked round.

        False: a process that ended asked them, and vectors may have left. They are not asked again.
        """
        return self.payments.ledger.ask(self.round)

    def charge(self, event: Event) -> bytes:
        """Queue the line of the round, once its sum is complete; then give the key of its noise, used once."""
        self.payments._queued.append(event)
        return self.payments.secrets.noise_key(self.round)

    def once_committed(self, show: Callable[[], None]) -> None:
        """Show something of the round once its checkpoint is committed."""
        self.payments._to_show.append(show)


@dataclass(frozen=True)
class Unpaid:
    """Payments that charge nothing: for rounds whose results stay in the process, as in audits and benchmarks."""

    secrets: Secrets
    round: int = 0

    def begin(self, round_number: int) -> Unpaid:
        return replace(self, round=round_number)

    @property
    def keys(self) -> RoundKeys:
        return self.secrets.keys(self.round)

    def ask(self) -> bool:
        return True

    def charge(self, event: Event) -> bytes:
        return self.secrets.noise_key(self.round)

    def once_committed(self, show: Callable[[], None]) -> None:
        show()


def store_folder(store: Store) -> Path:
    assert store.path is not None  # a run trains on a store that is on disk
    return store.path


def store_ledger(store: Store) -> StoreLedger:
    return StoreLedger(store_folder(store) / "ledger.jsonl")


def begin_run(run: RunFolder, ledger: Ledger, people: StoreLedger, budget: Budget) -> None:
    """Charge a store for all planned rounds of a run, once, and commit its first checkpoint. Stopping early refunds
    nothing.

    The folder of the run has its name before, so what is paid for is not lost. A run that a crash left unpaid is
    charged when it goes on, less what it was charged already.
    """
    start = checkpoints.draft_of_start(run.checkpoints)
    if budget.private:
        planned = budget.charges.events(int(ledger.header["planned"]))
        for event, count in (total_of(planned) - total_of(people.spent(ledger.run))).items():
            people.charge(ledger.run, "training", event, count)
    judge = people if budget.private else ledger
    judge.commit(ledger.run, start, NONE, lambda: None)
    checkpoints.give_name(run.checkpoints, start)


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
        first = rounded_up(budget.spent(1), 4)
        raise BudgetExhausted(
            f"privacy.epsilon={budget.limit:g} does not allow one round at noise_multiplier={noise_multiplier:g} "
            f"(ε = {first}); raise the noise or the budget"
        )
    return allowed
