"""Models of public text from which private training starts: those in the package, and folders like them.

A base is a folder with `weights.safetensors` (float16), `vocabulary.txt`, `frequencies.txt` (how often its text has
each token) and `card.json`. Reading a card needs no jax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Facts, parse_json, read_plain, read_sealed, shipped_folder

CARD, WEIGHTS, VOCABULARY = "card.json", "weights.safetensors", "vocabulary.txt"
FREQUENCIES = "frequencies.txt"  # a count a line, in the order of the vocabulary
PUBLIC = "public"  # under "trained_on" of a card
NO_BASE = "none"  # as model.initial: start from fresh weights
MOST_LETTERS = 60  # of the name of a base
PLAIN = f"up to {MOST_LETTERS} letters, digits, spaces and marks such as - _ ( ), in one line"
_NO_NAME = re.compile(r"[<>`*|\[\]\\]|[.:;!?] |[εδ=]|\bplanned\b")  # markup, the end of a sentence, figures of privacy


@dataclass(frozen=True)
class Base(Facts):
    """The card of a base: what it is, and which public text it was trained on."""

    name: str
    kind: str
    model: dict[str, Any]  # the settings of its kind
    words: str  # fingerprint of the vocabulary
    vocabulary: int
    text: str  # what it was trained on, in a sentence
    tokens: int
    licence: str
    command: str
    passes: float
    top1: float  # on public text that was held out
    perplexity: float
    files: dict[str, str]
    trained_on: str
    language: str | None  # a code such as "en"
    longest_recited: int | None  # words of its text in a row, after 1,000 beginnings of lines

    def fits(self, kind: str, settings: Mapping[str, Any], words: str) -> bool:
        """Can a model of these settings, over a vocabulary of this fingerprint, take its weights?"""
        return (self.kind, dict(self.model), self.words) == (kind, dict(settings), words)


def shipped() -> list[str]:
    """The names of the bases in the package."""
    return sorted(each.name for each in _room().glob("*") if (each / CARD).is_file())


def find(name: str) -> Path | None:
    """The folder of a base in the package; None where there is none of this name."""
    return _room() / name if name in shipped() else None


def is_name(initial: str) -> bool:
    """Does `model.initial` name a base in the package, or none? All else is a path."""
    return initial in (NO_BASE, *shipped())


def is_base(folder: Path) -> bool:
    """Is it the folder of a base? Its card says so: a release, a run and an export have cards of other kinds."""
    try:
        card = parse_json(read_plain(folder / CARD))
    except (OSError, ValueError):
        return False
    return isinstance(card, dict) and {"words", "text", "licence", "passes"} <= card.keys()


def read_base(folder: Path) -> Base:
    try:
        return Base.from_json(read_sealed(folder / CARD))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SottoError(f"{folder} is not a base ({error}); make one with `sotto base train`") from None


def is_plain(name: object) -> bool:
    """Is it a name, and not sentences or markup? It becomes part of the statement of whoever starts from the base."""
    if not isinstance(name, str) or not name.isprintable() or name.split(" ") != name.split():
        return False
    return 0 < len(name) <= MOST_LETTERS and not _NO_NAME.search(name)


def _room() -> Path:
    return shipped_folder("bases")
