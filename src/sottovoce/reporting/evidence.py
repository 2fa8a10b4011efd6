"""What a report is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sottovoce.reporting.findings import Finding


@dataclass(frozen=True)
class Evidence:
    """What a report shows. With `diagnostics` it is internal; without, of `findings` only what may be published."""

    name: str
    recipe: dict[str, dict[str, Any]]
    statement: dict[str, Any]  # privacy.json
    record: list[dict[str, Any]]  # record.jsonl
    suggestions: list[tuple[str, list[tuple[str, float]]]]  # public prompt -> likely next words
    baseline: float | None = None  # top-1 of always saying the most frequent word
    diagnostics: list[dict[str, Any]] | None = None  # exact figures of private data; given only for an internal report
    findings: tuple[Finding, ...] = ()  # what is proved and what audits found
    costs: dict[str, Any] | None = None  # accuracy by band and by group, with that of `beside`
    traffic: dict[str, float] | None = None  # bytes, as the model's card has them
    beside: dict[str, Any] | None = None  # another run to compare with: its name and its record


def other_record(evidence: Evidence) -> list[dict[str, Any]]:
    return evidence.beside["record"] if evidence.beside else []
