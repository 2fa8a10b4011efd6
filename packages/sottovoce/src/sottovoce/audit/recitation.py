"""Long passages of its text that a model recites: what it writes after the beginnings of lines, found in the text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.models.contract import LanguageModel
from sottovoce.models.generate import continue_likeliest
from sottovoce_evidence.files import Facts

WORDS = 12  # in a row, word for word: a passage
PROMPT, LENGTH = 6, 40  # tokens of a line that are given, and of what the model writes
_SEED = 8  # tokens in a row by which places of the text are found
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Passage(Facts):
    """Text that a model wrote, which is in its training text in these many places."""

    text: str
    words: int
    places: int


@dataclass(frozen=True)
class Recitation(Facts):
    """The passages of `WORDS` words or more that were recited, longest first, and the longest of any length."""

    prompts: int
    longest: int  # words
    passages: tuple[Passage, ...]


def find_recited(model: LanguageModel, text: Store, prompts: int = 1000, seed: int = 0) -> Recitation:
    """Give a model the beginnings of lines of its own text, and find what it writes in that text.

    The model writes the likeliest token each time. Marks are compared but not counted as words. A passage ends at an
    unknown word, whose letters the model does not know, and at the end of a line.
    """
    stream = np.concatenate([np.asarray(text[row]) for row in range(text.users)]).astype(np.int64)
    specials = text.vocabulary.specials
    given = _beginnings(stream, specials.begins, prompts, seed)
    written = continue_likeliest(model, specials, given, LENGTH)
    ends = {token for token in (*specials.begins, specials.eos, specials.unk) if token is not None}
    found = _places(stream, written, ends)
    counted = {run: _words_in(run, text.vocabulary) for run in found}
    passages = [
        Passage(text.vocabulary.decode(run), counted[run], places)
        for run, places in found.items()
        if counted[run] >= WORDS
    ]
    ordered = tuple(sorted(passages, key=lambda one: (-one.words, one.text)))
    return Recitation(len(given), max(counted.values(), default=0), ordered)


def _words_in(run: tuple[int, ...], tokenizer: Tokenizer) -> int:
    """How many words a passage has; where words have several tokens, by the spaces of its text."""
    if tokenizer.is_words:
        return int(tokenizer.word_mask[list(run)].sum())
    return len(tokenizer.decode(run).split())


def _beginnings(stream: np.ndarray, tokens: tuple[int, ...], prompts: int, seed: int) -> np.ndarray:
    """The first tokens of some lines that are longer than that, drawn at random."""
    begins = np.flatnonzero(np.isin(stream, tokens)) + 1
    begins = begins[begins + PROMPT <= len(stream)]
    given = stream[begins[:, None] + np.arange(PROMPT)]
    given = np.unique(given[~np.isin(given, tokens).any(axis=1)], axis=0)
    return given[np.random.default_rng(seed).permutation(len(given))[:prompts]]


def _places(stream: np.ndarray, written: np.ndarray, breaks: set[int]) -> Counter[tuple[int, ...]]:
    """The longest runs of what was written that are in the text, with the number of places."""
    hashes = _hashes(stream)
    seeds = np.stack([_hashes(line) for line in written])
    places = np.flatnonzero(np.isin(hashes, seeds))
    by_hash: dict[int, list[int]] = {}
    for place in places:
        by_hash.setdefault(int(hashes[place]), []).append(int(place))
    found: Counter[tuple[int, ...]] = Counter()
    for line, row in zip(written, seeds, strict=True):
        tokens, end = [int(token) for token in line], 0
        for start, name in enumerate(row):
            if int(name) not in by_hash or start < end - _SEED:  # inside a run that was found
                continue
            there = (stream[place : place + LENGTH] for place in by_hash[int(name)])
            runs = Counter(_common(tokens[start:], passage, breaks) for passage in there)
            longest = max(runs, key=len)
            if len(longest) >= _SEED:
                end = start + len(longest)
                found[longest] = max(found[longest], runs[longest])
    return found


def _common(written: list[int], text: np.ndarray, breaks: set[int]) -> tuple[int, ...]:
    """The tokens that both begin with, up to the first that ends a passage."""
    length = 0
    for one, other in zip(written, text, strict=False):
        if one != other or one in breaks:
            break
        length += 1
    return tuple(written[:length])


def _hashes(tokens: np.ndarray) -> np.ndarray:
    """A hash of each run of `_SEED` tokens."""
    ids = tokens.astype(np.uint64) + np.uint64(1)
    places = len(ids) - _SEED + 1
    total = np.zeros(max(places, 0), np.uint64)
    for offset in range(_SEED):
        total = (total ^ ids[offset : offset + places]) * _MULTIPLIER
        total ^= total >> np.uint64(29)
    return total
