"""The keys of a recipe, for people to read: what the reference and the help of options say of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import get_type_hints

from sottovoce_evidence.recipe import SECTIONS, Limits, kind_name, plain_type


@dataclass(frozen=True)
class Key:
    """A key of a recipe, for people to read."""

    section: str
    name: str
    kind: str  # a whole number, a list of numbers, ...
    default: object  # None: not set
    choices: tuple[str, ...]
    range: str  # such as `> 0 and < 1`; empty where any value will do
    meaning: str


def describe() -> list[Key]:
    """All keys of a recipe, in order: the one source of the reference page."""
    rows = []
    for section, kind in SECTIONS.items():
        hints = get_type_hints(kind)
        for item in dataclasses.fields(kind):
            limits: Limits = item.metadata["limits"]
            wanted = kind_name(plain_type(hints[item.name]))
            rows.append(Key(section, item.name, wanted, item.default, limits.choices, limits.range, limits.meaning))
    return rows
