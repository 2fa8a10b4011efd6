"""How figures of a run are written on pages, beside those of its statement (`sottovoce_evidence.statement_text`)."""

from __future__ import annotations

from sottovoce_evidence.statement import Statement


def released_texts(statement: Statement) -> list[str]:
    """What may be released of a run."""
    canaries = ["canaries.json: which canaries were inserted, not which of them were in"]
    return [
        *("the model after every round", "record.jsonl", "this statement", "the report without --internal"),
        *(canaries if statement.canaries else []),
    ]


def bytes_text(count: float) -> str:
    """As networks are measured: 1 kB is 1,000 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"
