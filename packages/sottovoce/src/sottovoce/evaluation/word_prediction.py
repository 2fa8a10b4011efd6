"""Words predicted whole, and keystrokes saved, where a tokenizer cuts words into pieces.

The figures are those of word models: at each place where a word begins, is it likelier than every other word, mark or
end of a text (`top1_words`), and how many of its letters does a person type before it is offered (`keystrokes`). For a
word model one pass over the text answers both. Here the likeliest words are searched (`whole_words`) at each place, and
again after each letter, which takes far longer. So a number of words is measured: every nth word of at most 256 users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from sottovoce.data.store import Store
from sottovoce.evaluation.keystrokes import KeystrokeCounts, check_suggestions
from sottovoce.evaluation.pieces import Pieces, Word, characters_of, pieces_of, words_of
from sottovoce.evaluation.prediction import blocks_of, users_at_once
from sottovoce.evaluation.whole_words import (
    WIDTH,
    PieceTable,
    Place,
    Reader,
    Typed,
    begin,
    hash_of,
    likeliest_words,
    read_on,
    search,
)
from sottovoce.models.contract import LanguageModel
from sottovoce_evidence.errors import SettingError, SottoError

WORDS = 2000
MOST_USERS = 256
MOST_TYPED = 24  # letters after which no more words are offered
_MEMORY = 2**28  # bytes for the states of all hypotheses of a block of users


class WordCounts(NamedTuple):
    """What was found at the measured words. `keystrokes` is of all text of the measured users.

    Where not all of their words were measured, `keystrokes.typed` is the typed share of the measured letters times all
    letters; `sampled` says so.
    """

    words: int
    top1: int
    users: int
    sampled: bool
    keystrokes: KeystrokeCounts | None


def letters_to_type(model: LanguageModel, pieces: Pieces, place: Place, word: bytes, suggestions: int) -> int:
    """The letters of one word that a person types: the definition, which `count_words` computes on the device."""
    letters = word.decode()
    for typed in range(min(len(letters), MOST_TYPED + 1)):
        offered = likeliest_words(model, pieces, place, suggestions, letters[:typed].encode())
        if word in dict(offered.words):
            return typed
    return len(letters)


def count_words(
    model: LanguageModel, store: Store, words: int = WORDS, suggestions: int = 0, rows: Sequence[int] | None = None
) -> WordCounts:
    """Measure about so many words, spread evenly over the words of at most 256 users, spread evenly over the rows.

    Args:
        model: any language model.
        store: the users, in the tokens of the model.
        words: how many.
        suggestions: if not 0, also the keystrokes saved by a keyboard that suggests this many words.
        rows: which users; all by default.
    """
    if words < 1:
        raise SettingError("{words} must be at least 1: the number of words at which a model is measured", words=words)
    if suggestions:
        check_suggestions(suggestions)
    pieces = pieces_of(store.vocabulary)
    chosen = np.arange(store.users) if rows is None else np.asarray(rows)
    if len(chosen) > MOST_USERS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_USERS).round().astype(int)]
    written = [words_of(pieces, store[int(row)]) for row in chosen]
    total = sum(map(len, written))
    if not total:
        raise SottoError("the users to evaluate on have no words at all")
    every = math.ceil(total / words)
    measured = _every_nth(written, every)
    hits, typed = _measure_words(model, store, pieces, (chosen, measured), suggestions)
    counts = WordCounts(sum(map(len, measured)), int(sum(each.sum() for each in hits)), len(chosen), every > 1, None)
    if not suggestions:
        return counts
    letters = np.array([sum(word.letters for word in user if word.known) for user in written], float)
    typed_letters = np.array([each.sum() for each in typed], float)
    if counts.sampled:
        seen = sum(word.letters for user in measured for word in user if word.known)
        typed_letters = letters * (typed_letters.sum() / max(seen, 1))
    characters = np.array([characters_of(pieces, store[int(row)]) for row in chosen], float)
    outside = [store.unknown_letters(int(row)) for row in chosen]
    unknown = np.array([math.nan if each is None else each.sum() for each in outside])
    return counts._replace(keystrokes=KeystrokeCounts(characters - letters, letters, typed_letters, unknown))


def _every_nth(written: Sequence[list[Word]], every: int) -> list[list[Word]]:
    """Every nth of all words, by user; the first is half of n from the beginning."""
    first, chosen = 0, []
    for words in written:
        chosen.append([word for place, word in enumerate(words, first) if place % every == every // 2])
        first += len(words)
    return chosen


class _Target(NamedTuple):
    """A word to predict, as arrays: of one word, or of many."""

    place: Any  # in the text; -1: no word
    after_word: Any
    hash: Any
    size: Any  # bytes
    letters: Any
    text: Any  # its first letters, in bytes
    ends: Any  # where its 1st, 2nd, ... letter ends in them

    @classmethod
    def of(cls, word: Word | None) -> _Target:
        text, ends = np.zeros(4 * MOST_TYPED, np.uint8), np.zeros(MOST_TYPED, np.int32)
        if word is None:
            return cls(np.int32(-1), np.bool_(0), np.uint32(0), np.int32(0), np.int32(0), text, ends)
        letters = word.text.decode("utf-8", "replace")
        first = letters[:MOST_TYPED].encode()
        text[: len(first)] = list(first)
        ends[: len(letters)] = np.cumsum([len(letter.encode()) for letter in letters[:MOST_TYPED]])
        size, known = np.int32(len(word.text)), np.uint32(hash_of(word.text))
        return cls(np.int32(word.place), np.bool_(word.after_word), known, size, np.int32(len(letters)), text, ends)


class _Sizes(NamedTuple):
    count: int
    most: int
    typing: bool


def _measure_words(
    model: LanguageModel, store: Store, pieces: Pieces, chosen: tuple[np.ndarray, list[list[Word]]], suggestions: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each user, whether each word is predicted, and the letters of it that are typed; of known words alone."""
    rows, words = chosen
    table, sizes = PieceTable.of(pieces), _Sizes(max(suggestions, 1), pieces.most, suggestions > 0)
    bos = jnp.asarray(store.vocabulary.specials.bos, jnp.int32)
    hits: list[np.ndarray] = []
    typed: list[np.ndarray] = []
    for tokens, _, users in blocks_of(store, rows.tolist(), _users_at_once(model, sizes)):
        known = [[word for word in each if word.known] for each in words[len(hits) : len(hits) + users]]
        inputs = jnp.concatenate([jnp.broadcast_to(bos, (len(tokens), 1)), tokens[:, :-1]], axis=1)
        numbers = np.array([len(each) for each in known] + [0] * (len(tokens) - users), np.int32)
        results = _measure_block(model, table, (inputs, _targets(known, len(tokens)), numbers), sizes)
        for hit, letters, number in zip(*map(np.asarray, results), numbers[:users], strict=False):
            hits.append(hit[:number])
            typed.append(letters[:number])
    return hits, typed


def _users_at_once(model: LanguageModel, sizes: _Sizes) -> int:
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(model.initial_state)))
    return int(np.clip(_MEMORY // max(state * max(WIDTH, sizes.count), 1), 1, users_at_once()))


def _targets(words: list[list[Word]], users: int) -> _Target:
    """The words of some users as columns [users, words, ...], padded to few shapes."""
    padded = 1 << (max(map(len, words), default=1) - 1).bit_length()
    nothing = [_Target.of(None)]
    rows = [[*map(_Target.of, each), *nothing * (padded - len(each))] for each in words]
    rows += [nothing * padded] * (users - len(rows))
    return _stack([_stack(row) for row in rows])


def _stack(targets: list[_Target]) -> _Target:
    return jax.tree.map(lambda *each: np.stack(each), *targets)


class _Typist(NamedTuple):
    """One user, who types one word after another. A typist who is done waits for those of the block who are not."""

    reader: Reader
    word: Int[Array, ""]  # which is typed
    letters: Int[Array, ""]  # of it that are typed
    hits: Bool[Array, " words"]
    typed: Int[Array, " words"]


@partial(jax.jit, static_argnames="sizes")
def _measure_block(
    model: LanguageModel, table: PieceTable, users: tuple[Array, _Target, Array], sizes: _Sizes
) -> tuple[Array, Array]:
    """For each word of each user: is it predicted, and how many letters of it are typed? `users` are their texts, the
    words to measure and how many they are."""

    def one(inputs: Array, targets: _Target, number: Array) -> tuple[Array, Array]:
        start = jnp.zeros((), jnp.int32)
        none = jnp.zeros(targets.place.shape, jnp.int32)
        typist = _Typist(begin(model, inputs), start, start, none.astype(bool), none)
        step = partial(_look_once, model, table, inputs, targets, sizes=sizes)
        done = jax.lax.while_loop(lambda typist: typist.word < number, step, typist)
        return done.hits, done.typed

    return jax.vmap(one)(*users)


def _look_once(
    model: LanguageModel, table: PieceTable, inputs: Array, targets: _Target, typist: _Typist, sizes: _Sizes
) -> _Typist:
    """Look at what is offered. If it is the word, or no more is, go on to the next word; else type a letter."""
    _, word, letters, hits, typed = typist
    target: _Target = jax.tree.map(lambda column: column[word], targets)
    reader = read_on(model, inputs, typist.reader, target.place + 1)
    place = Place(reader.state, reader.output, target.after_word)
    size = jnp.where(letters > 0, target.ends[letters - 1], 0)
    found, other = search(model, table, place, sizes.count, sizes.most, Typed(target.text, size))
    offered = (found.hash == target.hash) & (found.size == target.size) & (found.score > -jnp.inf)
    taken = jnp.any(offered)
    hits = hits.at[word].set(jnp.where(letters > 0, hits[word], offered[0] & (found.score[0] >= other)))
    last = (letters >= jnp.minimum(target.letters - 1, MOST_TYPED)) | (not sizes.typing)
    typed = typed.at[word].set(jnp.where(taken, letters, target.letters))
    done = taken | last
    return _Typist(reader, word + done, jnp.where(done, 0, letters + 1), hits, typed)
