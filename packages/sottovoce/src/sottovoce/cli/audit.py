"""`sotto audit` and its attacks: rounds, canaries, tails, membership."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts

from sottovoce.cli.display import print_json, print_rows, progress_of_steps
from sottovoce.cli.options import Json, Run, Strings, option

if TYPE_CHECKING:
    from sottovoce.audit.results import Found
    from sottovoce.reporting.findings import Finding

ATTACKS = ("rounds", "canaries", "tails", "membership")
Delta = Annotated[float | None, option("δ at which ε is estimated (default: the run's).")]

app = cyclopts.App(
    name="audit",
    help="Measure how leaky a run is: what attacks find, next to what is proved. For the owner only.\n\nWithout an "
    "attack: all that was found so far. In rounds and canaries, exit status 1 says that more leaks than is claimed.",
)


@app.default
def findings(run: Run, *, json: Json = False) -> None:
    """Show what audits found so far.

    Examples:
        sotto audit run
    """
    from sottovoce.commands.report import read_findings
    from sottovoce.runs.folder import RunFolder

    rows = read_findings(RunFolder.open(run), str(run))
    if json:
        print_json({"run": run.resolve().name, "findings": [row.to_json() for row in rows]})
        return
    _print_findings(rows)


@app.command
def rounds(
    run: Run,
    *,
    rounds: Annotated[int, option("How many rounds to play.")] = 2000,
    delta: Delta = None,
    confidence: Annotated[float, option("Of what is shown. High, because the result can stop a release.")] = 0.999,
    seed: Annotated[int, option("Chooses the coins and the noise.")] = 0,
    json: Json = False,
) -> None:
    """Play single rounds on made-up users, with and without one of them.

    Measures their noise, and guesses from each round's noised update whether that user was there. Compares the noise
    multiplier and the ε that this shows with those that are claimed for a round.

    Examples:
        sotto audit rounds run
    """
    from sottovoce.commands.audit_rounds import audit_rounds

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_rounds(run, rounds=rounds, delta=delta, confidence=confidence, seed=seed, progress=progress)
    _show(found, run, json)


@app.command
def canaries(
    run: Run,
    *others: Annotated[Path, option("Runs with inserted secrets, shown next to this one.")],
    settings: Annotated[
        Strings, option("What is inserted into a copy (default: audit.users=100 audit.secrets=6).", "--set")
    ] = None,
    delta: Delta = None,
    confidence: Annotated[float, option("Of the lower bounds.")] = 0.95,
    seed: Annotated[int, option("Chooses the coins and the noise of a copy.")] = 0,
    json: Json = False,
) -> None:
    """Look for canaries: inserted secrets, and canary users who were in or out.

    Ranks the secrets that the recipe's [audit] inserted among all that could stand in their place. Guesses from every
    round's noised update, and from the model, which canary users were in: a lower bound on the run's ε. For a run
    without canaries a copy is trained, which takes as long as the run and is not kept.

    Examples:
        sotto audit canaries run
    """
    from sottovoce.commands.audit_canaries import audit_canaries

    with progress_of_steps(f"copy of {run.name}", quiet=json) as progress:
        found = audit_canaries(
            run, others, settings=settings or (), delta=delta, confidence=confidence, seed=seed, progress=progress
        )
    _show(found, run, json)


@app.command
def tails(
    run: Run,
    *without: Annotated[Path, option("Runs of the same recipe on stores that lack one of its users each.")],
    leave_out: Annotated[int, option("Instead: train with all users, and without each of this many users.")] = 0,
    texts: Annotated[int, option("Texts of 10 words that each model of a pair writes.")] = 30_000,
    delta: Delta = None,
    seed: Annotated[int, option("Chooses the users left out, and the texts.")] = 0,
    json: Json = False,
) -> None:
    """Estimate ε from the tails of P(text | with a user) / P(text | without), over texts that the models write.

    Examples:
        sotto audit tails run
    """
    from sottovoce.commands.audit_tails import audit_tails

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_tails(run, without, leave_out=leave_out, texts=texts, delta=delta, seed=seed, progress=progress)
    _show(found, run, json)


@app.command
def membership(
    run: Run,
    *,
    references: Annotated[int, option("Shadow models to train, on random halves of these users: even, from 4 on.")] = 0,
    users: Annotated[int, option("At most this many of each kind.")] = 2000,
    confidence: Annotated[float, option("Of the intervals.")] = 0.95,
    seed: Annotated[int, option("Chooses the users.")] = 0,
    json: Json = False,
) -> None:
    """Tell users of the train split from users held out by how well the model predicts them.

    Prints the AUC, and the share of users found at few false alarms.

    Examples:
        sotto audit membership run
    """
    from sottovoce.commands.audit_membership import audit_membership

    with progress_of_steps(f"audit of {run.name}", quiet=json) as progress:
        found = audit_membership(
            run, references=references, users=users, confidence=confidence, seed=seed, progress=progress
        )
    _show(found, run, json)


def _show(found: Found, run: Path, json: bool) -> None:
    """Print what an attack found, as the row of all findings has it, and its tables. Exit status 1: it contradicts."""
    from sottovoce.audit.results import Audits
    from sottovoce.reporting.findings import findings
    from sottovoce.reporting.statement import read_statement
    from sottovoce.runs.folder import RunFolder

    if json:
        print_json(found.to_json())
    else:
        for title, rows in found.tables().items():
            print_rows(title, rows)
        about = findings(read_statement(RunFolder.open(run)), Audits.of(found), str(run))
        shown = [row for row in about if row.was_run or not row.command]
        _print_findings(shown)
        if any(row.owner_only for row in shown):
            print(f"for the owner only, not covered by any ε: {run / 'audit'}")
    if getattr(found, "contradicted", False):
        sys.exit(1)


def _print_findings(rows: list[Finding]) -> None:
    for row in rows:
        print(f"{row.what} ({row.kind}): {row.result}")
        print(f"    {row.about}" if row.was_run or not row.command else f"    {row.command}")
        if row.meaning:
            print(f"    means: {row.meaning}")
