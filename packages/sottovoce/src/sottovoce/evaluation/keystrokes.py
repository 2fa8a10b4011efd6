"""How many keystrokes a model's suggestions save the people it has never seen (Popov et al. 2018, eq. 5).

    keystroke saving = (N_total - N_typed) / N_total

N_total is the number of characters of the text without its spaces, N_typed how many of them had to be typed. The person
types a word letter by letter. Before the first letter and after each one the keyboard shows the `suggestions` likeliest
words that begin with what is typed (`suggestions.offer`); as soon as the word is among them it is taken, which costs no
keystroke. A word that never is, is typed to its end.

A character is a Unicode code point of the text as tokenised (lower case, composed form); the apostrophe of "don't" is
one. A mark is one character, always typed, as marks are never offered. A word outside the vocabulary is typed in full;
at most 255 characters of it count. Spaces, capitals and the end of a text cost nothing on either side. Placeholders
such as <url> are left out on both sides: what was typed there is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.evaluation.prediction import quantiles, sum_by_user
from sottovoce.evaluation.suggestions import offer
from sottovoce.models.contract import LanguageModel
from sottovoce_evidence.errors import SettingError
from sottovoce_evidence.files import Facts

SUGGESTIONS = 3
_MOST_SUGGESTIONS = 100


@dataclass(frozen=True)
class KeystrokeSaving(Facts):
    """None where the store does not know how long its words outside the vocabulary are."""

    suggestions: int
    characters: int | None  # N_total
    keystrokes: int | None  # N_typed
    keystroke_saving: float | None
    keystroke_saving_in_vocabulary: float  # over words of the vocabulary alone: no marks, nothing outside it


class KeystrokeCounts(NamedTuple):
    """Sums over the targets: of one user on the device, arrays over users on the host."""

    marks: Any
    letters: Any  # of words in the vocabulary
    typed: Any  # of those letters
    unknown: Any  # letters of words outside the vocabulary; NaN where they are not known


def letters_to_type(word: int, logits: np.ndarray, tokenizer: Tokenizer, suggestions: int = SUGGESTIONS) -> int:
    """The letters of one word that a person types: the definition, which the rest of this file computes faster."""
    letters = tokenizer.text_of(word)
    for typed in range(len(letters)):
        if word in offer(logits, tokenizer, letters[:typed], suggestions):
            return typed
    return len(letters)


class Typing(NamedTuple):
    """A vocabulary in the order of its letters: words that share a prefix are neighbours.

    `first` and `end` are, for a word's first 1, 2, ... letters, the places of the words that begin with them. A prefix
    that no more words share than are suggested needs no place: after it, all of its words are offered.
    """

    suggestions: Array  # how many words the keyboard shows
    order: Int[Array, " places"]  # the ids of the words in the order of their letters, padded by `width`
    first: Int[Array, "vocabulary depth"]
    end: Int[Array, "vocabulary depth"]
    letters: Int[Array, " vocabulary"]  # of words; 0 for all else
    marks: Int[Array, " vocabulary"]  # 1 for marks
    width: Int[Array, " width"]  # 0, 1, ...: as long as the most words that share their first letter


def typing_of(tokenizer: Tokenizer, suggestions: int = SUGGESTIONS) -> Typing:
    words, is_word = [tokenizer.text_of(token) for token in range(tokenizer.size)], tokenizer.word_mask
    order = sorted(np.flatnonzero(is_word).tolist(), key=words.__getitem__)
    first: dict[str, int] = {}
    end: dict[str, int] = {}
    for place, token in enumerate(order):
        for letters in range(1, len(words[token]) + 1):
            first.setdefault(words[token][:letters], place)
            end[words[token][:letters]] = place + 1
    shared = [prefix for prefix in first if end[prefix] - first[prefix] > suggestions]
    depth = max(map(len, shared), default=0)
    places = np.zeros((2, tokenizer.size, depth), np.int32)
    for token in order:
        places[:, token] = first[words[token][0]]  # an empty range, where a word has no more letters
        for letters in range(1, min(len(words[token]), depth) + 1):
            prefix = words[token][:letters]
            places[:, token, letters - 1] = first[prefix], end[prefix]
    width = max((end[prefix] - first[prefix] for prefix in shared), default=0)
    return Typing(
        suggestions=jnp.asarray(suggestions),
        order=jnp.asarray([*order, *[0] * width], jnp.int32),
        first=jnp.asarray(places[0]),
        end=jnp.asarray(places[1]),
        letters=jnp.asarray([len(word) if known else 0 for word, known in zip(words, is_word, strict=True)], jnp.int32),
        marks=jnp.asarray((tokenizer.typed_mask & ~is_word).astype(np.int32)),
        width=jnp.arange(width),
    )


def count_keystrokes(model: LanguageModel, store: Store, suggestions: int = SUGGESTIONS) -> KeystrokeCounts:
    """The sums of every user, each as an array over users. Each word must be one token; else see `word_prediction`."""
    check_suggestions(suggestions)
    sums = sum_by_user(keystrokes_of_targets, model, store, typing_of(store.vocabulary, suggestions))
    unknown = [store.unknown_letters(row) for row in range(store.users)]
    letters = [math.nan if letters is None else letters.sum() for letters in unknown]
    return KeystrokeCounts(*sums, unknown=np.array(letters))


def check_suggestions(suggestions: int) -> None:
    if not 1 <= suggestions <= _MOST_SUGGESTIONS:
        text = f"{{suggestions}} must be in [1, {_MOST_SUGGESTIONS}]; it is how many words the keyboard shows"
        raise SettingError(text, suggestions=suggestions)


def saving(counts: KeystrokeCounts, suggestions: int = SUGGESTIONS) -> KeystrokeSaving:
    marks, letters, typed, unknown = (float(np.sum(column)) for column in counts)
    total = marks + letters + unknown
    known = not math.isnan(total)
    return KeystrokeSaving(
        suggestions=suggestions,
        characters=int(total) if known else None,
        keystrokes=int(total - letters + typed) if known else None,
        keystroke_saving=(letters - typed) / max(total, 1) if known else None,
        keystroke_saving_in_vocabulary=(letters - typed) / max(letters, 1),
    )


def spread_of_saving(counts: KeystrokeCounts) -> dict[str, float]:
    """Quantiles over users. Exact figures of single people: internal."""
    total = counts.marks + counts.letters + counts.unknown
    typed = total > 0  # users who typed nothing, or NaN, have no saving
    saved = (counts.letters - counts.typed)[typed] / total[typed]
    return quantiles("keystroke_saving", saved) if len(saved) else {}


def keystrokes_of_targets(logits: Array, targets: Array, counted: Array, facts: Typing) -> tuple[Array, Array, Array]:
    """Marks, letters and typed letters of some targets."""
    counts = counted.astype(jnp.int32)
    letters = counts * facts.letters[targets]
    typed = jnp.minimum(counts * _letters_to_type(logits, targets, facts), letters)
    return jnp.sum(counts * facts.marks[targets]), jnp.sum(letters), jnp.sum(typed)


def _letters_to_type(
    logits: Float[Array, "time vocabulary"], targets: Int[Array, " time"], typing: Typing
) -> Int[Array, " time"]:
    """For each target the length of the shortest prefix with fewer than `suggestions` likelier words.

    Only words with the same first letter are looked up in the order of letters; there the counts of all longer prefixes
    are differences of one running sum.
    """
    own = jnp.take_along_axis(logits, targets[:, None], axis=-1)

    def above(logits: Array, ids: Array) -> Array:
        return (logits > own) | ((logits == own) & (ids < targets[:, None]))

    any_word = jnp.sum(above(logits, jnp.arange(logits.shape[-1])) & (typing.letters > 0), axis=-1)
    crowded = (any_word >= typing.suggestions).astype(jnp.int32)
    if typing.width.size:
        start = typing.first[targets, :1]  # [time, 1]
        ids = typing.order[start + typing.width]  # [time, width]
        higher = above(jnp.take_along_axis(logits, ids, axis=-1), ids)
        running = jnp.pad(jnp.cumsum(higher.astype(jnp.int32), axis=-1), ((0, 0), (1, 0)))
        upto = partial(jnp.take_along_axis, running, axis=-1)
        counts = upto(typing.end[targets] - start) - upto(typing.first[targets] - start)  # [time, depth]
        crowded += jnp.sum(counts >= typing.suggestions, axis=-1)
    return jnp.where(jnp.isnan(own[:, 0]), typing.letters[targets], crowded)
