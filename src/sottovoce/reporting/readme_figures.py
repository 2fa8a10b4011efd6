"""The numbers that a README calls ε, δ or planned rounds. It speaks of more than privacy: others are not looked at.

Every repetition in a pattern is bounded, so that no file makes a search long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_NUMBER = r"[*_`$]{0,3}((?:\.[0-9]{1,40}|[0-9]{1,40}(?:,[0-9]{3}){0,9}(?:\.[0-9]{1,40})?)(?:e[+-]?[0-9]{1,9})?)"
_SAID = r"[*_`$]{0,3}\s{0,3}(?:=|≈|~|≤|≥|<=|>=|<|>|:|is|of|was)?\s{0,3}(?:at most|about|below|only)?\s{0,3}"
_DIGITS = "[0-9.]{1,40}"
_E, _D = r"(?:ε|\b(?:var)?epsilon\b)", r"(?:δ|\bdelta\b)"
# Both at once: "(ε, δ) = (2, 1e-6)", "ε and δ: 2 and 1e-6".
_BETWEEN = r"[^\w\n]{1,6}(?:and )?"
_BOTH = rf"{_E}{_BETWEEN}{_D}[^\w\n]{{1,9}}"
_CALLED = {
    "ε": re.compile(rf"(?:{_BOTH}|{_E}{_SAID}|e\^|\((?={_DIGITS}, ?{_DIGITS}e-)){_NUMBER}", re.IGNORECASE),
    "δ": re.compile(
        rf"(?:{_BOTH}{_DIGITS}{_BETWEEN}|{_D}{_SAID}|\bplus |\({_DIGITS}, ?(?={_DIGITS}e-)){_NUMBER}", re.IGNORECASE
    ),
}
# What makes a smaller number of the one before it: a part of it, a power below 0, a factor below 1.
_MANY = "(?:hundred|thousand|million|billion|trillion)"
_GOES_ON = re.compile(
    r"[*_`$]{0,3} ?(?:e[+-]?[0-9]|⁻|(?:\^|\*\*)[({]?[-−][0-9]|[/÷⁄] ?[0-9]"
    r"|(?:[×·⋅x]|(?<![*])\*|\\times|\\cdot) ?(?:0|\.|[0-9.]{1,40}e-)"
    rf"|{_MANY}th|(?:in|out of) (?:(?:an?|one) {_MANY}|1[0,]{{2}}))[0-9.,e^-]{{0,20}}",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"[*_`$]{0,3} ?(?:%|per ?cent)", re.IGNORECASE)
_POWER = re.compile(
    r"(?:(?<=[0-9]) ?(?:[×·⋅x*]|\\times|\\cdot) ?|(?<![0-9.,]))10"
    r"(?:(?:\^|\*\*)\{?([-−+]?[0-9]{1,3})\}?|([⁻⁺]?[⁰¹²³⁴-⁹]{1,3}))"
)
_RAISED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹−", "-+0123456789-")
_ROUNDS = re.compile(r"(?<![0-9,])([0-9][0-9,]{0,20}) of ([0-9][0-9,]{0,20}) planned")


class Figure(NamedTuple):
    """A number, where it is, and what follows that makes it smaller: `/100` after 80."""

    value: float
    line: int
    then: str


def figures(name: str, text: str) -> Iterator[Figure]:
    """Numbers that a text calls `ε` or `δ`. Powers of ten are read: 10^-6 and 2 × 10⁻⁶ are 1e-6 and 2e-6; so is %."""
    text = _POWER.sub(_as_exponent, text)
    for line, found in _with_lines(_CALLED[name], text):
        value, then = float(found[1].replace(",", "")), _GOES_ON.match(text, found.end())
        value = value / 100 if _PERCENT.match(text, found.end()) else value
        yield Figure(value, line, then[0] if then else "")


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
