"""Words that a tokenizer cuts into pieces: where they begin, and which tokens may continue them.

A word begins at a token of a space and a letter (where spaces are implied: at one that begins with a letter and does
not join), and at a token that would continue a word where none goes before it: after a mark, a space, the beginning of
a text. It goes on through all tokens that join. A lone apostrophe joins too: "don't" is one word, whatever its pieces.

White space belongs to the word after it. So the place at which a word is predicted is where the word or mark before it
ended, whichever tokens hold the spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.data.tokenizer import PLACEHOLDERS, Tokenizer

_APOSTROPHES = ("'", "’")
_HIDDEN = re.compile("|".join(map(re.escape, PLACEHOLDERS)).encode())


@dataclass(frozen=True, eq=False)
class Pieces:
    """The tokens of a tokenizer as parts of words. Masks have one entry for each id."""

    tokenizer: Tokenizer
    texts: tuple[bytes, ...]  # without the white space before them
    starts: np.ndarray  # begins a word, whatever came before
    joins: np.ndarray  # continues a word
    opens: np.ndarray  # continues a word, and begins one where none goes before it
    white: np.ndarray  # nothing but white space

    @property
    def most(self) -> int:
        """The most tokens of a word that is looked for, white space among them."""
        return 32 if self.tokenizer.kind in ("bytes", "characters") else 12


class Word(NamedTuple):
    """A word as it was written. `place` and `end` are of its tokens in the text, white space before it included."""

    place: int
    end: int
    text: bytes
    after_word: bool  # it follows a word, with at most white space between
    known: bool  # nothing of it is outside the vocabulary

    @property
    def letters(self) -> int:
        """Unicode code points."""
        return len(self.text.decode("utf-8", "replace"))


def pieces_of(tokenizer: Tokenizer) -> Pieces:
    whole = [tokenizer.bytes_of(token) for token in range(tokenizer.size)]
    texts = tuple(each.lstrip() for each in whole)
    white = np.array([bool(each) and not text for each, text in zip(whole, texts, strict=True)])
    joins, starts = np.array(tokenizer.joins, bool), np.array(tokenizer.starts_word, bool)
    apostrophe = np.array([each.decode("utf-8", "replace").startswith(_APOSTROPHES) for each in whole])
    opens = joins & ~apostrophe & tokenizer.space_inside
    if tokenizer.specials.unk is not None:
        starts[tokenizer.specials.unk] = False  # nobody writes it
    return Pieces(tokenizer, texts, starts, joins | (apostrophe & tokenizer.space_inside), opens, white)


def words_of(pieces: Pieces, tokens: Sequence[int] | np.ndarray) -> list[Word]:
    """The words of one user, in order. Placeholders such as <url> are none: what was typed there is not known."""
    ids = np.asarray(tokens).tolist()
    unk, hidden = pieces.tokenizer.specials.unk, _hidden(pieces, ids)
    found: list[Word] = []
    word: Word | None = None  # the one that goes on
    gap = 0  # where the white space before this token began, or this token itself

    for at, token in enumerate(ids):
        if pieces.white[token]:
            if word:
                found.append(word)
                word = None
            continue
        starts = bool(pieces.starts[token]) or token == unk
        if hidden[at]:
            starts = joins = False
        else:
            joins = bool(pieces.joins[token]) and word is not None
            starts = starts or (bool(pieces.opens[token]) and word is None)
        if word and not joins:
            found.append(word)
        if starts:
            after = bool(found) and found[-1].end == gap
            word = Word(gap, at + 1, pieces.texts[token], after, token != unk)
        elif word and joins:
            word = word._replace(end=at + 1, text=word.text + pieces.texts[token])
        else:
            word = None
        gap = at + 1
    return [*found, word] if word else found


def ends_in_word(pieces: Pieces, tokens: Sequence[int]) -> bool:
    """Is the last token part of a word?"""
    words = words_of(pieces, tokens)
    return bool(words) and words[-1].end == len(tokens)


def characters_of(pieces: Pieces, tokens: Sequence[int] | np.ndarray) -> int:
    """The code points of a text without its spaces and placeholders; of what is outside the vocabulary, nothing."""
    text = _HIDDEN.sub(b"", _text(pieces, np.asarray(tokens).tolist())).decode("utf-8", "replace")
    return sum(not character.isspace() for character in text)


def _text(pieces: Pieces, tokens: Iterable[int]) -> bytes:
    return b"".join(map(pieces.tokenizer.bytes_of, tokens))


def _hidden(pieces: Pieces, tokens: Sequence[int]) -> list[bool]:
    """Which tokens are part of a placeholder."""
    ends = np.cumsum([len(pieces.tokenizer.bytes_of(token)) for token in tokens])
    hidden = np.zeros(len(tokens), bool)
    for match in _HIDDEN.finditer(_text(pieces, tokens)):
        # From the first token that ends after the beginning to the one that reaches the end.
        hidden[np.searchsorted(ends, match.start(), side="right") : np.searchsorted(ends, match.end()) + 1] = True
    return hidden.tolist()
