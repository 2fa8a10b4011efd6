"""Tables and figures of Popov et al. 2018, beside what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from sottovoce.papers.engine.results import Outcome, Pool
from sottovoce.papers.engine.tables import markdown
from sottovoce.papers.engine.trial import Size, Trial
from sottovoce.papers.popov2018.measures import PUBLIC, USERS, tail_of
from sottovoce.papers.popov2018.trials import (
    PRINTED,
    PTB_AVERAGED,
    PTB_GIGABYTES,
    PTB_SPARSE,
    TABLE_3,
    TABLE_4,
    benchmark,
    forgetful,
    pretrained,
    rehearsed,
    tails,
)
from sottovoce.reporting.draw.audits import draw_tail
from sottovoce.reporting.draw.panels import Panel, Point, Scale, Series, draw_panels
from sottovoce.reporting.draw.style import COLOURS

_COLUMNS = (  # where a column of Tables 1 and 2 lies in the facts of a run
    ("public_text", "perplexity"), ("public_text", "keystroke_saving"),
    ("users_text", "perplexity"), ("users_text", "keystroke_saving"),
)  # fmt: skip
_PERPLEXITY = Scale("perplexity", percent=False, whole=True)


def setting_table(trials: Sequence[Trial], size: Size, pool: Pool) -> str:
    """A row a trial, in brackets what is printed."""
    if trials[0].on == "ptb":
        return _benchmark_table(size, pool)
    header = [
        "method", "runs", "public text: perplexity", "KSS, %", "users' text: perplexity", "KSS, %",
        "average perplexity", "user updates", "run",
    ]  # fmt: skip
    rows = []
    for trial in trials:
        found, printed = pool.of(trial), PRINTED.get(trial.name)
        values = [[_value(outcome, *column) for outcome in found] for column in _COLUMNS]
        values.append([outcome.facts["average_perplexity"] for outcome in found])
        shown = [_beside(column, printed[place] if printed else None) for place, column in enumerate(values)]
        trained = "" if trial.is_central else f"{fmean(outcome.user_updates for outcome in found):,.0f}"
        rows.append([trial.label, str(len(found)), *shown, trained, f"`{trial.name}`"])
    return markdown(header, rows)


def _value(outcome: Outcome, text: str, measure: str) -> float | None:
    value = outcome.facts[text][measure]
    return 100 * value if measure == "keystroke_saving" and value is not None else value


def _beside(values: Sequence[float | None], printed: float | None) -> str:
    known = [value for value in values if value is not None]
    shown = f"{fmean(known):.1f}" if len(known) == len(values) else "diverged"
    return shown if printed is None else f"{shown} ({printed:g})"


def told_tails(size: Size, pool: Pool) -> dict[str, Any] | None:
    """Of the first run, as the paper has one of each."""
    found = pool.of(tails(size))
    return found[0].facts["tails"] if found else None


def table_3(size: Size, pool: Pool, out: Path) -> str:
    told = told_tails(size, pool)
    assert told is not None
    header = ["pair", "texts of", "log x₀", "α", "C", "√k D", "p", "printed α", "C", "√k D"]
    rows = []
    for place, pair in enumerate(told["pairs"]):
        number = place // 2
        with_user = pair["texts_of"] == "with"
        printed = [f"{value:g}" for value in TABLE_3[number]] if with_user and number < len(TABLE_3) else ["", "", ""]
        figures = [_short(pair[name]) for name in ("log_start", "alpha", "constant", "statistic", "p_value")]
        rows.append([str(number + 1), "θ" if with_user else "θ'", *figures, *printed])
    rejected = sum(pair["rejected"] for pair in told["pairs"])
    note = (
        f"{told['texts']:,} texts of ten words each; θ was trained with a user and θ' without. The test rejects "
        f"{rejected} of {len(told['pairs'])} tails at 5 % (printed: 1 of {len(TABLE_3)}). Printed pairs are of others."
    )
    return f"{markdown(header, rows)}\n\n{note}"


def table_4(size: Size, pool: Pool, out: Path) -> str:
    told = told_tails(size, pool)
    assert told is not None
    header = ["δ", *(f"{delta:g}" for delta in told["deltas"])]
    rows = [["ε printed", *(f"{value:g}" for value in TABLE_4)]]
    choices = {
        "ε, texts of θ": [pair for pair in told["pairs"] if pair["texts_of"] == "with"],
        "ε, both ways": told["pairs"],
        "ε, both ways, of tails that are not rejected": [pair for pair in told["pairs"] if not pair["rejected"]],
    }
    for words, chosen in choices.items():
        if chosen:
            columns = zip(*(pair["epsilons"] for pair in chosen), strict=True)
            rows.append([words, *(f"{max(column):.2f}" for column in columns)])
    note = "The largest of all pairs: an estimate from sampled texts, not a guarantee. No noise was added to anything."
    return f"{markdown(header, rows)}\n\n{note}"


def _short(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"


def figure_2(size: Size, pool: Pool) -> bytes | None:
    """Both texts, with rehearsal on the left and without on the right."""
    start = [outcome.facts for outcome in pool.of(pretrained(size))]
    panels = []
    for title, trial in (("with rehearsal", rehearsed(size)), ("without rehearsal", forgetful(size))):
        series = []
        for colour, (label, name, text) in zip(
            COLOURS, (("users' text", USERS, "users_text"), ("public text", PUBLIC, "public_text")), strict=False
        ):
            begun = [(0, facts[text]["perplexity"]) for facts in start if facts[text]["perplexity"] is not None]
            curves = [[*begun[:1], *outcome.measured(name)] for outcome in pool.of(trial)]
            points = [_point(column) for column in zip(*curves, strict=False)]
            if points:
                series.append(Series(label, points, colour))
        if series:
            panels.append(Panel(title, series, scale=_PERPLEXITY))
    return draw_panels(panels) if panels else None


def _point(column: Sequence[tuple[int, float]]) -> Point:
    values = [value for _, value in column]
    return Point(column[0][0], fmean(values), min(values), max(values))


def figure_3(size: Size, pool: Pool) -> bytes | None:
    told = told_tails(size, pool)
    return None if told is None or told["shown"] is None else draw_tail(*tail_of(told["shown"]))


def by_gigabytes(size: Size, pool: Pool) -> list[tuple[int, float, float | None]]:
    """Rounds, the gigabytes one node has sent by then, and perplexity: of the first seed, up to the first gap."""
    rows: list[tuple[int, float, float | None]] = []
    for trial in benchmark(size):
        found = pool.of(trial)
        if not found:
            break
        sent = found[0].facts["bytes"]["up"] / 1e9
        rows += [(number, number * sent, perplexity) for number, _, perplexity in found[0].curve]
    return rows


def _benchmark_table(size: Size, pool: Pool) -> str:
    curve = by_gigabytes(size, pool)
    seconds = list(accumulate(pool.of(trial)[0].seconds or 0.0 for trial in benchmark(size) if pool.of(trial)))
    rows = [
        [str(number), _gigabytes(sent), "diverged" if perplexity is None else f"{perplexity:.2f}"]
        for number, sent, perplexity in curve
    ]
    rows += [
        ["28, printed", f"{PTB_GIGABYTES:g}", f"{PTB_AVERAGED:g}"],
        ["Lin et al. 2017, printed", f"{PTB_GIGABYTES:g}", f"{PTB_SPARSE:g}"],
    ]
    note = f"{len(curve)} of {len(benchmark(size))} rounds were run, {seconds[-1] if seconds else 0:.0f} s of training."
    return f"{markdown(['rounds', 'gigabytes a node sent', 'perplexity'], rows)}\n\n{note}"


def _gigabytes(sent: float) -> str:
    """Small models send little."""
    return f"{sent:.2f}" if sent >= 0.01 else f"{sent:.1g}"


def figure_ptb(size: Size, pool: Pool) -> bytes | None:
    """What is below twice the printed perplexity, if anything is: the first rounds would flatten all others."""
    known = [(sent, perplexity) for _, sent, perplexity in by_gigabytes(size, pool) if perplexity is not None]
    if not known:
        return None
    near = [(sent, value) for sent, value in known if value <= 2 * PTB_AVERAGED]
    series = [Series("averaged here", [Point(sent, value, value, value) for sent, value in near or known])]
    for place, (label, value) in enumerate((("averaged, printed", PTB_AVERAGED), ("sparse, printed", PTB_SPARSE)), 1):
        series.append(Series(label, [Point(PTB_GIGABYTES, value, value, value)], COLOURS[place]))
    title = "from twice the printed one down" if near else ""
    return draw_panels([Panel(title, series, "gigabytes a node sent", scale=_PERPLEXITY)])
