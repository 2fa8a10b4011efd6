"""Tables and figures of Popov et al. 2018, with the printed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from sottovoce.papers.engine.results import Facts, Outcome, ResultStore, Spread
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
from sottovoce.reporting.draw.audits import draw_tails
from sottovoce.reporting.draw.panels import Panel, Point, Scale, Series, draw_panels
from sottovoce.reporting.draw.style import COLOURS

_COLUMNS = (  # where a column of Tables 1 and 2 lies in the facts of a run
    ("public_text", "perplexity"),
    ("public_text", "keystroke_saving"),
    ("users_text", "perplexity"),
    ("users_text", "keystroke_saving"),
)
_PERPLEXITY = Scale("perplexity", percent=False, whole=True)


def setting_table(trials: Sequence[Trial], size: Size, results: ResultStore) -> str:
    """One row a trial, with the printed value in brackets."""
    if trials[0].corpus.trained_on == "ptb":
        return _benchmark_table(size, results)
    header = [
        "method",
        "runs",
        "public text: perplexity",
        "KSS, %",
        "users' text: perplexity",
        "KSS, %",
        "average perplexity",
        "user updates",
        "run",
    ]
    rows = []
    for trial in trials:
        outcomes, printed = results.outcomes(trial), PRINTED.get(trial.name)
        values = [[_value(outcome, *column) for outcome in outcomes] for column in _COLUMNS]
        values.append([outcome.facts["average_perplexity"] for outcome in outcomes])
        shown = [_with_printed(column, printed[place] if printed else None) for place, column in enumerate(values)]
        trained = "" if trial.is_central else f"{fmean(outcome.user_updates for outcome in outcomes):,.0f}"
        rows.append([trial.label, str(len(outcomes)), *shown, trained, f"`{trial.name}`"])
    return markdown(header, rows)


def _value(outcome: Outcome, text: str, measure: str) -> float | None:
    value = outcome.facts[text][measure]
    return 100 * value if measure == "keystroke_saving" and value is not None else value


def _with_printed(values: Sequence[float | None], printed: float | None) -> str:
    known = [value for value in values if value is not None]
    spread = Spread.of(known) if len(known) == len(values) else None
    shown = "diverged" if spread is None else f"{spread.mean:.1f}"
    if spread is not None and spread.deviation is not None:
        shown += f" ± {spread.deviation:.1f}"
    return shown if printed is None else f"{shown} ({printed:g})"


def tails_by_seed(size: Size, results: ResultStore) -> dict[int, Facts]:
    """The tails of every seed, the first one's first. The paper has one run."""
    return {outcome.seed: outcome.facts["tails"] for outcome in results.outcomes(tails(size))}


def pairs_of(facts: Facts) -> list[Facts]:
    """The pairs of a seed, one way: tails over texts that θ wrote, as in the paper."""
    return [pair for pair in facts["pairs"] if pair["texts_of"] == "with"]


def by_seed(figures: Iterable[float], form: str = "") -> str:
    """Each seed's figure, to follow that of all seeds; nothing where there is one seed."""
    shown = [f"{figure:{form}}" for figure in figures]
    return f", by seed {', '.join(shown)}" if len(shown) > 1 else ""


def table_3(size: Size, results: ResultStore, out: Path) -> str:
    """The pairs of the first seed, and how many tails of all seeds are rejected."""
    seeds = tails_by_seed(size, results)
    facts = next(iter(seeds.values()))
    header = ["pair", "texts of", "log x₀", "α", "C", "√k D", "p", "printed α", "C", "√k D"]
    rows = []
    for place, pair in enumerate(facts["pairs"]):
        number = place // 2
        with_user = pair["texts_of"] == "with"
        printed = [f"{value:g}" for value in TABLE_3[number]] if with_user and number < len(TABLE_3) else ["", "", ""]
        figures = [_short(pair[name]) for name in ("log_start", "alpha", "constant", "statistic", "p_value")]
        rows.append([str(number + 1), "θ" if with_user else "θ'", *figures, *printed])
    caption = f"Pairs of the first of {len(seeds)} seeds.\n\n" if len(seeds) > 1 else ""
    rejected = [sum(pair["rejected"] for pair in each["pairs"]) for each in seeds.values()]
    fitted = sum(len(each["pairs"]) for each in seeds.values())
    note = (
        f"{facts['texts']:,} texts of ten words each; θ was trained with a user and θ' without. The test rejects "
        f"{sum(rejected)} of {fitted} tails at 5 %{by_seed(rejected)} (printed: 1 of {len(TABLE_3)}). Printed pairs "
        f"are of others."
    )
    return f"{caption}{markdown(header, rows)}\n\n{note}"


_CHOICES: Mapping[str, Callable[[Facts], bool]] = {  # of pairs, for Table 4
    "ε, texts of θ": lambda pair: pair["texts_of"] == "with",
    "ε, both ways": lambda pair: True,
    "ε, both ways, of tails that are not rejected": lambda pair: not pair["rejected"],
}


def table_4(size: Size, results: ResultStore, out: Path) -> str:
    """The largest ε over the pairs of all seeds, and of each seed where there are several."""
    seeds = tails_by_seed(size, results)
    deltas = next(iter(seeds.values()))["deltas"]
    rows = [["ε printed", *(f"{value:g}" for value in TABLE_4)]]
    for words, is_chosen in _CHOICES.items():
        chosen = [[pair["epsilons"] for pair in facts["pairs"] if is_chosen(pair)] for facts in seeds.values()]
        if any(chosen):
            rows.append([words, *_largest([epsilons for each in chosen for epsilons in each])])
            if len(seeds) > 1:
                each_seed = [_largest(each) if each else ["none"] * len(deltas) for each in chosen]
                rows.append([f"{words}, by seed", *map(", ".join, zip(*each_seed, strict=True))])
    pairs = "all pairs"
    if len(seeds) > 1:
        pairs += f" of {len(seeds)} seeds, and of each seed alone, which compares with the printed one"
    note = f"The largest of {pairs}: an estimate from sampled texts, not a guarantee. No noise was added to anything."
    return f"{markdown(['δ', *(f'{delta:g}' for delta in deltas)], rows)}\n\n{note}"


def _largest(rows: Sequence[Sequence[float]]) -> list[str]:
    """The largest ε at each δ."""
    return [f"{max(column):.2f}" for column in zip(*rows, strict=True)]


def _short(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"


def figure_2(size: Size, results: ResultStore) -> bytes | None:
    """Both texts, with rehearsal on the left and without on the right."""
    start = [outcome.facts for outcome in results.outcomes(pretrained(size))]
    panels = []
    for title, trial in (("with rehearsal", rehearsed(size)), ("without rehearsal", forgetful(size))):
        series = []
        for colour, (label, name, text) in zip(
            COLOURS, (("users' text", USERS, "users_text"), ("public text", PUBLIC, "public_text")), strict=False
        ):
            begun = [(0, facts[text]["perplexity"]) for facts in start if facts[text]["perplexity"] is not None]
            curves = [[*begun[:1], *outcome.measured(name)] for outcome in results.outcomes(trial)]
            points = [Point.of(column[0][0], [value for _, value in column]) for column in zip(*curves, strict=False)]
            if points:
                series.append(Series(label, points, colour))
        if series:
            panels.append(Panel(title, series, scale=_PERPLEXITY))
    return draw_panels(panels) if panels else None


def figure_3(size: Size, results: ResultStore) -> bytes | None:
    """The pair of each seed that has the largest ε, one row a seed."""
    seeds = tails_by_seed(size, results)
    shown = {
        f"seed {seed}" if len(seeds) > 1 else "": tail_of(facts["shown"])
        for seed, facts in seeds.items()
        if facts["shown"] is not None
    }
    return draw_tails(shown) if shown else None


def by_gigabytes(size: Size, results: ResultStore) -> list[tuple[int, float, float | None]]:
    """Rounds, gigabytes that one node has sent, and perplexity: of the first seed, up to the first missing run."""
    rows: list[tuple[int, float, float | None]] = []
    for trial in benchmark(size):
        outcomes = results.outcomes(trial)
        if not outcomes:
            break
        sent = outcomes[0].facts["bytes"]["up"]
        rows += [(number, number * sent / 1e9, perplexity) for number, _, perplexity in outcomes[0].curve]
    return rows


def _benchmark_table(size: Size, results: ResultStore) -> str:
    curve = by_gigabytes(size, results)
    seconds = list(
        accumulate(results.outcomes(trial)[0].seconds or 0.0 for trial in benchmark(size) if results.outcomes(trial))
    )
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
    """Gigabytes with two decimals, or one digit for small models."""
    return f"{sent:.2f}" if sent >= 0.01 else f"{sent:.1g}"


def figure_ptb(size: Size, results: ResultStore) -> bytes | None:
    """Perplexity by gigabytes. The first rounds would flatten the rest: values above twice the printed one are cut."""
    known = [(sent, perplexity) for _, sent, perplexity in by_gigabytes(size, results) if perplexity is not None]
    if not known:
        return None
    near = [(sent, value) for sent, value in known if value <= 2 * PTB_AVERAGED]
    series = [Series("averaged here", [Point.of(sent, [value]) for sent, value in near or known])]
    for place, (label, value) in enumerate((("averaged, printed", PTB_AVERAGED), ("sparse, printed", PTB_SPARSE)), 1):
        series.append(Series(label, [Point.of(PTB_GIGABYTES, [value])], COLOURS[place]))
    title = "from twice the printed one down" if near else ""
    return draw_panels([Panel(title, series, "gigabytes a node sent", scale=_PERPLEXITY)])
