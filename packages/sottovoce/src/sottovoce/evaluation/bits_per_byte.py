"""Bits per byte of text: how well a model predicts a text, whatever its tokens are.

    bits per byte = (Σ loss / ln 2 + 8 Σ (bytes + 1 of a word outside the vocabulary)) / Σ bytes

The loss is over all targets, in nats, ends of texts among them. The bytes are those of the text in UTF-8 as the
tokenizer reads it, without white space: a store of words does not keep it, and a store of pieces does.

A model that predicts UNK has not said what was written. To say it, the word is spelled out after UNK with 8 bits for
each byte, and 8 for its end, as a file would have it. So it does not pay to leave words out of a vocabulary, and
vocabularies of different sizes compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer

_WHITE = b" \t\n\r\x0b\x0c"
BITS = 8  # for each byte of a word outside the vocabulary

UserText = tuple[np.ndarray, np.ndarray | None]  # tokens, and the lengths of what is UNK among them if they are known


class Text(NamedTuple):
    """What a tokenizer says of the text of some users."""

    is_words: bool
    has_unk: bool
    known: float  # bytes that tokens stand for, without white space
    unknown: float  # bytes of words outside the vocabulary; NaN where their lengths are not known
    unknown_words: float

    @classmethod
    def of(cls, store: Store, rows: Iterable[int] | None = None) -> Self:
        """All text of some users; of all users by default."""
        chosen = range(store.users) if rows is None else rows
        return cls.of_users(store.vocabulary, ((store[row], store.unknown_letters(row)) for row in chosen))

    @classmethod
    def of_users(cls, tokenizer: Tokenizer, users: Iterable[UserText]) -> Self:
        """A store keeps lengths in letters: a letter has as many bytes as the letters of the known text on average."""
        unk, counts, letters = tokenizer.specials.unk, np.zeros(tokenizer.size, np.int64), 0.0
        for tokens, unknown in users:
            counts += np.bincount(tokens, minlength=counts.size)
            letters += math.nan if unknown is None else float(unknown.sum())
        seen = np.flatnonzero(counts)
        sizes = np.array([_size(tokenizer.bytes_of(int(token))) for token in seen], float).reshape(-1, 2)
        known, characters = counts[seen] @ sizes
        outside = 0 if unk is None else int(counts[unk])
        unknown_bytes = letters * (known / characters if characters else 1.0) if outside else 0.0
        return cls(tokenizer.is_words, unk is not None, float(known), float(unknown_bytes), outside)

    @property
    def bytes(self) -> float:
        """NaN where it is not known."""
        return self.known + self.unknown

    def bits_per_byte(self, loss: float) -> float | None:
        """`loss` is the sum over all targets, in nats. None where the length of the text is not known, or it has none.

        A model that has diverged has no finite figure.
        """
        if not self.bytes > 0:
            return None
        bits = loss / math.log(2) + BITS * (self.unknown + self.unknown_words)
        return math.inf if math.isnan(bits) else bits / self.bytes


def _size(text: bytes) -> tuple[int, int]:
    """The bytes and the code points of a token without white space; of a character cut into bytes, the first counts."""
    try:
        kept = "".join(text.decode().split()).encode()
    except UnicodeDecodeError:
        kept = bytes(byte for byte in text if byte not in _WHITE)
    return len(kept), sum(byte & 0xC0 != 0x80 for byte in kept)
