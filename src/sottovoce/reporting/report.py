"""A run's evidence on one page that opens anywhere: no scripts, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from sottovoce.privacy.accounting import rounded_up
from sottovoce.reporting.figures import BESIDE, DEEP, MIDDLE, PALE, Figure, Level, Line

_WORDS = {
    "add-or-remove-one-user": "one user is added or removed",
    "replace-one-user": "one user is replaced by another",
    "entropy": "operating-system entropy, kept apart from the seed",
    "seeded": "derived from the seed: whoever knows it can undo the noise",
    "poisson": "Poisson: every user joins a round independently",
    "fixed": "fixed size: every round draws the same number of users",
    "user": "user: all the text of one person",
}
_MEASURES = (
    ("top1", "Top-1", "the likeliest token is the right one"),
    ("top3", "Top-3", "the right one is among three"),
    ("top5", "Top-5", "the right one is among five"),
    ("top1_words", "Top-1, words alone", "without punctuation and ends of text"),
    ("perplexity", "Perplexity", "lower is better"),
    ("perplexity_in_vocabulary", "Perplexity, in vocabulary", "over targets that are in the vocabulary"),
    ("oov_rate", "Out of vocabulary", "share of targets that no model with this vocabulary can get right"),
)
_SHARES = {"top1", "top3", "top5", "top1_words", "oov_rate"}


@dataclass(frozen=True)
class Evidence:
    """What a report shows. Everything but `diagnostics` and `tails` may be published."""

    name: str
    recipe: dict[str, dict[str, Any]]
    statement: dict[str, Any]  # privacy.json
    record: list[dict[str, Any]]  # record.jsonl
    suggestions: list[tuple[str, list[tuple[str, float]]]]  # public prompt -> likely next words
    baseline: float | None = None  # top-1 of always saying the most frequent word
    diagnostics: list[dict[str, Any]] | None = None  # exact figures of private data; given only for an internal report
    tails: dict[str, Any] | None = None  # what an audit by tails found; in an internal report only
    beside: dict[str, Any] | None = None  # another run to compare with: its name and its record


def render(evidence: Evidence) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = (resources.files("sottovoce.reporting") / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(_view(evidence))


def _view(evidence: Evidence) -> dict[str, Any]:
    """What the template prints, in its order; all words and figures are decided here."""
    statement = evidence.statement
    return {
        "name": evidence.name,
        "verdict": _verdict(statement),
        "private": _is_private(statement),
        "notices": _notices(evidence),
        "facts": _key_facts(evidence),
        "paragraphs": [text for text in statement["prose"].split("\n\n") if not text.startswith("Not covered:")],
        "statement_rows": _statement_rows(statement),
        "not_covered": statement["not_covered"] if _is_private(statement) else [],
        "figures": _figures(evidence),
        "suggestions": evidence.suggestions,
        "likeliest": max((share for _, words in evidence.suggestions for _, share in words), default=0) or 1,
        "evaluation": _evaluation_table(evidence),
        "internal": None if evidence.diagnostics is None else _internal(evidence),
        "recipe": _listing(evidence.recipe),
        "version": statement["software"].get("sottovoce", ""),
    }


def _is_private(statement: dict[str, Any]) -> bool:
    return bool(statement["private"]) and _finite(statement["epsilon"]) is not None


def _is_unfinished(statement: dict[str, Any]) -> bool:
    return statement["rounds_done"] < statement["rounds_planned"]


def _verdict(statement: dict[str, Any]) -> str:
    if not _is_private(statement):
        return "No privacy guarantee"
    projected = " (projected)" if _is_unfinished(statement) else ""
    at = f"at δ = {_plain(statement['delta'])}, per {statement['unit']}"
    return f"ε = {_epsilon_text(statement['epsilon'])} {at}{projected}"


def _notices(evidence: Evidence) -> list[tuple[str, str]]:
    statement = evidence.statement
    notices = []
    if statement["private"] and (evidence.beside or evidence.baseline is not None):
        text = "The baseline and the run beside this one were measured without noise; the statement is not about them."
        notices.append(("Comparison", text))
    if _is_unfinished(statement):
        text = f"{statement['rounds_done']:,} of {statement['rounds_planned']:,} planned rounds are done."
        if _is_private(statement):
            text += (
                f" ε = {_epsilon_text(statement['epsilon'])} is projected, for all that are planned; "
                f"{_epsilon_text(statement['epsilon_spent'])} is spent. Stopping here does not make it smaller."
            )
        notices.append(("Unfinished run", text))
    if statement["secrets"] == "seeded":
        text = "Who was sampled and what noise was drawn follow from the run's seed."
        if _is_private(statement):
            text += " Whoever knows it can undo the noise: a run for tests and reproductions, not a model to release."
        notices.append(("Seeded secrets", text))
    return notices


def _key_facts(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Label, figure, remark."""
    statement, recipe = evidence.statement, evidence.recipe
    _, last = _last_evaluation(evidence.record)
    declared, model = statement["declared"], recipe.get("model", {})
    beaten = "held-out users" if evidence.baseline is None else f"most frequent word: {_percent(evidence.baseline)}"
    facts = [
        ("Top-1", _measure("top1", last), beaten),
        ("Perplexity", _measure("perplexity", last), "held-out users"),
        ("Rounds", f"{statement['rounds_done']:,}", f"of {statement['rounds_planned']:,} planned"),
        _epsilon_fact(statement),
        ("Users", f"{declared['users']:,}", f"declared; {declared['cohort']:,g} a round"),
    ]
    if model:
        sizes = ", ".join(f"{key} {value}" for key, value in model.items() if key != "kind")
        kind = str(model.get("kind", "")).replace("_", " ")
        facts.append(("Model", kind.upper() if sizes else "own", sizes or kind))
    return facts


def _epsilon_fact(statement: dict[str, Any]) -> tuple[str, str, str]:
    if not _is_private(statement):
        return "ε", "infinite", "no guarantee"
    return "ε of the store", _epsilon_text(statement["epsilon_store"]), "all private runs on it"


def _statement_rows(statement: dict[str, Any]) -> list[tuple[str, list[str]]]:
    declared, mechanism, software = (statement[key] for key in ("declared", "mechanism", "software"))
    rows = [
        ("Unit", [_said(statement["unit"])]),
        ("Relation", [_said(statement["relation"])]),
        ("ε", _epsilon_lines(statement)),
        ("δ", [_plain(statement["delta"])]),
        ("Rounds", _round_lines(statement)),
        ("Sampling", [_said(statement["sampling"])]),
        ("Declared constants", _pairs(declared)),
        ("Mechanism", _pairs(mechanism)),
        ("Accountant", [str(statement["accountant"])]),
        ("Secrets", [_said(statement["secrets"])]),
        ("Noise", [str(statement.get("noise_generator", ""))]),
        ("Released", list(statement.get("released", []))),
        ("Vocabulary", _pairs(statement.get("vocabulary", {}))),
        ("Start", [str(statement["start"]["source"])] if "start" in statement else []),
        ("Software", [f"{package} {version}" for package, version in software.items()]),
    ]
    # Without a guarantee these would only look like one.
    left_out = () if _is_private(statement) else ("Unit", "Relation", "δ", "Accountant", "Released")
    return [(label, lines) for label, lines in rows if any(lines) and label not in left_out]


def _round_lines(statement: dict[str, Any]) -> list[str]:
    lines = [f"{statement['rounds_done']:,} done of {statement['rounds_planned']:,} planned"]
    if again := statement["charged_again"]:
        lines.append(f"{again:,} begun, broken off and charged again")
    return lines


def _epsilon_lines(statement: dict[str, Any]) -> list[str]:
    if not _is_private(statement):
        return ["infinite"]
    planned = "all planned rounds" + (", projected" if _is_unfinished(statement) else "")
    costs = (("epsilon", planned), ("epsilon_spent", "spent"), ("epsilon_store", "all private runs on the store"))
    return [f"{words}: {_epsilon_text(statement[key], digits=6)}" for key, words in costs]


# Figures: each is a title, words, and a drawing where there is something to draw.


def _panel(title: str, words: str, figure: Figure | None = None) -> dict[str, str]:
    return {"title": title, "words": words, "svg": figure.svg() if figure else ""}


def _accuracy(evidence: Evidence) -> dict[str, str]:
    title = "Accuracy by round"
    record = evidence.record
    top1 = _measured(record, "top1")
    if not top1:
        return _panel(title, "No evaluation was made in this run.")
    lines = [
        Line("top-5", _measured(record, "top5"), PALE),
        Line("top-3", _measured(record, "top3"), MIDDLE),
        Line("top-1", top1, DEEP),
    ]
    words = "Share of targets where the right token is among the one, three or five likeliest, on held-out users."
    levels = []
    if evidence.baseline is not None:
        levels.append(Level("baseline", evidence.baseline))
        words += f" Dashed: always saying the most frequent word, {_percent(evidence.baseline)}."
    words += _add_beside(lines, evidence, _measured(_other(evidence), "top1"), "top-1 of ")
    return _panel(title, words, Figure("accuracy", title, "share of targets", lines, levels, percent=True))


def _perplexity(evidence: Evidence) -> dict[str, str]:
    title = "Perplexity by round"
    points = _measured(evidence.record, "perplexity")
    if not points:
        evaluated = bool(_evaluations(evidence.record))
        words = "It was not finite at any evaluation: the model diverged." if evaluated else "No evaluation was made."
        return _panel(title, words)
    lines = [Line("this run" if evidence.beside else "", points)]
    words = "How many tokens the model hesitates between, on held-out users. Lower is better."
    missing = len(_evaluations(evidence.record)) - len(points)
    if missing:
        words += f" Not finite, so not drawn, at {missing} of the evaluations."
    words += _add_beside(lines, evidence, _measured(_other(evidence), "perplexity"))
    return _panel(title, words, Figure("perplexity", title, "perplexity", lines, from_zero=False, widen=True))


def _epsilon(evidence: Evidence) -> dict[str, str]:
    title, statement = "Privacy spent by round", evidence.statement
    if not _is_private(statement):
        return _panel(title, "This run gives no privacy guarantee: ε is infinite from the first round on.")
    points = _finite_points(evidence.record, "epsilon")
    if not points:
        return _panel(title, "No round was recorded.")
    lines = [Line("spent", points)]
    words = f"ε spent after each round, at δ = {_plain(statement['delta'])}."
    levels, budget = [], evidence.recipe.get("privacy", {}).get("epsilon")
    if budget is not None:
        levels.append(Level("budget", budget))
        words += f" Dashed: the budget, ε = {budget:g}; training stops before a round that would pass it."
    if _is_unfinished(statement):
        lines.append(Line("projected", [(statement["rounds_planned"], statement["epsilon"])], hollow=True))
        words += f" Open circle: projected for the {statement['rounds_planned']:,} planned rounds."
    words += _add_beside(lines, evidence, _finite_points(_other(evidence), "epsilon"))
    return _panel(title, words, Figure("epsilon", title, "ε", lines, levels))


def _figures(evidence: Evidence) -> list[dict[str, str]]:
    figures = [_accuracy(evidence), _perplexity(evidence), _epsilon(evidence)]
    return [*figures, _clip_norm(evidence)] if _clip_norm_changes(evidence) else figures


def _clip_norm_changes(evidence: Evidence) -> bool:
    return bool({"clip_schedule", "adaptive"} & set(evidence.statement["mechanism"]))


def _clip_norm(evidence: Evidence) -> dict[str, str]:
    """Planned, or read from noised counts: public either way."""
    title, adaptive = "Clip norm by round", evidence.statement["mechanism"].get("adaptive")
    words = "The longest update a user could send."
    if adaptive:
        words += f" It follows the {adaptive['quantile']:g} quantile of users' norms, read from noised counts."
    points = _finite_points(evidence.record, "clip_norm")
    if not points:
        return _panel(title, "No round was recorded.")
    return _panel(title, words, Figure("clip_norm", title, "L2 norm", [Line("", points)]))


def _add_beside(lines: list[Line], evidence: Evidence, points: list[tuple[int, float]], what: str = "") -> str:
    if not evidence.beside or not points:
        return ""
    lines.append(Line("beside", points, BESIDE, dotted=True))
    return f" Dotted: {what}the run {evidence.beside['name']}."


def _internal(evidence: Evidence) -> list[dict[str, str]]:
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
    for key, title, unit, words, percent in (
        ("clipped_share", "Share of users clipped", "share", "Users of whose update anything was cut off.", True),
        ("loss", "Training loss", "mean loss", "Mean over the round's users, in their last local epoch.", False),
    ):
        if points := _finite_points(lines, key):
            drawn = Figure(key, title, unit, [Line("", points)], percent=percent, from_zero=percent)
            panels.append(_panel(title, words, drawn))
    if evidence.tails:
        panels.append(_tails(evidence.tails, evidence.statement))
    return panels


def _tails(found: dict[str, Any], statement: dict[str, Any]) -> dict[str, str]:
    """An estimate never stands without what is proved."""
    count = len(found["pairs"])
    proved = "nothing, ε is infinite"
    if _is_private(statement):
        proved = f"ε = {_epsilon_text(statement['epsilon'])} at δ = {_plain(statement['delta'])}, for every user"
    words = (
        f"Estimated from the tails of c(s) over texts of {found['words']} words, after round {found['round']:,}: "
        f"ε = {found['epsilon']:.3g} at δ = {_plain(found['delta'])}, the largest of {count} tails. It is "
        f"{found['note']}. Proved: {proved}. Of the tails, {found['rejected']} of {count} are not Pareto's at the "
        f"{_percent(found['level'])} level, and their ε means little. About the models: {found['about']}."
    )
    return _panel("Empirical privacy by tails: an estimate, not a guarantee", words)


# Tables and text.


def _evaluation_table(evidence: Evidence) -> dict[str, Any] | None:
    at, last = _last_evaluation(evidence.record)
    if not last:
        return None
    other_at, other = _last_evaluation(_other(evidence))
    columns = ["This run"] if not other else ["This run", f"{(evidence.beside or {})['name']}, round {other_at:,}"]
    rows = [
        (label, [_measure(key, values) for values in (last, other) if values], meaning)
        for key, label, meaning in _MEASURES
        if key in last
    ]
    return {"round": at, "users": last.get("users"), "targets": last.get("targets"), "columns": columns, "rows": rows}


def _listing(recipe: dict[str, dict[str, Any]]) -> str:
    import tomli_w

    return tomli_w.dumps(
        {section: {key: value for key, value in keys.items() if value is not None} for section, keys in recipe.items()}
    )


def _other(evidence: Evidence) -> list[dict[str, Any]]:
    return evidence.beside["record"] if evidence.beside else []


def _evaluations(record: Iterable[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(line["round"], line["evaluation"]) for line in record if line.get("evaluation")]


def _last_evaluation(record: Iterable[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    evaluations = _evaluations(record)
    return evaluations[-1] if evaluations else (0, {})


def _measured(record: Iterable[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return _finite_points(({"round": at, **evaluation} for at, evaluation in _evaluations(record)), key)


def _finite_points(lines: Iterable[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(line["round"], value) for line in lines if (value := _finite(line.get(key))) is not None]


def _finite(value: Any) -> float | None:
    """The number, or None for what cannot be drawn: missing, NaN, infinite, or the word for it."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _measure(key: str, evaluation: dict[str, Any]) -> str:
    if not evaluation:
        return "–"
    value = _finite(evaluation.get(key))
    if value is None:
        return "not finite"
    if key in _SHARES:
        return _percent(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _epsilon_text(value: Any, digits: int = 3) -> str:
    number = _finite(value)
    return "not known to be finite" if number is None else rounded_up(number, digits)


def _plain(value: Any) -> str:
    """A number as a person writes it: 1e-6, not 1e-06."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == round(value)):
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key.replace('_', ' ')}: {'none' if value is None else _said(value)}" for key, value in values.items()]


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_said(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(f"[{_said(item)}]" if isinstance(item, list) else _said(item) for item in value)
    return _WORDS.get(value, value.replace("_", " ")) if isinstance(value, str) else _plain(value)
