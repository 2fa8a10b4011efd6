"""A run of several processes: the leader trains, and the helpers compute their share of every round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sottovoce.build.assembly import Assembly, assemble
from sottovoce.commands.forecast import NOT_BEGUN, Declined
from sottovoce.commands.stores import has_own_store, with_public_text
from sottovoce.data.store import Store
from sottovoce.local.objective import Objective, plain
from sottovoce.models.contract import LanguageModel
from sottovoce.multiprocess.cohort_sum import SumOverProcesses, add_up_for
from sottovoce.multiprocess.group import Dismissed, Group, ProcessFacts, program
from sottovoce.training.round import SumUpdates
from sottovoce.training.seats import check_seats, digest_of_update
from sottovoce.training.strategy import Strategy
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


def assemble_for(
    group: Group | None,
    recipe: Recipe,
    store: Store,
    *,
    model: LanguageModel | None,
    objective: Objective,
    strategy: Strategy | None = None,
    before: Spent,
) -> Assembly:
    """The objects of a run. In a group, the leader sends the recipe to the helpers, and all of them compare facts."""
    processes = group.count if group else 1
    assembly = assemble(
        recipe, store, model=model, objective=objective, strategy=strategy, before=before, processes=processes
    )
    if group is None:
        return assembly
    if not group.facts:
        with group.uninterruptible():
            group.broadcast(json.dumps({"recipe": assembly.recipe.to_dict(), "store": str(store.path)}).encode())
            group.agree(_facts(assembly, store))
    return assembly


def sum_over(group: Group | None, assembly: Assembly) -> SumUpdates:
    """How users' updates are summed in a run. In a group, the leader from now on ends when a helper ends."""
    if group is None:
        return assembly.sum_updates
    group.end_with_others()  # not earlier: an unfinished run folder would be left behind
    return SumOverProcesses(group, assembly.sum_updates)


def work_as_helper(
    group: Group,
    store: str | Path | None = None,
    *,
    model: LanguageModel | None = None,
    objective: Objective = plain,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Help the leader to the end of its run. Nothing is written, and no secret of the run is known here.

    `store` is where this machine has the store, if not where the leader has it; `model` and `objective` are those given
    to the leader; when `stop` returns true, the leader is asked to stop after the round.
    """
    try:
        given = json.loads(group.receive())
    except Dismissed as dismissed:
        raise SottoError(f"process 0 did not begin: {dismissed}") from None
    recipe = Recipe.from_dict(given["recipe"])
    try:
        users = Store.open(given["store"] if store is None or has_own_store(recipe) else store)
        users = with_public_text(recipe, users)
        assembly = assemble(recipe, users, model=model, objective=objective, processes=group.count)
        if assembly.is_private:
            check_seats(assembly.sum_updates, assembly.algorithm, assembly.params, users)
    except SottoError as error:
        group.agree(ProcessFacts(error=str(error)))  # raises in every process
        raise
    group.agree(_facts(assembly, users))
    group.end_with_others()
    try:
        add_up_for(group, assembly.sum_updates, assembly.algorithm, assembly.params, users, stop)
    except Dismissed as dismissed:
        if str(dismissed) == NOT_BEGUN:
            raise Declined(NOT_BEGUN) from None
        if str(dismissed):
            raise SottoError(f"process 0 ended the run: {dismissed}") from None


def _facts(assembly: Assembly, store: Store) -> ProcessFacts:
    made_up = (assembly.sum_updates, assembly.algorithm, assembly.params, store)
    return ProcessFacts(
        store=store.fingerprint,
        program=program(),
        code=assembly.code,
        layout=assembly.layout,
        update=digest_of_update(*made_up) if assembly.is_private else "",
    )
