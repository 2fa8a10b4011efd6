"""The contract of a tokenizer: text to token ids and back. Code outside `data/` asks it what a token is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class Specials(NamedTuple):
    """The ids of the tokens that no text contains."""

    bos: int  # begins a text: read first, never a target
    eos: int  # ends a text, and is a target
    unk: int | None  # stands for what the tokenizer cannot write; None where it can write everything


class Tokenizer(Protocol):
    """Masks are arrays of bool with one entry for each id."""

    @property
    def size(self) -> int:
        """The number of ids: 0 to size - 1."""
        ...

    @property
    def specials(self) -> Specials: ...

    @property
    def fingerprint(self) -> str:
        """A hash of what decides the ids of a text."""
        ...

    @property
    def word_mask(self) -> np.ndarray:
        """True where the token is one whole word or number."""
        ...

    @property
    def starts_word(self) -> np.ndarray:
        """True where a word begins: at words, and at `unk`, which nearly always replaces a word."""
        ...

    @property
    def typed_mask(self) -> np.ndarray:
        """True where a person types just the characters of the token; not so for specials and placeholders."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, from `bos` to `eos`."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str: ...

    def text_of(self, token: int) -> str:
        """The characters of one token."""
        ...
