"""Write the report of a run: its evidence on one page."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

from sottovoce.audit.results import AUDITS, Audits
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.stores import store_folder
from sottovoce.data.prompts import prompts_for
from sottovoce.evaluation.suggestions import suggest
from sottovoce.files import write_aside
from sottovoce.models.contract import LanguageModel
from sottovoce.reporting.findings import Finding, findings
from sottovoce.reporting.notebook import PagePath
from sottovoce.reporting.report import Evidence, render
from sottovoce.reporting.statement import read_statement, with_store_total
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import read_ledger
from sottovoce_evidence.files import Json
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import Statement


def report_run(
    path: str | Path,
    *,
    internal: bool = False,
    model: LanguageModel | None = None,
    out: Path | None = None,
    statement: Statement | None = None,
) -> PagePath:
    """Write `report.html` into a run's folder; with `internal`, `report-internal.html` for the owner alone.

    Args:
        path: the run's folder.
        internal: also what was computed from people's text.
        model: a model of your own, where the run has one.
        out: where the page is written instead.
        statement: of a release.
    """
    run = RunFolder.open(path)
    folder = ModelFolder.open(run.path, model=model)
    released, vocabulary, card = folder.model, folder.tokenizer, read_card(run)
    statement = statement or _statement_of_today(run)
    prompts = prompts_for(vocabulary, listed=not statement.vocabulary.private)
    evidence = Evidence(
        name=run.path.resolve().name,
        recipe=public_recipe(run, card),
        statement=statement,
        record=run.record.read(),
        suggestions=[(prompt, suggest(released, vocabulary, prompt)) for prompt in prompts],
        baselines=Baselines.of(run),
        diagnostics=run.diagnostics.read() if internal else None,
        findings=tuple(read_findings(run)),
        traffic=card.bytes,
        date=f"{date.today():%-d %B %Y}",
    )
    target = out or (run.path / "report-internal.html" if internal else run.report_file)
    write_aside(target, render(evidence).encode(), private=internal)
    return PagePath(target)


def read_card(run: RunFolder) -> Card:
    return Card.from_json(run.read_card())


def read_findings(run: RunFolder, name: str = "RUN") -> list[Finding]:
    """What is proved of a run, and what its audits found."""
    files = {audit: run.read_audit(audit) for audit in AUDITS}
    return findings(read_statement(run), Audits.from_json(files, digest(run.load_weights())), name)


def public_recipe(run: RunFolder, card: Card) -> dict[str, Json]:
    """A page for others shows no paths of this machine."""
    recipe = Recipe.of(run).to_dict()
    for section, key in (("data", "store"), ("model", "initial"), ("local", "public")):
        if key in recipe[section]:
            recipe[section][key] = Path(recipe[section][key]).name
    if card.own_model:
        recipe["model"] = {"kind": card.code}  # the sizes in the recipe are not those of a caller's own model
    return recipe


def _statement_of_today(run: RunFolder) -> Statement:
    """A run's statement, with what all runs on its store cost by now; a store that never charged it is another one."""
    recipe, statement = Recipe.of(run), read_statement(run)
    ledger = store_folder(recipe, run) / "ledger.jsonl"
    if not statement.private:
        return statement
    if not ledger.exists() or statement.run not in (people := read_ledger(ledger)).runs:
        return replace(statement, store_gone=True)
    return with_store_total(statement, people.spent)
