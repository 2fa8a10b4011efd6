"""Several runs on one page: useful against private, curves over one another, what was proved and found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from sottovoce.evaluation.figures import Evaluation, last_evaluation
from sottovoce.reporting.draw.curves import Figure, Level, Line
from sottovoce.reporting.draw.lanes import draw_spread
from sottovoce.reporting.draw.panels import Row, draw_histograms
from sottovoce.reporting.draw.style import COLOURS, INK, short, to_svg
from sottovoce.reporting.draw.utility import Spot, draw_utility
from sottovoce.reporting.findings import Finding, public
from sottovoce.reporting.notebook import html_frame
from sottovoce.reporting.pages import Drawing, Table, render_page
from sottovoce.reporting.report import finite_points, levels_of, measured
from sottovoce.runs.baselines import Baselines
from sottovoce_evidence.errors import count_of
from sottovoce_evidence.files import Json
from sottovoce_evidence.statement import Statement
from sottovoce_evidence.statement_text import epsilon_text, finite, percent, plain

MOST_RUNS = 26
THESE, OF_TRAINING = "the same users", "users of the run's evaluations"
PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Compared:
    """A run among others. What was measured for the comparison, on the same people for all, may be missing."""

    name: str
    model: str
    statement: Statement
    record: list[Json]
    tokens: str = ""  # the fingerprint of its tokenizer
    tokens_are_words: bool = True
    bytes: int = 0  # of the text of the comparison: internal; 0 where it was not measured
    budget: float | None = None
    findings: tuple[Finding, ...] = ()
    evaluation: Evaluation | None = None  # on the people of the comparison
    within: float | None = None  # half the interval of its top-1
    head_words: dict[str, list[float]] | None = None
    spread: dict[str, float] | None = None  # over single users: internal
    baselines: Baselines | None = None


@dataclass(frozen=True)
class Comparison:
    """`people`: on whom the runs were measured, in words. What is the owner's is shown only if `internal`."""

    runs: Sequence[Compared]
    people: str = ""
    internal: bool = False
    notes: Sequence[tuple[str, str]] = ()
    bases: Mapping[str, Evaluation] = field(default_factory=dict)  # by name, measured on the same people

    @property
    def baselines(self) -> dict[str, Evaluation]:
        """Those of all runs, by name; those of other users by name and run."""
        found, drawn = dict(self.drawn_baselines), self.drawn_baselines
        for run in self.runs:
            scores = run.baselines.scores if run.baselines else {}
            others = {name: score for name, score in scores.items() if drawn.get(name) != score}
            found |= {f"{name} ({run.name})": score for name, score in others.items() if not self._is_named(name)}
        return found

    def _is_named(self, name: str) -> bool:
        """Is a baseline a base that was named, and so measured again?"""
        return name.removeprefix("the start, ") in self.bases

    @property
    def drawn_baselines(self) -> dict[str, Evaluation]:
        """Those of the first run, and of the runs that agree with it: another score for a name is of other users."""
        found: dict[str, Evaluation] = {}
        for run in self.runs:
            scores = run.baselines.scores if run.baselines else {}
            if all(found.get(name, score) == score for name, score in scores.items()):
                found |= {name: score for name, score in scores.items() if not self._is_named(name)}
        return {**found, **self.bases}

    @property
    def same_tokens(self) -> bool:
        """May figures per token be compared? Those of different words may not: they differ in what is unknown."""
        return len({run.tokens for run in self.runs}) == 1

    @property
    def same_words(self) -> bool:
        """May top-1 be compared? Between vocabularies of words too: what is unknown is a mistake."""
        return self.same_tokens or all(run.tokens_are_words for run in self.runs)

    def rows(self) -> list[dict[str, str]]:
        """The runs and the baselines as a table."""
        named = self.baselines.items()
        over_words = any((found := _measured(run)[1]) and found.top1_words is not None for run in self.runs)
        runs = [_run_row(run, over_words or not self.same_tokens) for run in self.runs]
        scores = (_score_row(name, score, name in self.bases) for name, score in named)
        return [*runs, *({column: score.get(column, "–") for column in runs[0]} for score in scores)]

    def notices(self) -> list[tuple[str, str]]:
        """What a reader must know: title and text."""
        notices = list(self.notes)
        private = [run for run in self.runs if run.statement.has_guarantee]
        if not self.same_words:
            text = "Top-1 and perplexity are per token, and cannot be compared between runs with different tokens. "
            notices.append(("Different tokens", text + "Bits per byte and the top-1 of whole words can."))
        elif not self.same_tokens:
            text = "Perplexity cannot be compared between runs with different vocabularies. Bits per byte can, and "
            notices.append(("Different vocabularies", text + "top-1, where words outside a vocabulary are mistakes."))
        for fact, words in (("delta", "δ"), ("relation", "what may change between two data sets")):
            if len({str(getattr(run.statement, fact)) for run in private}) > 1:
                text = f"The runs differ in {words}: their ε cannot be compared as they are."
                notices.append(("Unlike guarantees", text + (_replaced(private) if fact == "relation" else "")))
        if projected := [run.name for run in private if run.statement.is_unfinished]:
            text = f"ε is projected, for all planned rounds, of: {', '.join(projected)}."
            notices.append(("Unfinished runs", text))
        if seeded := [run.name for run in private if run.statement.is_seeded]:
            text = f"Noise and sampling follow from a seed; anyone who knows it can undo them, in: {', '.join(seeded)}."
            notices.append(("Seeded secrets", text))
        if practice := [run.name for run in self.runs if run.statement.practice]:
            text = f"Trained on made-up text; accuracy says nothing about real people, of: {', '.join(practice)}."
            notices.append(("Synthetic people", text))
        return notices

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(run.name for run in self.runs)}>"

    def _repr_html_(self) -> str:
        return html_frame(render_comparison(self))

    def to_json(self) -> Json:
        return {
            "internal": self.internal,
            "people": self.people or None,
            "notes": [text for _, text in self.notices()],
            "runs": [_run_json(run, self.internal) for run in self.runs],
            "baselines": {name: score.to_json() for name, score in self.baselines.items()},
        }


def _run_json(run: Compared, internal: bool) -> Json:
    statement = run.statement
    at, evaluation = _measured(run)
    rows = run.findings if internal else public(run.findings)
    facts = {
        "name": run.name,
        "model": run.model,
        "private": statement.has_guarantee,
        "epsilon": statement.epsilon if statement.has_guarantee else None,
        "delta": statement.delta if statement.has_guarantee else None,
        "projected": statement.has_guarantee and statement.is_unfinished,
        "rounds_done": statement.rounds_done,
        "rounds_planned": statement.rounds_planned,
        "evaluation": {"round": at, **evaluation.to_json()} if evaluation else None,
        "measured_together": run.evaluation is not None,
        "top1_within": run.within,
        "head_words": run.head_words,
        "findings": [row.to_json() for row in rows],
    }
    return facts | ({"spread": run.spread} if internal else {})


def render_comparison(comparison: Comparison) -> str:
    """The whole page."""
    return render_page("compare.html.jinja", _view(comparison))


def _view(comparison: Comparison) -> Json:
    runs, internal = comparison.runs, comparison.internal
    return {
        "title": ", ".join([*(run.name for run in runs), *comparison.bases]),
        "heading": _heading(len(runs), len(comparison.bases)),
        "internal": internal,
        "notices": comparison.notices(),
        "people": comparison.people,
        "rows": comparison.rows(),
        "colours": [colour for colour, _ in _coloured(runs)],
        "utility": _utility(comparison),
        "curves": _curves(comparison),
        "head_words": _head_words(runs),
        "audits": _audits(runs, internal),
        "spread": _spread(runs) if internal else None,
        "version": runs[0].statement.software.get("sottovoce", ""),
    }


def _heading(runs: int, bases: int) -> str:
    if runs + bases == 1:
        return "One run and its baselines"
    return f"{runs + bases} models compared" if bases else f"{runs} runs compared"


def _coloured(runs: Sequence[Compared]) -> Iterator[tuple[str, Compared]]:
    return zip(cycle(COLOURS), runs)


def _measured(run: Compared) -> tuple[int, Evaluation | None]:
    """The evaluation that is shown: that of the comparison, or else the record's last."""
    if run.evaluation is not None:
        return run.statement.rounds_done, run.evaluation
    return last_evaluation(run.record)


def _replaced(runs: Sequence[Compared]) -> str:
    """ε under the relation that every guarantee has, of those that are shown under another."""
    known = [run for run in runs if run.statement.epsilon_replaced is not None]
    figures = ", ".join(f"{run.name} has {epsilon_text(run.statement.epsilon_replaced)}" for run in known)
    return f" When one user is replaced by another, {figures}." if known else ""


def _run_row(run: Compared, over_words: bool) -> dict[str, str]:
    statement, (at, evaluation) = run.statement, _measured(run)
    guarantee, figures = "no guarantee", _figures(evaluation)
    if statement.has_guarantee:
        projected = ", projected" if statement.is_unfinished else ""
        guarantee = f"{epsilon_text(statement.epsilon)} at δ = {plain(statement.delta)}{projected}"
    return {
        "Run": run.name,
        "ε": guarantee,
        "Top-1": _with_interval(evaluation.top1 if evaluation else None, run.within),
        **({"Top-1 over words": figures["Top-1 over words"]} if over_words else {}),
        "Perplexity": figures["Perplexity"],
        "Bits per byte": figures["Bits per byte"],
        "Measured on": THESE if run.evaluation is not None else f"its own users, round {at:,}" if evaluation else "–",
        "Rounds": f"{statement.rounds_done:,} of {statement.rounds_planned:,}",
        "Model": run.model,
    }


def _score_row(name: str, score: Evaluation, measured_here: bool) -> dict[str, str]:
    where = THESE if measured_here else OF_TRAINING
    shown = {"Top-1": percent(score.top1, 2), **_figures(score), "Measured on": where}
    return {"Run": name, "ε": "public text", **shown, "Rounds": "", "Model": ""}


def _figures(evaluation: Evaluation | None) -> dict[str, str]:
    """Those besides top-1, by their columns."""
    if evaluation is None:
        return dict.fromkeys(("Top-1 over words", "Perplexity", "Bits per byte"), "–")
    return {
        "Top-1 over words": _top1_words(evaluation),
        "Perplexity": _perplexity(evaluation.perplexity),
        "Bits per byte": _bits(evaluation.bits_per_byte),
    }


def _perplexity(value: float | None) -> str:
    number = finite(value)
    return "–" if number is None else plain(number if number < 1000 else round(number))


def _bits(value: float | None) -> str:
    number = finite(value)
    return "–" if number is None else f"{number:.3f}"


def _top1_words(evaluation: Evaluation) -> str:
    if evaluation.top1_words is None:
        return "–"
    at = f", at {count_of(evaluation.words, 'word')}" if evaluation.words else ""
    return percent(evaluation.top1_words, 2) + at


def _with_interval(value: float | None, within: float | None) -> str:
    if value is None:
        return "–"
    return percent(value, 2) + (f" ± {100 * within:.2f}" if within is not None else "")


def _utility(comparison: Comparison) -> Drawing | None:
    spots, rows = [], []
    key, name = ("top1", "Top-1") if comparison.same_words else ("top1_words", "Top-1 over words")
    for colour, run in _coloured(comparison.runs):
        top1 = finite(getattr(_measured(run)[1], key, None))
        if top1 is None:
            continue
        within = run.within if comparison.same_words else None
        private = run.statement.has_guarantee
        epsilon = run.statement.epsilon if private else None
        spots.append(Spot(run.name, colour, epsilon, top1, within, private and run.statement.is_unfinished))
        shown = epsilon_text(epsilon) if private else "no guarantee"
        rows.append((run.name, [shown, _with_interval(top1, within)]))
    if not spots:
        return None
    words = f"{name} on held-out users against the ε that is proved. Dashed: runs without a guarantee"
    if levels := levels_of(comparison.drawn_baselines, key) if comparison.same_words else []:
        words += ", and what public text alone gives"
        if comparison.drawn_baselines.keys() < comparison.baselines.keys():
            words += f" the users of {next(run.name for run in comparison.runs if run.baselines)}"
        spots += [Spot(level.label, INK, None, level.value) for level in levels]
        rows += [(level.label, ["public text", percent(level.value, 2)]) for level in levels]
    words += "."
    if len([spot for spot in spots if spot.epsilon is not None]) > 1:
        words += " The line joins the runs that no other beats at the same ε or less."
    if any(spot.within is not None for spot in spots):
        words += " Bars and bands: 95% confidence, over users."
    if any(spot.projected for spot in spots):
        words += " Open circles: ε is projected."
    table = Table(f"Numbers of {name.lower()} against ε", "run", ["ε", name.lower()], rows)
    return Drawing(f"{name} against ε", words, draw_utility(spots), table)


def _curves(comparison: Comparison) -> list[Drawing]:
    runs = comparison.runs
    budgets = sorted({run.budget for run in runs if run.budget is not None and run.statement.has_guarantee})
    several = len(budgets) > 1
    levels = [Level(f"budget {epsilon_text(budget, 6)}" if several else "budget", budget) for budget in budgets]

    def lines(key: str) -> list[Line]:
        return [Line(run.name, measured(run.record, key), colour) for colour, run in _coloured(runs)]

    spent = [
        Line(run.name, finite_points(run.record, "epsilon") if run.statement.has_guarantee else [], colour)
        for colour, run in _coloured(runs)
    ]
    below, above = (levels_of(comparison.drawn_baselines, key) for key in ("top1", "perplexity"))
    top1 = Figure("top1", "Top-1 by round", "share of targets", lines("top1"), below, percent=True)
    perplexity = Figure("perplexity", "Perplexity by round", "perplexity", lines("perplexity"), above, widen=True)
    bits = Figure("bits", "Bits per byte by round", "bits per byte", lines("bits_per_byte"), widen=True)
    epsilon = Figure("epsilon", "Privacy spent by round", "ε", spent, levels, bound=True)
    words = "ε spent after each round, of runs with a guarantee. A run claims the ε of all its planned rounds."
    nothing = "Nothing was recorded."
    drawings = [epsilon.drawing(words, nothing)]
    if any(line.points for line in bits.lines):
        drawings.insert(0, bits.drawing("As recorded in each run, whatever its tokens are. Lower is better.", nothing))
    if comparison.same_tokens:
        drawings.insert(0, perplexity.drawing("As recorded in each run, per token. Lower is better.", nothing))
    if comparison.same_words:
        drawings.insert(0, top1.drawing("As recorded in each run, on its held-out users.", nothing))
    return drawings


def _head_words(runs: Sequence[Compared]) -> Drawing | None:
    known = [(run.name, run.head_words) for run in runs if run.head_words]
    if not known:
        return None
    sizes = list(known[0][1])
    drawn = [Row(short(name), [found[size] for size in sizes]) for name, found in known]
    rows, means = [], []
    for name, found in known:
        for size in sizes:
            mean = sum(count * share for count, share in enumerate(found[size]))
            rows.append((f"{name}, top {size}", [f"{mean:.2f}", *(percent(share) for share in found[size])]))
            means.append(f"{name}: {mean:.2f} of ten in the top {size}.")
    columns = ["mean", *(str(count) for count in range(len(known[0][1][sizes[0]])))]
    words = (
        "Of the ten likeliest words at each target, how many are among the 10, 50 or 100 most frequent of the held-out "
        "users' own; the line is the mean. A model that noise has blurred leans towards frequent words."
    )
    table = Table("Numbers of head words", "run, head", columns, rows, "Shares of targets, by how many of the ten.")
    about = ("head-words", "Head words among ten predictions", " ".join(means))
    svg = draw_histograms([f"in the top {size}" for size in sizes], drawn, lambda canvas: to_svg(canvas, *about))
    return Drawing("Head words", words, svg, table)


def _audits(runs: Sequence[Compared], internal: bool) -> Json:
    """A row for each thing that is proved or can be found, a column for each run."""
    each = [list(run.findings) if internal else public(run.findings) for run in runs]
    rows = [
        {"name": found[0].what, "kind": found[0].kind, "cells": [(one.result, one.was_run) for one in found]}
        for found in zip(*each, strict=True)
    ]
    return {"columns": [run.name for run in runs], "rows": rows}


def _spread(runs: Sequence[Compared]) -> Drawing | None:
    lanes, rows = [], []
    for colour, run in _coloured(runs):
        if run.spread:
            values = [run.spread[f"top1_p{share}"] for share in PERCENTILES]
            lanes.append((short(run.name), colour, values))
            rows.append((run.name, [percent(value) for value in values]))
    if not lanes:
        return None
    columns = [f"{share}th" if share != 50 else "median" for share in PERCENTILES]
    words = "Top-1 of single held-out users: the 5th to the 95th percentile, the middle half, and the median."
    table = Table("Numbers of top-1 over users", "run, percentile", columns, rows)
    return Drawing("How much users differ", words, draw_spread(lanes), table)
