"""The table of the private models: ε and accuracy of each, and the ε of all of them together."""

from __future__ import annotations

import math
from pathlib import Path

from sottovoce.papers.engine.results import Outcome, ResultStore
from sottovoce.papers.engine.tables import table as markdown_table
from sottovoce.papers.engine.trial import Size, Trial
from sottovoce.papers.private_model.trials import trials
from sottovoce_evidence.accounting import rounded_up


def table(size: Size, results: ResultStore, out: Path) -> str:
    """A row for each run, and a note with the ε of all private runs together."""
    runs = [(trial, outcome) for trial in trials(size) for outcome in results.outcomes(trial)]
    rows = markdown_table([_row(trial, outcome) for trial, outcome in runs])
    private = [outcome.facts for trial, outcome in runs if trial.is_private]
    if not private:
        return rows
    totals = [facts["epsilon_store"] for facts in private]
    known = [value for value in totals if isinstance(value, int | float)]
    total = rounded_up(max(known)) if len(known) == len(totals) else "not known to be finite"
    deltas = ", ".join(f"{delta:g}" for delta in sorted({facts["delta"] for facts in private}))
    note = (
        f"ε at δ = {deltas} is of each model alone; S, z and σ are of the first round. All private runs on this store, "
        f"until the last of these {len(private)}, together: ε = {total}. A trial with ε = ∞ promises nothing, and its "
        f"model is not to be released; ε = 0 saw nobody of the store."
    )
    return f"{rows}\n\n{note}"


def _row(trial: Trial, outcome: Outcome) -> dict[str, str]:
    privacy, facts = outcome.recipe["privacy"], outcome.facts
    of_users = trial.corpus.is_users
    epsilon, z, sigma = ("∞", "", "0") if of_users else ("0", "", "")
    if trial.is_private:
        epsilon = rounded_up(facts["epsilon"])
        z, sigma = f"{facts['noise_multiplier']:.3g}", f"{facts['noise_std']:.2g}"
    perplexity = outcome.evaluation.perplexity
    return {
        "setting": trial.label,
        "ε": epsilon,
        "S": f"{privacy['clip_norm']:g}" if of_users else "",
        "C̃": f"{privacy['cohort']:,.0f}" if of_users else "",
        "rounds": f"{outcome.rounds:,}" if of_users else "",
        "z": z,
        "σ": sigma,
        "user updates, expected": f"{outcome.user_updates:,}" if of_users else "",
        "top-1 at the end": f"{100 * outcome.evaluation.top1:.2f} %",
        "perplexity": f"{perplexity:.4g}" if math.isfinite(perplexity) else "diverged",
    }
