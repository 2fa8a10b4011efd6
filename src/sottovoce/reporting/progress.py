"""How a run went, by round: each panel is a title, words, and a drawing where there is something to draw."""

from __future__ import annotations

from typing import Any

from sottovoce.reporting.evidence import Evidence, other_record
from sottovoce.reporting.figures import BESIDE, DEEP, MIDDLE, PALE, Figure, Level, Line
from sottovoce.reporting.wording import (
    epsilon_text,
    evaluations,
    finite_points,
    is_private,
    is_unfinished,
    measured,
    percent,
    plain,
)


def _panel(title: str, words: str, figure: Figure | None = None) -> dict[str, Any]:
    drawn, numbers = (figure.svg(), figure.numbers()) if figure else ("", None)
    return {"title": title, "words": words, "svg": drawn, "numbers": numbers}


def _accuracy(evidence: Evidence) -> dict[str, Any]:
    title = "Accuracy by round"
    record = evidence.record
    top1 = measured(record, "top1")
    if not top1:
        return _panel(title, "No evaluation was made in this run.")
    lines = [
        Line("top-5", measured(record, "top5"), PALE),
        Line("top-3", measured(record, "top3"), MIDDLE),
        Line("top-1", top1, DEEP),
    ]
    words = "Share of targets where the right token is among the one, three or five likeliest, on held-out users."
    levels = []
    if evidence.baseline is not None:
        levels.append(Level("baseline", evidence.baseline))
        words += f" Dashed: always saying the most frequent word, {percent(evidence.baseline)}."
    words += _add_beside(lines, evidence, measured(other_record(evidence), "top1"), "top-1 of ")
    return _panel(title, words, Figure("accuracy", title, "share of targets", lines, levels, percent=True))


def _perplexity(evidence: Evidence) -> dict[str, Any]:
    title = "Perplexity by round"
    points = measured(evidence.record, "perplexity")
    if not points:
        evaluated = bool(evaluations(evidence.record))
        words = "It was not finite at any evaluation: the model diverged." if evaluated else "No evaluation was made."
        return _panel(title, words)
    lines = [Line("this run" if evidence.beside else "", points)]
    words = "How many tokens the model hesitates between, on held-out users. Lower is better."
    missing = len(evaluations(evidence.record)) - len(points)
    if missing:
        words += f" Not finite, so not drawn, at {missing} of the evaluations."
    words += _add_beside(lines, evidence, measured(other_record(evidence), "perplexity"))
    return _panel(title, words, Figure("perplexity", title, "perplexity", lines, from_zero=False, widen=True))


def _epsilon(evidence: Evidence) -> dict[str, Any]:
    title, statement = "Privacy spent by round", evidence.statement
    if not is_private(statement):
        return _panel(title, "This run gives no privacy guarantee: ε is infinite from the first round on.")
    points = finite_points(evidence.record, "epsilon")
    if not points:
        return _panel(title, "No round was recorded.")
    lines = [Line("spent", points)]
    words = f"ε spent after each round, at δ = {plain(statement['delta'])}."
    levels, budget = [], evidence.recipe.get("privacy", {}).get("epsilon")
    if budget is not None:
        levels.append(Level("budget", budget))
        budget = epsilon_text(budget, 6)
        words += f" Dashed: the budget, ε = {budget}; training stops before a round that would pass it."
    if is_unfinished(statement):
        lines.append(Line("projected", [(statement["rounds_planned"], statement["epsilon"])], hollow=True))
        words += f" Open circle: projected for the {statement['rounds_planned']:,} planned rounds."
    words += _add_beside(lines, evidence, finite_points(other_record(evidence), "epsilon"))
    return _panel(title, words, Figure("epsilon", title, "ε", lines, levels, bound=True))


def figures_by_round(evidence: Evidence) -> list[dict[str, Any]]:
    figures = [_accuracy(evidence), _perplexity(evidence), _epsilon(evidence)]
    return [*figures, _clip_norm(evidence)] if _clip_norm_changes(evidence) else figures


def _clip_norm_changes(evidence: Evidence) -> bool:
    return bool({"clip_schedule", "adaptive"} & set(evidence.statement["mechanism"]))


def _clip_norm(evidence: Evidence) -> dict[str, Any]:
    """Planned, or read from noised counts: public either way."""
    title, adaptive = "Clip norm by round", evidence.statement["mechanism"].get("adaptive")
    words = "The longest update a user could send."
    if adaptive:
        words += f" It follows the {adaptive['quantile']:g} quantile of users' norms, read from noised counts."
    points = finite_points(evidence.record, "clip_norm")
    if not points:
        return _panel(title, "No round was recorded.")
    return _panel(title, words, Figure("clip_norm", title, "L2 norm", [Line("", points)]))


def _add_beside(lines: list[Line], evidence: Evidence, points: list[tuple[int, float]], what: str = "") -> str:
    if not evidence.beside or not points:
        return ""
    lines.append(Line("beside", points, BESIDE, dotted=True))
    return f" Dotted: {what}the run {evidence.beside['name']}."


def diagnostics_by_round(evidence: Evidence) -> list[dict[str, Any]]:
    lines = evidence.diagnostics or []
    with_norms = [line for line in lines if line.get("norm_quantiles")]
    clip_norm = evidence.statement["mechanism"].get("clip_norm")
    panels = []
    if with_norms:
        names = (("p10", PALE), ("median", DEEP), ("p90", PALE))
        quantiles = [
            Line(label, [(line["round"], line["norm_quantiles"][index]) for line in with_norms], colour)
            for index, (label, colour) in enumerate(names)
        ]
        words = "L2 norm of users' updates before the last clip: 10th percentile, median, 90th percentile."
        levels = []
        if clip_norm is None:
            words += " Updates are not clipped."
        elif _clip_norm_changes(evidence):
            words += " What they are clipped to changes: see the clip norm by round."
        else:
            levels = [Level("clip norm", clip_norm)]
            words += f" Dashed: the clip norm, {clip_norm:g}."
        figure = Figure("norms", "Update norms", "L2 norm", quantiles, levels, widen=True, band=True)
        panels.append(_panel(figure.title, words, figure))
    for key, title, unit, words, share in (
        ("clipped_share", "Share of users clipped", "share", "Users of whose update anything was cut off.", True),
        ("loss", "Training loss", "mean loss", "Mean over the round's users, in their last local epoch.", False),
    ):
        if points := finite_points(lines, key):
            drawn = Figure(key, title, unit, [Line("", points)], percent=share, from_zero=share)
            panels.append(_panel(title, words, drawn))
    return panels
