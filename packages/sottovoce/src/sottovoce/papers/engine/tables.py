"""Tables in Markdown, and how a value with a spread is written in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sottovoce.papers.engine.results import Spread

ACCOUNTANT_NAMES = {"moments": "moments accountant", "rdp": "RDP", "pld": "PLD"}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows that name their columns."""
    return markdown([*rows[0]], [[*row.values()] for row in rows])


def percent(spread: Spread | None) -> str:
    if spread is None:
        return ""
    shown = f"{100 * spread.mean:.2f} %"
    return shown if spread.deviation is None else f"{shown} ± {100 * spread.deviation:.2f}"


def number(spread: Spread, digits: int = 4) -> str:
    shown = f"{spread.mean:,.0f}" if 10**digits <= spread.mean < 10**9 else f"{spread.mean:.{digits}g}"
    if spread.deviation is None:
        return shown
    rounded = float(f"{spread.deviation:.2g}")
    return f"{shown} ± {f'{rounded:,.0f}' if 10 <= rounded < 10**9 else f'{rounded:.2g}'}"
