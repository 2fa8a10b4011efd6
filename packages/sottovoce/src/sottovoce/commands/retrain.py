"""Open a run to train its recipe again in memory, for an audit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from sottovoce.audit.retrain import Retraining
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.commands.initial_model import find_start
from sottovoce.commands.stores import open_users
from sottovoce.data.store import Store
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import first_line
from sottovoce.runs.payments import vocabulary_charges
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

Progress = Callable[[int, int], None]  # is called with how many steps are done, and how many there are


def no_progress(done: int, total: int) -> None:
    del done, total


def count_steps(progress: Progress, total: int) -> Callable[[], None]:
    """A function to call after every step."""
    done = itertools.count(1)
    return lambda: progress(next(done), total)


def open_for_retraining(
    run: RunFolder, recipe: Recipe, *, models: int = 1, store: Store | None = None, progress: Progress = no_progress
) -> Retraining:
    """What it takes to train `models` models by a recipe, for as many rounds as the run has done."""
    store = open_users(recipe, run)[0] if store is None else store
    assembly = assemble(recipe, store, before=vocabulary_charges(store))
    refuse_own_code(run, assembly)
    start = find_start(assembly.recipe, store, assembly.model, again=True)
    rounds = read_statement(run).rounds_done
    return Retraining(assembly, start.model, store, rounds, count_steps(progress, models * rounds))


def refuse_own_code(run: RunFolder, assembly: Assembly) -> None:
    """A model or an objective that no recipe describes cannot be trained again."""
    code = first_line(run.ledger_file).get("code")
    if code != assembly.code:
        raise SottoError(f"{run.path} was trained with {code}, which only Python knows; compare two runs of it instead")
