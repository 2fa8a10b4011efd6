"""The numbers that a README calls ε, δ or planned rounds, and its lines that speak of privacy.

Only plain figures are read, `ε = 2` and `δ = 10^-6`: no pattern reads all that a text can say. So a reader is shown
every line that a release would not have written, and is warned of those that speak of privacy.

Every repetition in a pattern is bounded, so that no file makes a search long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_NUMBER = r"[*_`$]{0,3}((?:\.[0-9]{1,40}|[0-9]{1,40}(?:,[0-9]{3}){0,9}(?:\.[0-9]{1,40})?)(?:e[+-]?[0-9]{1,9})?)"
_IS = r"[*_`$]{0,3}\s{0,3}(?:=|≈|~|≤|≥|⩽|<=|>=|<|>|:|is|of|was|at most)\s{0,3}"
_DIGITS = "[0-9.]{1,40}"
_BOTH = r"ε[^\w\n]{1,6}(?:and )?δ[^\w\n]{1,9}"  # "(ε, δ) = (2, 1e-6)"
_CALLED = {
    "ε": re.compile(rf"(?:{_BOTH}|ε{_IS}|e\^|\((?={_DIGITS}, ?{_DIGITS}e-)){_NUMBER}"),
    "δ": re.compile(
        rf"(?:{_BOTH}{_DIGITS}[^\w\n]{{1,6}}(?:and )?|δ{_IS}|\bplus |\({_DIGITS}, ?(?={_DIGITS}e-)){_NUMBER}"
    ),
}
_OF_PRIVACY = re.compile(
    r"[εδϵ𝜀𝜖𝛿]|e\^|epsilon|delta|planned|\b(?:dp|priva|secre|protect|guarante|certif|anonym)", re.IGNORECASE
)
_POWER = re.compile(
    r"(?:(?<=[0-9]) ?(?:[×·⋅x*]|\\times|\\cdot) ?|(?<![0-9.,]))10"
    r"(?:(?:\^|\*\*)\{?([-−+]?[0-9]{1,3})\}?|([⁻⁺]?[⁰¹²³⁴-⁹]{1,3}))"
)
_RAISED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹−", "-+0123456789-")
_ROUNDS = re.compile(r"(?<![0-9,])([0-9][0-9,]{0,20}) of ([0-9][0-9,]{0,20}) planned(?: rounds?\b| \|)")


class Figure(NamedTuple):
    """A number, and the line that it is in."""

    value: float
    line: int


def figures(name: str, text: str) -> Iterator[Figure]:
    """Numbers that a text calls `ε` or `δ`. Powers of ten are read: 10^-6 and 2 × 10⁻⁶ are 1e-6 and 2e-6."""
    for line, found in _with_lines(_CALLED[name], _POWER.sub(_as_exponent, text)):
        yield Figure(float(found[1].replace(",", "")), line)


def speaks_of_privacy(line: str) -> bool:
    return bool(_OF_PRIVACY.search(line))


def planned_rounds(text: str) -> Iterator[tuple[int, int, int]]:
    """Rounds done and planned that a text speaks of, and in which line."""
    for line, found in _with_lines(_ROUNDS, text):
        done, planned = (int(number.replace(",", "")) for number in found.groups())
        yield done, planned, line


def _as_exponent(found: re.Match[str]) -> str:
    alone = found[0].startswith("10")
    return f"{'1' * alone}e{(found[1] or found[2]).translate(_RAISED)}"


def _with_lines(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    line, before = 1, 0
    for found in pattern.finditer(text):
        line, before = line + text.count("\n", before, found.start(1)), found.start(1)
        yield line, found
