"""The statement of a run, as its folder holds it, and with what its people were charged since."""

from __future__ import annotations

from dataclasses import replace

from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.statement import Statement, store_total


def read_statement(run: RunFolder) -> Statement:
    """The statement of a run, as its folder holds it."""
    values = run.read_statement()
    try:
        return Statement.from_json(values)
    except (KeyError, TypeError, ValueError) as error:
        lacks = f"{run.statement_file} lacks facts of a statement ({type(error).__name__}: {error})"
        raise DamagedRun(f"{lacks}; `sotto resume {run.path}` writes it again") from None


def with_store_total(statement: Statement, spent: Spent) -> Statement:
    """The same with ε over every run on a store, and what may change between two populations."""
    if not statement.private:
        return statement
    epsilon, relation = store_total(spent, statement.delta, statement.accountant)
    return replace(statement, epsilon_store=epsilon, relation_store=relation)
