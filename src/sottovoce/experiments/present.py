"""From results to a figure and a table: what an experiment ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sottovoce.evaluation.head_words import HEADS
from sottovoce.experiments.describe import Experiment, Size, Trial
from sottovoce.experiments.mcmahan2018 import TITLE
from sottovoce.experiments.results import SMOOTHED_OVER, Outcome, Pool, Spread, value_at
from sottovoce.experiments.tables import markdown, private_table, table_1, table_2
from sottovoce.files import write_aside
from sottovoce.reporting.figures import DEEP, MIDDLE
from sottovoce.reporting.panels import COLOURS, Panel, Point, Row, Series, draw_histograms, draw_panels

_EARLY_TO_LATE = ("#9dbdd9", MIDDLE, DEEP)


def present(experiment: Experiment, size: Size, pool: Pool, out: Path) -> str:
    """Write the table, and the figure where there is one, of what was run so far. The table is returned."""
    trials = [trial for trial in experiment.trials(size) if pool.of(trial)]
    parts = [f"## {experiment.title}", ""]
    if experiment.name == "table-1":
        parts.append(table_1(out))
    elif trials:
        if experiment.name == "table-2":
            parts += [table_2(pool), ""]
        if experiment.name == "private-model":
            parts += [private_table(trials, pool), ""]
        try:
            drawing = _draw(experiment, size, pool, trials)
        except ImportError:  # a machine that trains may lack matplotlib
            drawing = None
            parts += ["The figure waits for matplotlib: `sotto reproduce --from-results` draws it.", ""]
        if drawing is not None:
            write_aside(out / f"{experiment.name}.png", drawing)
            parts += [f"![{experiment.title}]({experiment.name}.png)", ""]
        parts.append(_table(trials, size, pool))
        if experiment.view == "histograms":
            parts += ["", _head_word_table(trials, pool)]
    else:
        parts.append("Nothing was run yet.")
    text = "\n".join(parts) + "\n"
    write_aside(out / f"{experiment.name}.md", text.encode())
    return text


def _draw(experiment: Experiment, size: Size, pool: Pool, trials: Sequence[Trial]) -> bytes | None:
    if experiment.view == "curves":
        return draw_panels([_curves(title, chosen, size, pool) for title, chosen in _panels(trials)])
    if experiment.view == "sweep":
        return draw_panels([_sweep(experiment, title, chosen, size, pool) for title, chosen in _panels(trials)])
    if experiment.view == "histograms":
        rows = [
            Row(f"{_percent(pool.final(trial))}   {trial.label}", [_histogram(pool, trial, n) for n in HEADS])
            for trial in trials
        ]
        return draw_histograms([f"in the top {n}" for n in HEADS], rows)
    return None


def _panels(trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    titles = dict.fromkeys(trial.panel for trial in trials)
    return [(title, [trial for trial in trials if trial.panel == title]) for title in titles]


def _curves(title: str, trials: Sequence[Trial], size: Size, pool: Pool) -> Panel:
    series = [
        Series(trial.label, _over_rounds(pool.of(trial)), COLOURS[place % len(COLOURS)], dotted=place >= len(COLOURS))
        for place, trial in enumerate(trials)
    ]
    start = min(outcome.first for trial in trials for outcome in pool.of(trial))
    return Panel(title, series, start=float(start))


def _over_rounds(outcomes: Sequence[Outcome]) -> list[Point]:
    by_round: dict[int, list[float]] = {}
    for outcome in outcomes:
        for number, value in outcome.smoothed:
            by_round.setdefault(number, []).append(value)
    return [Point(number, fmean(values), min(values), max(values)) for number, values in sorted(by_round.items())]


def _sweep(experiment: Experiment, title: str, trials: Sequence[Trial], size: Size, pool: Pool) -> Panel:
    """A line for each mark, the second group dotted; where there are more groups, one for each at the last mark."""
    groups = list(dict.fromkeys(trial.group for trial in trials))
    by_mark = len(groups) <= 2
    series = []
    for place, group in enumerate(groups):
        members = [trial for trial in trials if trial.group == group]
        for mark, shade in zip(size.marks, _EARLY_TO_LATE, strict=True):
            points = [_at_mark(trial, mark, pool) for trial in members]
            if by_mark:
                series.append(Series(f"round {mark:,}" if place == 0 else "", points, shade, dotted=place > 0))
            elif mark == size.marks[-1]:
                series.append(Series(group, points, COLOURS[place]))
    if by_mark and len(groups) == 2:
        title = f"{groups[0]}; dotted: {groups[1]}"
    upright = (20 / size.cohort, "z = 1") if experiment.name == "figure-3" else None
    places = [trial.x for trial in trials if trial.x is not None]
    return Panel(title, series, experiment.x, places, upright)


def _at_mark(trial: Trial, mark: int, pool: Pool) -> Point:
    assert trial.x is not None
    values = [value_at(outcome.smoothed, outcome.first + mark) for outcome in pool.of(trial)]
    return Point(trial.x, fmean(values), min(values), max(values))


def _histogram(pool: Pool, trial: Trial, head: int) -> list[float]:
    rows = [outcome.head_words[str(head)] for outcome in pool.of(trial)]
    return [fmean(column) for column in zip(*rows, strict=True)]


def page(experiments: Sequence[Experiment], setting: dict[str, Any], out: Path) -> str:
    """One page of all tables and figures in a folder, each with the command that makes it."""
    people = "synthetic users" if setting.get("synthetic") else "users"
    parts = [
        f"# {TITLE}",
        "",
        f"Size `{setting['size']}`, {setting['rounds']:,} rounds, {setting['users']:,} {people} to train on, "
        f"{setting['held_out_users']:,} held out, {setting['vocabulary']:,} words, at most "
        f"{setting['tokens_per_user']:,} tokens a user. No run here is private: σ is given, and ε infinite unless "
        f"it is called *projected*. Top-1 counts words, punctuation and EOS as targets; smoothed is over "
        f"{SMOOTHED_OVER} evaluations; ± is the standard deviation between seeds.",
        "",
    ]
    claims = out / "claims.md"
    if claims.exists():
        parts += [
            "## Claims",
            "",
            claims.read_text(encoding="utf-8"),
            "`sotto reproduce mcmahan2018 --claims --out DIR`",
            "",
        ]
    for experiment in experiments:
        file = out / f"{experiment.name}.md"
        if file.exists():
            flag = " ".join(f"--{experiment.name}".rsplit("-", 1)) if experiment.name[-1].isdecimal() else ""
            flag = flag or f"--experiment {experiment.name}"
            command = f"`sotto reproduce mcmahan2018 {flag} --size {setting['size']} --users STORE --out DIR`"
            parts += [file.read_text(encoding="utf-8"), command, ""]
    return "\n".join(parts)


def summarise(trials: Sequence[Trial], size: Size, pool: Pool) -> list[dict[str, Any]]:
    """What is known of each setting, as plain values."""
    rows = []
    for trial in trials:
        found = pool.of(trial)
        if not found:
            continue
        final, reached = pool.final(trial), pool.rounds_to(trial, size)
        assert final is not None
        rows.append({
            "setting": trial.label, "run": trial.name, "seeds": len(found),
            "top1": fmean(outcome.evaluation["top1"] for outcome in found), "top1_smoothed": final.mean,
            "deviation": final.deviation, "rounds_to_target": None if reached is None else reached.mean,
            "users_processed": fmean(outcome.user_updates for outcome in found),
        })  # fmt: skip
    return rows


def _table(trials: Sequence[Trial], size: Size, pool: Pool) -> str:
    header = [
        "setting", "seeds", "top-1", "top-1, smoothed", "perplexity", f"rounds to {size.target:.0%}",
        "users processed", "clipped, at the end", "run",
    ]  # fmt: skip
    rows = []
    for trial in trials:
        found = pool.of(trial)
        reached = pool.rounds_to(trial, size)
        perplexities = [outcome.evaluation["perplexity"] for outcome in found]
        known = [value for value in perplexities if value is not None]
        clipped = [outcome.clipped_share[-1][1] for outcome in found if outcome.clipped_share]
        rows.append([
            trial.label,
            str(len(found)),
            _percent(Spread.of([outcome.evaluation["top1"] for outcome in found])),
            _percent(pool.final(trial)),
            _number(Spread.of(known)) if len(known) == len(found) else "diverged",
            "not reached" if reached is None else f"{reached.mean:,.0f}",
            f"{fmean(outcome.user_updates for outcome in found):,.0f}",
            f"{fmean(clipped):.0%}" if clipped else "",
            f"`{trial.name}`",
        ])  # fmt: skip
    return markdown(header, rows)


def _head_word_table(trials: Sequence[Trial], pool: Pool) -> str:
    header = ["setting", "top-1, smoothed", *(f"of ten predictions, in the top {n}" for n in HEADS)]
    rows = []
    for trial in trials:
        means = [sum(count * share for count, share in enumerate(_histogram(pool, trial, n))) for n in HEADS]
        rows.append([trial.label, _percent(pool.final(trial)), *(f"{mean:.2f}" for mean in means)])
    return markdown(header, rows)


def _percent(spread: Spread | None) -> str:
    if spread is None:
        return ""
    shown = f"{100 * spread.mean:.2f} %"
    return shown if spread.deviation is None else f"{shown} ± {100 * spread.deviation:.2f}"


def _number(spread: Spread) -> str:
    shown = f"{spread.mean:.4g}"
    return shown if spread.deviation is None else f"{shown} ± {spread.deviation:.2g}"
