"""Tables 1 and 2 of McMahan et al. 2018: ε as printed, by the moments accountant, RDP and PLD."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sottovoce.experiments.describe import Trial
from sottovoce.experiments.mcmahan2018 import (
    BASELINE,
    TABLE_1,
    TABLE_2,
    TABLE_2_BASELINE,
    TABLE_2_DELTA,
    TABLE_2_ROUNDS,
    noised,
)
from sottovoce.experiments.results import Pool
from sottovoce.files import write_aside
from sottovoce.planning.projection import project
from sottovoce.privacy.accounting import ACCOUNTANTS, SampledGaussian, epsilon, rounded_up

NAMES = {"moments": "moments accountant", "rdp": "RDP", "pld": "PLD"}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@lru_cache
def table_1_cells(accountants: tuple[str, ...] = ACCOUNTANTS) -> list[dict[str, Any]]:
    """Every cell of both versions of the table, by these accountants."""
    cells = []
    for users, cohort, z, kept, printed in TABLE_1:
        event = SampledGaussian(z, "poisson", cohort / users)
        for power, shown in enumerate(printed):
            found = {name: epsilon([(event, 10**power)], users**-1.1, name) for name in accountants}
            cells.append({
                "users": users, "cohort": cohort, "noise_multiplier": z, "rounds": 10**power, "printed": shown,
                "first_version_only": not kept, **found,
            })  # fmt: skip
    return cells


def table_1(out: Path) -> str:
    """One table an accountant; the first stands beside what is printed. The cells go to a JSON file too."""
    cells = table_1_cells()
    write_aside(out / "table-1.json", json.dumps(cells, indent=1).encode() + b"\n")
    parts = []
    for accountant in ("moments", "rdp", "pld"):
        printed = accountant == "moments"
        parts += [f"{NAMES[accountant]}{', in brackets as printed where it differs' if printed else ''}:", ""]
        rows = []
        for start in range(0, len(cells), 7):
            row = cells[start : start + 7]
            first = row[0]
            mark = " (first version)" if first["first_version_only"] else ""
            shown = [_cell(cell, accountant, printed=printed) for cell in row]
            rows.append(
                [f"{first['users']:.0e}{mark}", f"{first['cohort']:,}", f"{first['noise_multiplier']:g}", *shown]
            )
        parts += [markdown(["users", "sample", "z", *(f"10^{power}" for power in range(7))], rows), ""]
    return "\n".join(parts).rstrip()


def _cell(cell: dict[str, Any], accountant: str, *, printed: bool) -> str:
    if not printed:
        return rounded_up(cell[accountant])
    shown = f"{cell[accountant]:.2f}"
    return shown if shown == cell["printed"] else f"{shown} ({cell['printed']})"


def table_2(pool: Pool) -> str:
    """Accuracy of the small-cohort runs, and ε projected for the cohorts that give their σ at z = 1."""
    header = [
        "σ", "S", "users", "C̃ for z = 1", "ε printed", *(f"ε, {NAMES[name]}, *projected*" for name in NAMES),
        "top-1 printed", "top-1 here",
    ]  # fmt: skip
    baselines = ((BASELINE, "∞", f"{TABLE_2_BASELINE} %"), (noised(0.0), "15", ""))
    rows = [
        ["0", shown, "", "", "∞", "∞", "∞", "∞", printed, _top1(pool, trial)] for trial, shown, printed in baselines
    ]
    for sigma, clip_norm, users, _, printed, accuracy in TABLE_2:
        made = project(
            noise_std=sigma, clip_norm=clip_norm, users=users, rounds=TABLE_2_ROUNDS, delta=TABLE_2_DELTA
        )  # fmt: skip
        rows.append([
            f"{sigma:g}", f"{clip_norm:g}", f"{users:,}", f"{made.cohort:,}", f"{printed:g}",
            f"{made.epsilons['moments']:.3f}", rounded_up(made.epsilons["rdp"]), rounded_up(made.epsilons["pld"]),
            f"{accuracy} %", _top1(pool, noised(sigma, clip_norm)),
        ])  # fmt: skip
    note = (
        f"ε at δ = {TABLE_2_DELTA:g} for {TABLE_2_ROUNDS:,} rounds. *Projected*: nobody trained with these cohorts; "
        f"the accuracy is of runs with the same σ and S and the cohort of this reproduction."
    )
    return f"{markdown(header, rows)}\n\n{note}"


def private_table(trials: Sequence[Trial], pool: Pool) -> str:
    """What is promised and what is reached, a row a trial, and what all of it cost the people together."""
    header = [
        "setting", "ε", "S", "C̃", "rounds", "z", "σ", "user updates, expected", "top-1, all held out", "perplexity",
    ]  # fmt: skip
    rows, totals, counted = [], [], 0
    for trial in trials:
        for outcome in pool.of(trial):
            recipe, facts = outcome.recipe, outcome.facts
            promised = trial.is_private
            if promised:
                totals.append(facts["epsilon_store"])
                counted += 1
            perplexity = outcome.evaluation["perplexity"]
            people = not trial.on
            rows.append([
                trial.label,
                rounded_up(facts["epsilon"]) if promised else "∞" if people else "0",
                f"{recipe['privacy']['clip_norm']:g}" if people else "",
                f"{recipe['privacy']['cohort']:,.0f}" if people else "",
                f"{outcome.rounds:,}" if people else "",
                f"{facts['noise_multiplier']:.3g}" if promised else "",
                f"{facts['noise_std']:.2g}" if promised else "0" if people else "",
                f"{outcome.user_updates:,}" if people else "",
                f"{100 * outcome.evaluation['top1']:.2f} %",
                "diverged" if perplexity is None else f"{perplexity:.4g}",
            ])  # fmt: skip
    known = [value for value in totals if isinstance(value, int | float)]
    total = rounded_up(max(known)) if known and len(known) == len(totals) else "not known to be finite"
    deltas = {outcome.facts["delta"] for trial in trials if trial.is_private for outcome in pool.of(trial)}
    note = (
        f"ε at δ = {', '.join(f'{delta:g}' for delta in sorted(deltas))} is of each model alone; S, z and σ are those of "
        f"the first round. All {counted} private runs on this store together: ε = {total}. A trial with ε = ∞ promises "
        f"nothing, and its model is not to be released; ε = 0 saw nobody of the store."
    )
    return f"{markdown(header, rows)}\n\n{note}" if counted else markdown(header, rows)


def _top1(pool: Pool, trial: Any) -> str:
    found = pool.final(trial)
    if found is None:
        return "not run"
    return f"{100 * found.mean:.2f} %" + ("" if found.deviation is None else f" ± {100 * found.deviation:.2f}")
