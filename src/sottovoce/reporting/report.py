"""A run's evidence on one page that opens anywhere: no scripts, nothing fetched."""

from __future__ import annotations

from typing import Any

from sottovoce.reporting.evidence import Evidence, other_record
from sottovoce.reporting.findings import findings, lanes_of, public
from sottovoce.reporting.number_line import draw_number_line
from sottovoce.reporting.pages import render_page
from sottovoce.reporting.progress import diagnostics_by_round, figures_by_round
from sottovoce.reporting.wording import (
    bytes_text,
    epsilon_text,
    finite,
    is_private,
    is_unfinished,
    last_evaluation,
    of_other_relation,
    pairs,
    percent,
    plain,
    said,
)
from sottovoce.runs.record import coarse_count

__all__ = ["Evidence", "render"]

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


def render(evidence: Evidence) -> str:
    """The whole page."""
    return render_page("report.html.jinja", _view(evidence))


def _view(evidence: Evidence) -> dict[str, Any]:
    """What the template prints, in its order; all words and figures are decided here."""
    statement = evidence.statement
    return {
        "name": evidence.name,
        "verdict": _verdict(statement),
        "private": is_private(statement),
        "notices": _notices(evidence),
        "facts": _key_facts(evidence),
        "paragraphs": [text for text in statement["prose"].split("\n\n") if not text.startswith("Not covered:")],
        "statement_rows": _statement_rows(statement),
        "not_covered": statement["not_covered"] if is_private(statement) else [],
        "figures": figures_by_round(evidence),
        "suggestions": evidence.suggestions,
        "likeliest": max((share for _, words in evidence.suggestions for _, share in words), default=0) or 1,
        "evaluation": _evaluation_table(evidence),
        "costs": _costs_tables(evidence),
        "beside": evidence.beside["name"] if evidence.beside else "",
        "audit": _audit(evidence),
        "internal": None if evidence.diagnostics is None else diagnostics_by_round(evidence),
        "recipe": _listing(evidence.recipe),
        "version": statement["software"].get("sottovoce", ""),
    }


def _verdict(statement: dict[str, Any]) -> str:
    if not is_private(statement):
        return "No privacy guarantee"
    projected = " (projected)" if is_unfinished(statement) else ""
    at = f"at δ = {plain(statement['delta'])}, per {statement['unit']}"
    return f"ε = {epsilon_text(statement['epsilon'])} {at}{projected}"


def _notices(evidence: Evidence) -> list[tuple[str, str]]:
    statement = evidence.statement
    notices = []
    if statement["private"] and (evidence.beside or evidence.baseline is not None):
        text = "The baseline and the run beside this one were measured without noise; the statement is not about them."
        notices.append(("Comparison", text))
    if is_unfinished(statement):
        text = f"{statement['rounds_done']:,} of {statement['rounds_planned']:,} planned rounds are done."
        if is_private(statement):
            text += (
                f" ε = {epsilon_text(statement['epsilon'])} is projected, for all that are planned; "
                f"{epsilon_text(statement['epsilon_spent'])} is spent. Stopping here does not make it smaller."
            )
        notices.append(("Unfinished run", text))
    if statement["secrets"] == "seeded":
        text = "Who was sampled and what noise was drawn follow from the run's seed."
        if is_private(statement):
            text += " Whoever knows it can undo the noise: a run for tests and reproductions, not a model to release."
        notices.append(("Seeded secrets", text))
    return notices


def _key_facts(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Label, figure, remark."""
    statement, recipe = evidence.statement, evidence.recipe
    _, last = last_evaluation(evidence.record)
    declared, model = statement["declared"], recipe.get("model", {})
    people = f"about {coarse_count(last['users']):,} held-out users" if "users" in last else "held-out users"
    beaten = "" if evidence.baseline is None else f"; most frequent word: {percent(evidence.baseline)}"
    facts = [
        ("Top-1", _measure("top1", last), people + beaten),
        ("Perplexity", _measure("perplexity", last), people),
        ("Rounds", f"{statement['rounds_done']:,}", f"of {statement['rounds_planned']:,} planned{_sent(evidence)}"),
        _epsilon_fact(statement),
        ("Users", f"{declared['users']:,}", f"declared; {declared['cohort']:,g} a round"),
    ]
    if model:
        sizes = ", ".join(f"{key} {value}" for key, value in model.items() if key != "kind")
        kind = str(model.get("kind", "")).replace("_", " ")
        facts.append(("Model", kind.upper() if sizes else "own", sizes or kind))
    return facts


def _sent(evidence: Evidence) -> str:
    """Runs of before it was counted have no total."""
    sent = evidence.traffic or {}
    return f"; {bytes_text(sent['total'])} sent and received" if "total" in sent else ""


def _epsilon_fact(statement: dict[str, Any]) -> tuple[str, str, str]:
    if not is_private(statement):
        return "ε", "infinite", "no guarantee"
    of = f"all private runs on it{of_other_relation(statement)}{_as_of(statement)}"
    return "ε of the store", epsilon_text(statement["epsilon_store"]), of


def _as_of(statement: dict[str, Any]) -> str:
    """Later runs on a store that is gone are not known."""
    return " when this run ended" if statement.get("store_gone") else ""


def _statement_rows(statement: dict[str, Any]) -> list[tuple[str, list[str]]]:
    declared, mechanism, software = (statement[key] for key in ("declared", "mechanism", "software"))
    rows = [
        ("Unit", [said(statement["unit"])]),
        ("Protects", [statement.get("protects", "")]),
        ("Relation", [said(statement["relation"])]),
        ("ε", _epsilon_lines(statement)),
        ("δ", [plain(statement["delta"])]),
        ("Rounds", _round_lines(statement)),
        ("Sampling", [said(statement["sampling"])]),
        ("Declared constants", pairs(declared)),
        ("Mechanism", pairs(mechanism)),
        ("Accountant", [str(statement["accountant"])]),
        ("Secrets", [said(statement["secrets"])]),
        ("Noise", [str(statement.get("noise_generator", ""))]),
        ("Released", list(statement.get("released", []))),
        ("Vocabulary", pairs(statement.get("vocabulary", {}))),
        ("Start", [str(statement["start"]["source"])] if "start" in statement else []),
        ("Software", [f"{package} {version}" for package, version in software.items()]),
    ]
    # Without a guarantee these would only look like one.
    left_out = () if is_private(statement) else ("Unit", "Relation", "δ", "Accountant", "Released")
    return [(label, lines) for label, lines in rows if any(lines) and label not in left_out]


def _round_lines(statement: dict[str, Any]) -> list[str]:
    lines = [f"{statement['rounds_done']:,} done of {statement['rounds_planned']:,} planned"]
    if again := statement["charged_again"]:
        lines.append(f"{again:,} begun, broken off and charged again")
    return lines


def _epsilon_lines(statement: dict[str, Any]) -> list[str]:
    if not is_private(statement):
        return ["infinite"]
    planned = "all planned rounds" + (", projected" if is_unfinished(statement) else "")
    total = f"all private runs on the store{of_other_relation(statement)}{_as_of(statement)}"
    costs = (
        ("epsilon", planned), ("epsilon_replaced", f"{planned}, when one user is replaced by another"),
        ("epsilon_spent", "spent"), ("epsilon_store", total),
    )  # fmt: skip
    return [f"{words}: {epsilon_text(statement[key], digits=6)}" for key, words in costs if key in statement]


def _evaluation_table(evidence: Evidence) -> dict[str, Any] | None:
    at, last = last_evaluation(evidence.record)
    if not last:
        return None
    other_at, other = last_evaluation(other_record(evidence))
    columns = ["This run"] if not other else ["This run", f"{(evidence.beside or {})['name']}, round {other_at:,}"]
    rows = [
        (label, [_measure(key, values) for values in (last, other) if values], meaning)
        for key, label, meaning in _MEASURES
        if key in last
    ]
    return {"round": at, "users": coarse_count(last.get("users", 0)), "columns": columns, "rows": rows}


def _audit(evidence: Evidence) -> dict[str, Any]:
    """One table, one picture. A page that is not internal never sees what is the owner's."""
    rows = list(evidence.findings) or findings(evidence.statement, {})
    if evidence.diagnostics is None:
        rows = public(rows)
    return {"rows": rows, "svg": draw_number_line(lanes_of(rows))}


def _costs_tables(evidence: Evidence) -> list[dict[str, Any]]:
    """Accuracy by band and by group: a title and rows for each."""
    if not evidence.costs:
        return []
    tables = {"Words": evidence.costs["by_band"]}
    tables |= {f"Users, by {name}": rows for name, rows in evidence.costs["by_group"].items()}
    return [{"title": title, "rows": [_cost_row(row) for row in rows]} for title, rows in tables.items()]


def _cost_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "part": row["part"],
        "users": f"{coarse_count(row['users']):,}",
        "share": percent(row["share"]),
        "here": percent(row["top1"]),
        "there": percent(row["beside"]["top1"]),
        "lost": f"{100 * row['lost']:.1f} ± {100 * row['within']:.1f}",
    }


def _listing(recipe: dict[str, dict[str, Any]]) -> str:
    import tomli_w

    return tomli_w.dumps(
        {section: {key: value for key, value in keys.items() if value is not None} for section, keys in recipe.items()}
    )


def _measure(key: str, evaluation: dict[str, Any]) -> str:
    if not evaluation:
        return "–"
    value = finite(evaluation.get(key))
    if value is None:
        return "not finite"
    if key in _SHARES:
        return percent(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
