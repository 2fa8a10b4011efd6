"""Text to words: lower-cased words, digit runs, single marks and placeholders. Only `data/` imports this module."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache

from sottovoce.data.languages import DEFAULT, Language, find_language
from sottovoce.data.segmentation import WITHOUT_SPACES, segments

BOS, EOS, UNK = 0, 1, 2
SPECIALS = ("<bos>", "<eos>", "<unk>")
PLACEHOLDERS = ("<url>", "<email>", "<phone>", "<user>")
# Every vocabulary begins with these, so that the first ids mean the same in all of them.
FRAME = SPECIALS + PLACEHOLDERS + tuple(string.punctuation)
ENGLISH = find_language(DEFAULT)

_ELIDED = re.compile(r"([^\W\d_]|qu)'(.+)", re.DOTALL)
PLACEHOLDER = r"<[a-z]+>"
LETTER = r"[^\W\d_]"  # in any alphabet
JOINERS = "[\u200c\u200d]+"
_PLACEHOLDER = re.compile(PLACEHOLDER)
# The order matters: a placeholder wins over its own angle bracket.
_TOKEN = PLACEHOLDER + r"|%s|\d+|[^\w\s]|_"
_ASCII = re.compile(_TOKEN % rf"{LETTER}+(?:'{LETTER}+)*")
# Inside a word: an apostrophe, the double quote of Hebrew abbreviations, the dot of Catalan "col·lecció".
_INSIDE = "(?:'|(?<=[א-ת])\"(?=[א-ת])|(?<=l)·(?=l))"


def tokenise(text: str, language: Language = ENGLISH) -> list[str]:
    """Cut a text into tokens; joining them with spaces and cutting again gives the same tokens.

    A word is letters of any script with their marks (vowel signs, accents, viramas). A joiner or a non-joiner between
    letters belongs to the word.

    >>> tokenise("Don’t call <phone> at 10:30!")
    ["don't", 'call', '<phone>', 'at', '10', ':', '30', '!']
    >>> tokenise("हिन्दी में")
    ['हिन्दी', 'में']
    """
    if language.is_cut:
        return text.split()
    text = fold(text, language)
    tokens = (_ASCII if text.isascii() else _unicode_tokens()).findall(text)
    if language.elides:
        tokens = [part for token in tokens for part in _elided(token)]
    if language.segmented and WITHOUT_SPACES.search(text):
        return [word for token in tokens for word in _words(token)]
    return tokens


def fold(text: str, language: Language = ENGLISH) -> str:
    """A text in lower case, as the language writes it, with one code for what looks the same."""
    if language.is_cut:
        return text
    if language.letters or language.drops_marks or language.form != "NFC":
        text = unicodedata.normalize(language.form, text)
        for letter, folded in language.letters:
            text = text.replace(letter, folded)
        if language.drops_marks:
            text = _vowel_signs().sub("", text)
    text = text.lower()
    return text if text.isascii() else unicodedata.normalize(language.form, text).replace("’", "'").replace("ʼ", "'")


def is_word(token: str) -> bool:
    """True for a word or a number; False for marks, specials and placeholders."""
    return token[0].isalnum() and not _PLACEHOLDER.fullmatch(token)


def _elided(token: str) -> Iterator[str]:
    """A word and those that lean on it: "l'homme" is "l", "'" and "homme"."""
    while found := _ELIDED.fullmatch(token):
        yield from (found[1], "'")
        token = found[2]
    yield token


def _words(token: str) -> Iterator[str]:
    """A token of a language without spaces, cut into its words. What ICU leaves at an edge may be no letter."""
    found = segments(token) if WITHOUT_SPACES.search(token) else (token,)
    if len(found) == 1:
        yield token
        return
    for part in found:
        for piece in _unicode_tokens().findall(part):
            yield from _words(piece)


@cache
def _unicode_tokens() -> re.Pattern[str]:
    """As for ASCII, but a letter may have marks, and joiners before the next letter or mark."""
    mark = _class_of(marks())
    joined = f"{JOINERS}(?={LETTER}|{mark})"
    word = f"{LETTER}+(?:(?:{mark}|{joined})+{LETTER}*)*"
    return re.compile(_TOKEN % f"{word}(?:{_INSIDE}{word})*")


@cache
def marks() -> tuple[tuple[int, int], ...]:
    """All marks that a letter may have: the first and the last code of each range."""
    return _ranges("Mn", "Mc", "Me")


@cache
def _vowel_signs() -> re.Pattern[str]:
    return re.compile(f"{_class_of(_ranges('Mn'))}|\u0640")  # and the stroke that stretches Arabic words


def _class_of(ranges: Iterable[tuple[int, int]]) -> str:
    """A class of a pattern with all characters of some ranges."""
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges) + "]"


def _ranges(*categories: str) -> tuple[tuple[int, int], ...]:
    """Where the characters of some categories are."""
    planes = (range(0x300, 0x20000), range(0xE0100, 0xE01F0))  # no others have marks
    codes = [code for plane in planes for code in plane if unicodedata.category(chr(code)) in categories]
    ranges: list[tuple[int, int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return tuple(ranges)
