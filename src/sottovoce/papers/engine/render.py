"""From results to a figure and a table: what an experiment ends with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sottovoce.evaluation.head_words import HEADS
from sottovoce.files import write_aside
from sottovoce.papers.engine.results import Outcome, Pool, smooth, value_at
from sottovoce.papers.engine.tables import markdown, percent
from sottovoce.papers.engine.trial import Experiment, Paper, Size, Trial
from sottovoce.reporting.draw.panels import TOP1, Panel, Point, Row, Scale, Series, draw_histograms, draw_panels
from sottovoce.reporting.draw.style import COLOURS, DEEP, MIDDLE

_EARLY_TO_LATE = ("#9dbdd9", MIDDLE, DEEP)
# A perplexity of four times the best, or a loss of half more, has failed and may leave the frame.
_SCALES = {
    "top1": TOP1,
    "perplexity": Scale("perplexity", percent=False, far=4.0),
    "loss": Scale("cross-entropy", percent=False, far=1.5),
    "local loss": Scale("cross-entropy on the clients", percent=False, far=1.5),
}


def present(paper: Paper, experiment: Experiment, size: Size, pool: Pool, out: Path) -> str:
    """Write the table, and the figure where there is one, of what was run so far. The table is returned."""
    planned = experiment.trials(size)
    trials = [trial for trial in planned if pool.of(trial)]
    parts = [f"## {experiment.title}", ""]
    own = paper.tables.get(experiment.name)
    if own is not None and (trials or not planned):
        parts += [own(size, pool, out), ""]
    if trials:
        try:
            drawing = _draw(paper, experiment, size, pool, trials)
        except ImportError:  # a machine that trains may lack matplotlib
            drawing = None
            parts += ["The figure waits for matplotlib: `sotto reproduce --from-results` draws it.", ""]
        if drawing is not None:
            write_aside(out / f"{experiment.name}.png", drawing)
            parts += [f"![{experiment.title}]({experiment.name}.png)", ""]
        parts.append(paper.rows(trials, size, pool))
        if experiment.view == "histograms":
            parts += ["", _head_word_table(trials, pool)]
    elif planned:
        parts.append("Nothing was run yet.")
    text = "\n".join(parts).rstrip() + "\n"
    write_aside(out / f"{experiment.name}.md", text.encode())
    return text


def _draw(paper: Paper, experiment: Experiment, size: Size, pool: Pool, trials: Sequence[Trial]) -> bytes | None:
    if (own := paper.figures.get(experiment.name)) is not None:
        return own(size, pool)
    if experiment.view == "curves":
        chosen = _panels(trials)
        panels = [
            _curves(title, members, measure, paper.smoothed, pool)
            for title, members in chosen
            for measure in experiment.measures
        ]
        measures = len(experiment.measures)
        return draw_panels(panels, columns=experiment.columns or (measures if measures > 1 else 0))
    if experiment.view == "sweep":
        panels = [_sweep(paper, experiment, title, chosen, size, pool) for title, chosen in _panels(trials)]
        return draw_panels(panels)
    if experiment.view == "histograms":
        rows = [
            Row(f"{percent(pool.final(trial))}   {trial.label}", [_histogram(pool, trial, n) for n in HEADS])
            for trial in trials
        ]
        return draw_histograms([f"in the top {n}" for n in HEADS], rows)
    return None


def _panels(trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    titles = dict.fromkeys(trial.panel for trial in trials)
    return [(title, [trial for trial in trials if trial.panel == title]) for title in titles]


def _curves(title: str, trials: Sequence[Trial], measure: str, smoothed: int, pool: Pool) -> Panel:
    drawn = [(trial.label, _over_rounds(pool.of(trial), measure, smoothed)) for trial in trials]
    series = [
        Series(label, points, COLOURS[place % len(COLOURS)], dotted=place >= len(COLOURS))
        for place, (label, points) in enumerate(drawn)
        if points  # a run that diverged at once has no perplexity to draw
    ]
    start = min(outcome.first for trial in trials for outcome in pool.of(trial))
    return Panel(title, series, start=float(start), scale=_SCALES.get(measure, Scale(measure, percent=False)))


def _over_rounds(outcomes: Sequence[Outcome], measure: str, smoothed: int) -> list[Point]:
    by_round: dict[int, list[float]] = {}
    for outcome in outcomes:
        for number, value in smooth(outcome.measured(measure), smoothed):
            by_round.setdefault(number, []).append(value)
    return [Point(number, fmean(values), min(values), max(values)) for number, values in sorted(by_round.items())]


def _sweep(paper: Paper, experiment: Experiment, title: str, trials: Sequence[Trial], size: Size, pool: Pool) -> Panel:
    """A line for each mark, the second group dotted; where there are more groups, one for each at the last mark."""
    measure = experiment.measures[0]
    groups = list(dict.fromkeys(trial.group for trial in trials))
    by_mark = len(groups) <= 2
    series = []
    for place, group in enumerate(groups):
        members = [trial for trial in trials if trial.group == group]
        for mark, shade in zip(size.marks, _EARLY_TO_LATE, strict=True):
            found = [_at_mark(trial, mark, measure, paper.smoothed, pool) for trial in members]
            points = [point for point in found if point is not None]
            if by_mark:
                series.append(Series(f"round {mark:,}" if place == 0 else "", points, shade, dotted=place > 0))
            elif mark == size.marks[-1]:
                series.append(Series(group, points, COLOURS[place]))
    if by_mark and len(groups) == 2:
        title = f"{groups[0]}; dotted: {groups[1]}"
    upright = experiment.upright(size) if experiment.upright else None
    places = [trial.x for trial in trials if trial.x is not None]
    series = [each for each in series if each.points]
    return Panel(title, series, experiment.x, places, upright, scale=_SCALES[measure])


def _at_mark(trial: Trial, mark: int, measure: str, smoothed: int, pool: Pool) -> Point | None:
    """None where no run has a finite value."""
    assert trial.x is not None
    curves = [(outcome.first, smooth(outcome.measured(measure), smoothed)) for outcome in pool.of(trial)]
    values = [value_at(curve, first + mark) for first, curve in curves if curve]
    if not values:
        return None
    return Point(trial.x, fmean(values), min(values), max(values))


def _histogram(pool: Pool, trial: Trial, head: int) -> list[float]:
    rows = [outcome.head_words[str(head)] for outcome in pool.of(trial)]
    return [fmean(column) for column in zip(*rows, strict=True)]


def page(paper: Paper, setting: dict[str, Any], out: Path) -> str:
    """One page of all tables and figures in a folder, each with the command that makes it."""
    people = "synthetic users" if setting.get("synthetic") else "users"
    parts = [
        f"# {paper.title}",
        "",
        f"Size `{setting['size']}`, {setting['rounds']:,} rounds, {setting['users']:,} {people} to train on, "
        f"{setting['held_out_users']:,} held out, {setting['vocabulary']:,} words, at most "
        f"{setting['tokens_per_user']:,} tokens a user. {paper.about} ± is the standard deviation between seeds.",
        "",
    ]
    claims = out / "claims.md"
    if claims.exists():
        parts += [
            "## Claims",
            "",
            claims.read_text(encoding="utf-8"),
            f"`sotto reproduce {paper.name} --claims --out DIR`",
            "",
        ]
    for experiment in paper.experiments.values():
        file = out / f"{experiment.name}.md"
        if file.exists():
            parts += [file.read_text(encoding="utf-8"), f"`{_command(paper, experiment, setting)}`", ""]
    return "\n".join(parts)


def _command(paper: Paper, experiment: Experiment, setting: dict[str, Any]) -> str:
    """What makes an experiment again, with all the stores that it needs."""
    flag = " ".join(f"--{experiment.name}".rsplit("-", 1)) if experiment.name[-1].isdecimal() else ""
    usual, size = paper.size(setting["size"]), paper.size(setting["size"], setting["rounds"])
    parts = [flag or f"--experiment {experiment.name}", f"--size {size.name}"]
    if size.rounds != usual.rounds:
        parts.append(f"--rounds {size.rounds}")
    if not setting.get("synthetic"):
        trials = [trial for trial, _ in experiment.runs(size)]
        words = max((trial.words for trial in trials), default=1)
        parts.append(" ".join(["--users STORE", *(f"STORE-X{times}" for times in range(2, words + 1))]))
        if any(trial.on == "public" or "public" in trial.needs for trial in trials):
            parts.append("--public PUBLIC")
        if any(trial.on in ("other", "ptb") or (trial.elsewhere and trial.on != "public") for trial in trials):
            parts.append("--other OTHER")
        if any(trial.is_guarded for trial in trials):
            parts.append("--declared-users N")
    return f"sotto reproduce {paper.name} {' '.join(parts)} --out DIR"


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
            "best": {measure: _best(found, measure) for measure in ("top1", "perplexity", "loss")},
        })  # fmt: skip
    return rows


def _best(found: Sequence[Outcome], measure: str) -> dict[str, float] | None:
    """Means over seeds of the best value and of the round it was reached in; None where a run had none."""
    best = [outcome.best(measure) for outcome in found]
    known = [each for each in best if each is not None]
    if len(known) < len(best):
        return None
    return {"value": fmean(value for _, value in known), "round": fmean(number for number, _ in known)}


def _head_word_table(trials: Sequence[Trial], pool: Pool) -> str:
    header = ["setting", "top-1, smoothed", *(f"of ten predictions, in the top {n}" for n in HEADS)]
    rows = []
    for trial in trials:
        means = [sum(count * share for count, share in enumerate(_histogram(pool, trial, n))) for n in HEADS]
        rows.append([trial.label, percent(pool.final(trial)), *(f"{mean:.2f}" for mean in means)])
    return markdown(header, rows)
