"""Draw the figure and write the table of an experiment from its results, and one page of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TypedDict

from sottovoce.evaluation.head_words import HEADS
from sottovoce.files import write_aside
from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.engine.results import Outcome, ResultStore, smooth, value_at
from sottovoce.papers.engine.setting import Setting
from sottovoce.papers.engine.tables import markdown, percent
from sottovoce.papers.engine.trial import Experiment, Size, Trial
from sottovoce.reporting.draw.panels import TOP1, Panel, Point, Row, Scale, Series, draw_histograms, draw_panels
from sottovoce.reporting.draw.style import ACCENT, COLOURS, DEEP, MIDDLE

_EARLY_TO_LATE = ("#9dbdd9", MIDDLE, DEEP)
# Values beyond `far` times the best may leave the frame: such a run has failed.
_SCALES = {
    "top1": TOP1,
    "perplexity": Scale("perplexity", percent=False, far=4.0),
    "loss": Scale("cross-entropy", percent=False, far=1.5),
    "local loss": Scale("cross-entropy on the clients", percent=False, far=1.5),
}


@dataclass(frozen=True)
class Renderer:
    """Renders experiments of one paper at one size from the results in a folder."""

    paper: Paper
    size: Size
    results: ResultStore
    out: Path

    def render(self, experiment: Experiment) -> str:
        """Write the table, and the figure where there is one, of what was run so far. The table is returned."""
        planned = experiment.trials(self.size)
        trials = [trial for trial in planned if self.results.outcomes(trial)]
        parts = [f"## {experiment.title}", ""]
        own = self.paper.tables.get(experiment.name)
        if own is not None and (trials or not planned):
            parts += [own(self.size, self.results, self.out), ""]
        if trials:
            try:
                drawing = self._draw(experiment, self.results.best_of_grids(trials))
            except ImportError:  # a machine that trains may lack matplotlib
                drawing = None
                parts += ["The figure waits for matplotlib: `sotto reproduce --from-results` draws it.", ""]
            if drawing is not None:
                write_aside(self.out / f"{experiment.name}.png", drawing)
                parts += [f"![{experiment.title}]({experiment.name}.png)", ""]
            parts.append(self.paper.rows(trials, self.size, self.results))
            if experiment.view == "histograms":
                parts += ["", _head_word_table(trials, self.results)]
        elif planned:
            parts.append("Nothing was run yet.")
        text = "\n".join(parts).rstrip() + "\n"
        write_aside(self.out / f"{experiment.name}.md", text.encode())
        return text

    def table(self, experiment: Experiment) -> str:
        """Its own table, or one with a row for each setting that was run."""
        if (own := self.paper.tables.get(experiment.name)) is not None:
            return own(self.size, self.results, self.out)
        trials = [trial for trial in experiment.trials(self.size) if self.results.outcomes(trial)]
        return self.paper.rows(trials, self.size, self.results)

    def _draw(self, experiment: Experiment, trials: Sequence[Trial]) -> bytes | None:
        if (own := self.paper.figures.get(experiment.name)) is not None:
            return own(self.size, self.results)
        if experiment.view == "curves":
            panels = [
                self._curves(title, members, measure)
                for title, members in _panels(trials)
                for measure in experiment.measures
            ]
            measures = len(experiment.measures)
            return draw_panels(panels, columns=experiment.columns or (measures if measures > 1 else 0))
        if experiment.view == "sweep" and any(trial.place.x is not None for trial in trials):
            return draw_panels([self._sweep(experiment, title, members) for title, members in _panels(trials)])
        if experiment.view == "histograms":
            return _draw_head_words(trials, self.results)
        return None

    def _curves(self, title: str, trials: Sequence[Trial], measure: str) -> Panel:
        outcomes = [self.results.outcomes(trial) for trial in trials]
        drawn = [_over_rounds(runs, measure, self.paper.smoothing) for runs in outcomes]
        series = [
            Series(trial.label, points, COLOURS[place % len(COLOURS)], dotted=place >= len(COLOURS))
            for place, (trial, points) in enumerate(zip(trials, drawn, strict=True))
            if points  # a run that diverged at once has no perplexity to draw
        ]
        start = min(outcome.first for runs in outcomes for outcome in runs)
        return Panel(title, series, start=float(start), scale=_SCALES.get(measure, Scale(measure, percent=False)))

    def _sweep(self, experiment: Experiment, title: str, trials: Sequence[Trial]) -> Panel:
        """One line for each mark, dotted for the second group; with more groups, one line each at the last mark.

        A trial without a place on the axis is a level: a line from left to right, at the last mark. One that has failed
        is left out, as it would flatten the rest.
        """
        measure, marks = experiment.measures[0], self.size.marks
        levels = [trial for trial in trials if trial.place.x is None]
        trials = [trial for trial in trials if trial.place.x is not None]
        groups = list(dict.fromkeys(trial.place.group for trial in trials))
        by_mark = len(groups) <= 2
        series = []
        for place, group in enumerate(groups):
            members = [trial for trial in trials if trial.place.group == group]
            for mark, shade in zip(marks, _EARLY_TO_LATE, strict=True):
                found = [self._at_mark(trial, trial.place.x, mark, measure) for trial in members]
                if by_mark:
                    label = f"round {mark:,}" if place == 0 else ""
                    series += _lines(Series(label, [], shade, dotted=place > 0), found)
                elif mark == marks[-1]:
                    series += _lines(Series(group, [], COLOURS[place]), found)
        if by_mark and len(groups) == 2:
            title = f"{groups[0]}; dotted: {groups[1]}"
        line = experiment.vertical_line(self.size) if experiment.vertical_line else None
        places = [trial.place.x for trial in trials if trial.place.x is not None]
        scale = _SCALES[measure]
        reached = [point.mean for each in series for point in each.points]
        for trial in levels:
            found = [self._at_mark(trial, x, marks[-1], measure) for x in (min(places), max(places))]
            ends = [end for end in found if end is not None and not scale.has_failed(end.mean, reached)]
            series += [Series(trial.label, ends, ACCENT)] if ends else []
        return Panel(title, series, experiment.x, places, line, scale=scale)

    def _at_mark(self, trial: Trial, x: float | None, mark: int, measure: str) -> Point | None:
        """The point of a trial at a mark, of the runs that had not diverged by then; None where there are none."""
        assert x is not None
        values = [
            value_at(smooth(curve, self.paper.smoothing), outcome.first + mark)
            for outcome in self.results.outcomes(trial)
            if (curve := outcome.measured(measure)) and not outcome.has_diverged(outcome.first + mark)
        ]
        return Point.of(x, values) if values else None


def _lines(line: Series, found: Sequence[Point | None]) -> list[Series]:
    """A line through points, broken where a setting has none; the last part has its name."""
    known = [[*part] for is_known, part in groupby(found, lambda point: point is not None) if is_known]
    parts = [[point for point in part if point is not None] for part in known]
    return [replace(line, label=line.label if part is parts[-1] else "", points=part) for part in parts]


def _panels(trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    titles = dict.fromkeys(trial.place.panel for trial in trials)
    return [(title, [trial for trial in trials if trial.place.panel == title]) for title in titles]


def _over_rounds(outcomes: Sequence[Outcome], measure: str, smoothed: int) -> list[Point]:
    by_round: dict[int, list[float]] = {}
    for outcome in outcomes:
        for number, value in smooth(outcome.measured(measure), smoothed):
            by_round.setdefault(number, []).append(value)
    return [Point.of(number, values) for number, values in sorted(by_round.items())]


def _draw_head_words(trials: Sequence[Trial], results: ResultStore) -> bytes:
    rows = [
        Row(f"{percent(results.final(trial))}   {trial.label}", [_histogram(results, trial, n) for n in HEADS])
        for trial in trials
    ]
    return draw_histograms([f"in the top {n}" for n in HEADS], rows)


def _histogram(results: ResultStore, trial: Trial, head: int) -> list[float]:
    rows = [outcome.head_words[str(head)] for outcome in results.outcomes(trial)]
    return [fmean(column) for column in zip(*rows, strict=True)]


def render_page(paper: Paper, setting: Setting, out: Path) -> str:
    """One page of all tables and figures in a folder, each with the command that makes it."""
    users = "synthetic users" if setting.synthetic else "users"
    parts = [
        f"# {paper.title}",
        "",
        f"Size `{setting.size}`, {setting.rounds:,} rounds, {setting.users:,} {users} to train on, "
        f"{setting.held_out_users:,} held out, {setting.vocabulary:,} words, at most "
        f"{setting.tokens_per_user:,} tokens a user. {paper.about} ± is the standard deviation between seeds.",
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


def _command(paper: Paper, experiment: Experiment, setting: Setting) -> str:
    """The command that runs an experiment, with all the stores that it needs."""
    flag = " ".join(f"--{experiment.name}".rsplit("-", 1)) if experiment.name[-1].isdecimal() else ""
    default, size = paper.size(setting.size), paper.size(setting.size, setting.rounds)
    parts = [flag or f"--experiment {experiment.name}", f"--size {size.name}"]
    if size.rounds != default.rounds:
        parts.append(f"--rounds {size.rounds}")
    if not setting.synthetic:
        trials = [trial for trial, _ in experiment.runs(size)]
        corpora = [trial.corpus for trial in trials]
        words = max((trial.words for trial in trials), default=1)
        parts.append(" ".join(["--users STORE", *(f"STORE-X{times}" for times in range(2, words + 1))]))
        if any(corpus.trained_on == "public" or corpus.with_public_text for corpus in corpora):
            parts.append("--public PUBLIC")
        if any(corpus.trained_on in ("other", "ptb") for corpus in corpora):
            parts.append("--other OTHER")
        if any(trial.is_protected for trial in trials):
            parts.append("--declared-users N")
    return f"sotto reproduce {paper.name} {' '.join(parts)} --out DIR"


class Best(TypedDict):
    value: float
    round: float


class Summary(TypedDict):
    """What is known of one trial, as `sotto reproduce --json` prints it. Values are means over seeds."""

    setting: str
    run: str
    seeds: int
    top1: float
    top1_smoothed: float
    deviation: float | None
    rounds_to_target: float | None
    users_processed: float
    best: dict[str, Best | None]


def summarise(trials: Sequence[Trial], size: Size, results: ResultStore) -> list[Summary]:
    rows: list[Summary] = []
    for trial in trials:
        outcomes = results.outcomes(trial)
        if not outcomes:
            continue
        final, reached = results.final(trial), results.rounds_to(trial, size)
        assert final is not None
        rows.append(
            {
                "setting": trial.label,
                "run": trial.name,
                "seeds": len(outcomes),
                "top1": fmean(outcome.evaluation.top1 for outcome in outcomes),
                "top1_smoothed": final.mean,
                "deviation": final.deviation,
                "rounds_to_target": None if reached is None else reached.mean,
                "users_processed": fmean(outcome.user_updates for outcome in outcomes),
                "best": {measure: _best(outcomes, measure) for measure in ("top1", "perplexity", "loss")},
            }
        )
    return rows


def _best(outcomes: Sequence[Outcome], measure: str) -> Best | None:
    """Means over seeds of the best value and of its round; None where a run has none."""
    best = [outcome.best(measure) for outcome in outcomes]
    known = [each for each in best if each is not None]
    if len(known) < len(best):
        return None
    return {"value": fmean(value for _, value in known), "round": fmean(number for number, _ in known)}


def _head_word_table(trials: Sequence[Trial], results: ResultStore) -> str:
    header = ["setting", "top-1, smoothed", *(f"of ten predictions, in the top {n}" for n in HEADS)]
    rows = []
    for trial in trials:
        means = [sum(count * share for count, share in enumerate(_histogram(results, trial, n))) for n in HEADS]
        rows.append([trial.label, percent(results.final(trial)), *(f"{mean:.2f}" for mean in means)])
    return markdown(header, rows)
