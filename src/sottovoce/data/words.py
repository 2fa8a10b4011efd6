"""Text to words: lower-cased words, digit runs, single marks and placeholders. Only `data/` imports this module."""

from __future__ import annotations

import re
import string
import unicodedata

BOS, EOS, UNK = 0, 1, 2
SPECIALS = ("<bos>", "<eos>", "<unk>")
PLACEHOLDERS = ("<url>", "<email>", "<phone>", "<user>")
# Every vocabulary begins with these, so that the first ids mean the same in all of them.
FRAME = SPECIALS + PLACEHOLDERS + tuple(string.punctuation)

_PLACEHOLDER = re.compile(r"<[a-z]+>")
# `[^\W\d_]` is "a letter, in any alphabet". The order matters: a placeholder wins over its own angle bracket.
_TOKEN = re.compile(r"<[a-z]+>|[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[^\w\s]|_")
_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'"})


def tokenise(text: str) -> list[str]:
    """Cut a text into tokens; joining them with spaces and cutting again gives the same tokens.

    >>> tokenise("Don’t call <phone> at 10:30!")
    ["don't", 'call', '<phone>', 'at', '10', ':', '30', '!']
    """
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(_APOSTROPHES)
    return _TOKEN.findall(text)


def is_word(token: str) -> bool:
    """True for a word or a number; False for marks, specials and placeholders."""
    return token[0].isalnum() and not _PLACEHOLDER.fullmatch(token)
