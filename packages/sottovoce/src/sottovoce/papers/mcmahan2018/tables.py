"""Tables 1 and 2 of McMahan et al. 2018: ε as printed and by three accountants; and a table of accuracies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from sottovoce.files import write_aside
from sottovoce.papers.engine.results import Facts, ResultStore, Spread
from sottovoce.papers.engine.tables import ACCOUNTANT_NAMES, markdown, number, percent, table
from sottovoce.papers.engine.trial import Size, Trial
from sottovoce.papers.mcmahan2018.trials import (
    PRINTED_RATE,
    TABLE_1,
    TABLE_2,
    TABLE_2_BASELINE,
    TABLE_2_DELTA,
    TABLE_2_ROUNDS,
    baselines,
    noised,
)
from sottovoce.planning.plan import cohort_for
from sottovoce_evidence.accounting import ACCOUNTANTS, SampledGaussian, epsilon, rounded_up


def projected_epsilon(noise_std: float, clip_norm: float, users: int, accountant: str) -> float:
    """ε of Table 2 with the cohort that turns a measured σ into z = 1."""
    event = SampledGaussian(1.0, "poisson", cohort_for(noise_std, clip_norm) / users)
    return epsilon([(event, TABLE_2_ROUNDS)], TABLE_2_DELTA, accountant)


@lru_cache
def table_1_cells(accountants: tuple[str, ...] = ACCOUNTANTS) -> list[Facts]:
    """Every cell of both versions of the table, by some accountants."""
    cells = []
    for users, cohort, z, kept, printed in TABLE_1:
        event = SampledGaussian(z, "poisson", cohort / users)
        for power, shown in enumerate(printed):
            found = {name: epsilon([(event, 10**power)], users**-1.1, name) for name in accountants}
            cells.append(
                {
                    "users": users,
                    "cohort": cohort,
                    "noise_multiplier": z,
                    "rounds": 10**power,
                    "printed": shown,
                    "first_version_only": not kept,
                    **found,
                }
            )
    return cells


def table_1(size: Size, results: ResultStore, out: Path) -> str:
    """One table an accountant; the first has the printed values too. The cells are also written to a JSON file."""
    cells = table_1_cells()
    write_aside(out / "table-1.json", json.dumps(cells, indent=1).encode() + b"\n")
    parts = []
    for accountant in ("moments", "rdp", "pld"):
        printed = accountant == "moments"
        parts += [
            f"{ACCOUNTANT_NAMES[accountant]}{', in brackets as printed where it differs' if printed else ''}:",
            "",
        ]
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


def _cell(cell: Facts, accountant: str, *, printed: bool) -> str:
    if not printed:
        return rounded_up(cell[accountant])
    shown = f"{cell[accountant]:.2f}"
    return shown if shown == cell["printed"] else f"{shown} ({cell['printed']})"


def table_2(size: Size, results: ResultStore, out: Path) -> str:
    """Accuracy of the small-cohort runs, and ε projected for the cohorts that give their σ at z = 1.

    Runs of as many rounds as ε is for have a column of their own, if the folder beside this one has some: that of
    `mcmahan2018` is `mcmahan2018-5000`.
    """
    longer = ResultStore(out.with_name(f"{out.name}-{TABLE_2_ROUNDS}") / "results")
    columns = {size.rounds: results} | ({TABLE_2_ROUNDS: longer} if longer.folder.exists() else {})
    header = [
        "σ",
        "S",
        "users",
        "C̃ for z = 1",
        "ε printed",
        *(f"ε, {name}, *projected*" for name in ACCOUNTANT_NAMES.values()),
        f"top-1 printed, {TABLE_2_ROUNDS:,} rounds",
        *(f"top-1 here, smoothed, {rounds:,} rounds" for rounds in columns),
    ]
    (unclipped,) = results.best_of_grids(baselines(size))
    rate = unclipped.changes.local.get("learning_rate", PRINTED_RATE)
    no_noise = ["∞"] * 4
    without_clip, *more = _top1(columns.values(), unclipped)
    rows = [
        ["0", "∞", "", "", *no_noise, f"{TABLE_2_BASELINE} %", f"{without_clip} (η = {rate:g})", *more],
        ["0", "15", "", "", *no_noise, "", *_top1(columns.values(), noised(0.0))],
    ]
    for sigma, clip_norm, users, _, printed, accuracy in TABLE_2:
        projected = {name: projected_epsilon(sigma, clip_norm, users, name) for name in ACCOUNTANTS}
        rows.append(
            [
                f"{sigma:g}",
                f"{clip_norm:g}",
                f"{users:,}",
                f"{cohort_for(sigma, clip_norm):,}",
                f"{printed:g}",
                f"{projected['moments']:.3f}",
                rounded_up(projected["rdp"]),
                rounded_up(projected["pld"]),
                f"{accuracy} %",
                *_top1(columns.values(), noised(sigma, clip_norm)),
            ]
        )
    note = (
        f"ε at δ = {TABLE_2_DELTA:g} for {TABLE_2_ROUNDS:,} rounds. *Projected*: no run here has these cohorts; "
        f"the accuracy is of runs with the same σ and S and the cohort of this reproduction."
    )
    if size.rounds != TABLE_2_ROUNDS:
        note += f" This ε pays for {TABLE_2_ROUNDS:,} rounds: accuracy after {size.rounds:,} is not what it buys."
    return f"{markdown(header, rows)}\n\n{note}"


def _top1(columns: Iterable[ResultStore], trial: Trial) -> list[str]:
    return [percent(results.final(trial)) or "not run" for results in columns]


def setting_table(trials: Sequence[Trial], size: Size, results: ResultStore) -> str:
    """One row a setting: accuracy at the end, and its cost in rounds and users."""
    rows = []
    for trial in trials:
        outcomes = results.outcomes(trial)
        reached = results.rounds_to(trial, size)
        perplexities = [outcome.evaluation.perplexity for outcome in outcomes]
        known = [value for value in perplexities if math.isfinite(value)]
        clipped = [outcome.clipped_share[-1][1] for outcome in outcomes if outcome.clipped_share]
        rows.append(
            {
                "setting": trial.label,
                "seeds": str(len(outcomes)),
                "top-1": percent(Spread.of([outcome.evaluation.top1 for outcome in outcomes])),
                "top-1, smoothed": percent(results.final(trial)),
                "perplexity": number(Spread.of(known)) if len(known) == len(outcomes) else "diverged",
                f"rounds to {size.target:.0%}": "not reached" if reached is None else f"{reached.mean:,.0f}",
                "users processed": f"{fmean(outcome.user_updates for outcome in outcomes):,.0f}",
                "clipped, at the end": f"{fmean(clipped):.0%}" if clipped else "",
                "run": f"`{trial.name}`",
            }
        )
    return table(rows)
