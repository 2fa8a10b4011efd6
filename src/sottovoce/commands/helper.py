"""A run of several processes: process 0 trains as ever, and the others help it with the users of every round."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.accounting import Spent
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.commands.stores import has_own_store, with_public_text
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.local.objective import Objective, plain
from sottovoce.models.contract import LanguageModel
from sottovoce.multiprocess.cohort_sum import SumOverProcesses, add_up_for
from sottovoce.multiprocess.group import Dismissed, Group
from sottovoce.recipe import Recipe
from sottovoce.runs import fingerprint
from sottovoce.training.round import SumUpdates

# What must be the same in every process, and how to say that it is not.
_ALIKE = {
    "store": "another store than process 0; give every process a copy of the same one",
    "program": "another sottovoce, jax or numpy than process 0; install the same versions everywhere",
    "code": "another model or objective than process 0; pass the same ones everywhere",
    "layout": "other devices than process 0; give every process as many of the same kind, or set run.devices",
}


def assemble_for(
    group: Group | None, recipe: Recipe, store: Store, *, model: LanguageModel | None, objective: Objective,
    before: Spent,
) -> Assembly:  # fmt: skip
    """The objects of a run, which process 0 agrees on with the others, if there are any."""
    if group is None:
        return assemble(recipe, store, model=model, objective=objective, before=before)
    assembly = assemble(recipe, store, model=model, objective=objective, before=before, processes=group.count)
    if not group.facts:
        with group.busy():
            group.tell(json.dumps({"recipe": assembly.recipe.to_dict(), "store": str(store.path)}).encode())
            _compare(group, _facts(assembly, store))
    return replace(
        assembly,
        # A round's sum depends on the machines of all.
        fingerprint=fingerprint.of_all([assembly.fingerprint, *(facts["fingerprint"] for facts in group.facts[1:])]),
        reproducible=all(facts["reproducible"] for facts in group.facts),
    )


def sum_over(group: Group | None, assembly: Assembly) -> SumUpdates:
    """How users' updates are added up. From now on process 0 ends when another process does."""
    if group is None:
        return assembly.sum_updates
    group.watch()  # not before: a run's folder in the making would be left behind
    return SumOverProcesses(group, assembly.sum_updates)


def work_as_helper(
    group: Group, store: str | Path | None = None, *, model: LanguageModel | None = None, objective: Objective = plain,
    stop: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """Help process 0 to the end of its run. Nothing is written, and no secret of the run is known here.

    `store` is where this machine has the store; without it, where process 0 has it. `model` and `objective` are those
    given to process 0. When `stop()` is true process 0 is asked to stop after the round.
    """
    try:
        given = json.loads(group.hear())
    except Dismissed as dismissed:
        raise SottoError(f"process 0 did not begin: {dismissed}") from None
    recipe = Recipe.from_dict(given["recipe"])
    try:
        users = Store.open(given["store"] if store is None or has_own_store(recipe) else store)
        users = with_public_text(recipe, users)
        assembly = assemble(recipe, users, model=model, objective=objective, processes=group.count)
    except SottoError as error:
        _compare(group, {"error": str(error)})  # refuses, here and everywhere
        raise
    _compare(group, _facts(assembly, users))
    group.watch()
    try:
        add_up_for(group, assembly.sum_updates, assembly.algorithm, assembly.model, users, stop)
    except Dismissed as dismissed:
        if str(dismissed):
            raise SottoError(f"process 0 ended the run: {dismissed}") from None


def _facts(assembly: Assembly, store: Store) -> dict[str, Any]:
    return {
        "store": store.fingerprint,
        "program": fingerprint.program(),
        "code": assembly.code,
        "layout": assembly.layout,
        "fingerprint": assembly.fingerprint,
        "reproducible": assembly.reproducible,
    }


def _compare(group: Group, facts: dict[str, Any]) -> None:
    """Every process sees the facts of all, so all of them refuse together."""
    group.facts = [json.loads(said) for said in group.gather(json.dumps(facts).encode())]
    complaints = [_complaint(number, facts, group.facts[0]) for number, facts in enumerate(group.facts)]
    if any(complaints):
        group.leave()
        raise SottoError("; ".join(filter(None, complaints)))


def _complaint(number: int, facts: dict[str, Any], first: dict[str, Any]) -> str:
    if "error" in facts:
        return f"process {number} cannot take part: {facts['error']}"
    for name, complaint in _ALIKE.items():
        if facts[name] != first[name]:
            return f"process {number} has {complaint}"
    return ""
