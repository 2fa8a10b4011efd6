"""Figures and facts in words, and what of a record can be drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sottovoce.accounting import rounded_down, rounded_up
from sottovoce.accounting.events import ADDED, REPLACED
from sottovoce.privacy.sampling import SAMPLERS

_WORDS = {
    ADDED: "one user is added or removed",
    REPLACED: "one user is replaced by another",
    "entropy": "operating-system entropy, kept apart from the seed",
    "seeded": "derived from the seed: whoever knows it can undo the noise",
    "user": "user: all the text of one person",
}


def is_private(statement: dict[str, Any]) -> bool:
    return bool(statement["private"]) and finite(statement["epsilon"]) is not None


def of_other_relation(statement: Mapping[str, Any]) -> str:
    """What the total of a store is for, where that is not what the run's own ε is for."""
    relation = statement.get("relation_store", statement["relation"])
    return "" if relation in ("none", statement["relation"]) else f", when {said(relation)}"


def is_unfinished(statement: dict[str, Any]) -> bool:
    return statement["rounds_done"] < statement["rounds_planned"]


def evaluations(record: Iterable[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(line["round"], line["evaluation"]) for line in record if line.get("evaluation")]


def last_evaluation(record: Iterable[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    found = evaluations(record)
    return found[-1] if found else (0, {})


def measured(record: Iterable[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return finite_points(({"round": at, **evaluation} for at, evaluation in evaluations(record)), key)


def finite_points(lines: Iterable[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(line["round"], value) for line in lines if (value := finite(line.get(key))) is not None]


def finite(value: Any) -> float | None:
    """The number, or None for what cannot be drawn: missing, NaN, infinite, or the word for it."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def epsilon_text(value: Any, digits: int = 3) -> str:
    number = finite(value)
    return "not known to be finite" if number is None else rounded_up(number, digits)


def would_have_seen(part: float) -> str:
    """Of an audit by rounds: the largest noise below what is claimed that it would have noticed.

    >>> would_have_seen(0.9078)
    'would have seen noise at 0.9 of its scale'
    """
    return f"would have seen noise at {rounded_down(part, 2)} of its scale"


def bytes_text(count: float) -> str:
    """As networks are measured: 1 kB is 1,000 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def plain(value: Any) -> str:
    """A number as a person writes it: 1e-6, not 1e-06."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == round(value)):
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")


def pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key.replace('_', ' ')}: {'none' if value is None else said(value)}" for key, value in values.items()]


def said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {said(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(f"[{said(item)}]" if isinstance(item, list) else said(item) for item in value)
    if isinstance(value, str) and value in SAMPLERS:
        return SAMPLERS[value].summary
    return _WORDS.get(value, value.replace("_", " ")) if isinstance(value, str) else plain(value)
