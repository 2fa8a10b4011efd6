"""Before a private run goes on: is all of it paid for, and is this folder the one that was?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.accounting import Spent
from sottovoce.commands.budget import Meter, charge_store, store_folder, store_ledger, total_of
from sottovoce.errors import BudgetExhausted, DamagedRun, SottoError
from sottovoce.runs import lease

if TYPE_CHECKING:
    from sottovoce.commands.train import Training


def take_hold(training: Training) -> list[str]:
    """Go on at no charge if the store was charged and this folder was the last to hold the run; what else was done."""
    if not training.meter.private:
        return []
    notes = _settle(training)
    training.meter = Meter(training.assembly, charged_beside(training))
    try:
        if training.state.round < training.planned and not _take_up(training):
            notes.append(
                f"another copy of {training.run_folder.path} was taken up since, or its store was restored: rounds "
                f"from {training.state.round + 1} on are charged to the store again"
            )
    except BudgetExhausted as error:  # told at the first round, where training ends
        training.exhausted = error
    return notes


def charged_beside(training: Training) -> Spent:
    """What the store was charged for the run beyond its own plan and ledger: by copies of its folder that went on.

    They are releases of the same run, so its ε counts them; and a charge that a crash left without a round. Runs of one
    seed share a name, and cannot be told from copies: theirs are in the store's total alone.
    """
    if not training.meter.private or _is_seeded(training):
        return ()
    charged = store_ledger(training.store).spent(training.ledger.header["run"])
    return tuple((total_of(charged) - total_of(_owed(training))).items())


def _is_seeded(training: Training) -> bool:
    return training.recipe.privacy.secrets == "seeded"


def _owed(training: Training) -> Spent:
    return [*training.assembly.algorithm.mechanism.events(training.planned), *training.ledger.repeated()]


def _settle(training: Training) -> list[str]:
    """A store is charged when a run begins, and for rounds done again: what its ledger lacks of that is charged now.

    A ledger that does not know the run at all was lost with what others had spent, which nothing else tells.
    """
    ledger, run = store_ledger(training.store), training.ledger.header["run"]
    charged = ledger.spent(run)
    if not charged:
        raise DamagedRun(
            f"{ledger.path} has no charge for this run, though it was charged when the run began: the ledger was lost, "
            f"or is from before; what was spent on these people cannot be told; put it back"
        )
    missing = total_of(_owed(training)) - total_of(charged)
    for event, count in missing.items():
        charge_store(training.store, run, "charges that were lost", event, count)
    return [f"{ledger.path} had lost {missing.total()} charges of this run: they are made again"] if missing else []


def _take_up(training: Training) -> bool:
    """A copy of a folder pays for its rounds again, before it is the one that holds the run."""
    mechanism = training.assembly.algorithm.mechanism
    left = mechanism.events(training.planned, training.state.round)
    beside = Meter(training.assembly, [*charged_beside(training), *(() if _is_seeded(training) else left)])

    def pay() -> None:
        if not beside.allows([*training.ledger.spent(), (mechanism.event(training.state.round + 1, again=True), 1)]):
            raise BudgetExhausted(
                f"another copy of {training.run_folder.path} was taken up since, or its store was restored: rounds "
                f"from {training.state.round + 1} on would be charged again and pass the budget ε = {beside.budget:g}; "
                f"training ends here with a usable model"
            )
        for event, count in left:
            charge_store(training.store, training.ledger.header["run"], "rounds of a copy", event, count)
        training.meter = beside

    return lease.take_up(training.run_folder.secrets, store_folder(training.store), training.ledger.state, pay)


def hold_on(training: Training) -> None:
    """Before a round is paid for: stop if another copy was taken up. Resumed, this one then pays as a copy does."""
    if training.meter.private and not lease.hold_on(
        training.run_folder.secrets, store_folder(training.store), training.ledger.state
    ):
        raise SottoError(
            f"another copy of {training.run_folder.path} was taken up while this one was training, or its store "
            f"restored: it stops before round {training.state.round + 1}; `sotto resume` goes on with it, and charges "
            f"the rounds left to the store again"
        )
