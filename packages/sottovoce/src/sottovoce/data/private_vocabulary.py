"""How many users wrote each word, where every user counts for a bounded number of words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.data.corpus import Source
from sottovoce.data.grouping import Grouping, Progress, Spill, parts_for
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import is_word, tokenise
from sottovoce_evidence.errors import SettingError

_NO_WORD = 0  # begin, end, marks, placeholders and known words


@dataclass(frozen=True)
class WordCounts:
    """How many users there are to train on, and how many of them bring each word. Exact, so private."""

    users: int
    by_word: dict[str, int]


def count_users(
    folder: Path,
    corpus: list[Source],
    grouping: Grouping,
    words_per_user: int,
    known: Vocabulary,
    progress: Progress | None = None,
) -> WordCounts:
    """For each word, how many of the users to train on bring it; a user brings at most `words_per_user`, each once.

    Guarantee: a user added or removed changes at most `words_per_user` counts, each by one. Which words a user brings
    depends on that user alone: on their text in the store, and on the hash of their name, which picks among too many.
    (The most frequent words would be "the" and "and" for everyone; a random choice finds more, as measured.)
    Words are cut as those of `known` are, and these are left out. Exact counts are private. `folder` is for work files
    and must not exist.
    """
    if words_per_user < 1:
        raise SettingError("{words_per_user} must be at least 1: the words of one user", words_per_user=words_per_user)
    ids = _Ids(known.words)
    spill = Spill(folder, parts_for(corpus), wide=True)
    for user, text in grouping.records(corpus, progress=progress):
        name = grouping.name(user)
        if not grouping.holds_out(name):
            spill.add(name, [_NO_WORD, *map(ids.__getitem__, tokenise(text, known.rules)), _NO_WORD])
    counts = np.zeros(len(ids.words), np.int64)
    seen = kept = 0
    for name, total, tokens in spill.users(grouping.tokens_per_user):
        seen += 1
        if total >= grouping.min_tokens:
            kept += 1
            counts[_words_of(name, tokens, words_per_user)] += 1
    grouping.check_users(seen, spill.single)
    return WordCounts(kept, {ids.words[number]: int(counts[number]) for number in np.flatnonzero(counts)})


class _Ids(dict[str, int]):
    """A number for every word, in the order in which words are first met."""

    def __init__(self, known: Collection[str]) -> None:
        super().__init__(dict.fromkeys(known, _NO_WORD))
        self.words = [""]

    def __missing__(self, token: str) -> int:
        self[token] = number = len(self.words) if is_word(token) else _NO_WORD
        if number != _NO_WORD:
            self.words.append(token)
        return number


def _words_of(name: bytes, tokens: np.ndarray, limit: int) -> np.ndarray:
    """The words of one user that count, each once."""
    distinct, first = np.unique(tokens[tokens != _NO_WORD], return_index=True)
    if len(distinct) <= limit:
        return distinct
    # In the order of this user's own text: the numbers of the words depend on who else is in the corpus.
    distinct = distinct[np.argsort(first)]
    return np.random.default_rng(int.from_bytes(name, "big")).permutation(distinct)[:limit]
