"""The likeliest whole words at a place, where a word is one piece or several: a beam search.

The rule, which a keyboard in any programming language can follow:

1. A hypothesis is a list of tokens: white space or nothing, then pieces of a word. The first hypothesis is empty.
2. Its score is the sum of the log-probabilities of its tokens. Where the text ends with a word, that word is taken to
   have ended: the log-probability that the next token does not join is subtracted once.
3. A hypothesis with pieces of a word is a complete word, too. The score of the word adds the log-probability that it
   ends here, that is, that the next token does not join.
4. Every hypothesis is extended by every token that fits. Where it has pieces of a word: tokens that join. Before:
   white space, tokens that begin a word, and, unless the text ends with a word and there is no white space yet, tokens
   that would continue one. Where letters are typed already, the bytes of the word must agree with them as far as both
   go, and only words that begin with all of these letters are complete.
5. The WIDTH best extensions (more, where more words are asked for) are kept and extended again, up to the most tokens
   (`Pieces.most`). Of equal scores the one of the better hypothesis comes first, then the lower id.
6. Of words that are spelled alike the best counts. The words with the highest scores are the result; of equal scores
   the one that was complete earlier comes first. A token without a probability (NaN) fits nowhere.

`likeliest_words` follows the rule step by step. `search` does the same on the device, and stops as soon as no
hypothesis can become a better word: scores only fall.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from sottovoce.evaluation.pieces import Pieces
from sottovoce.models.contract import LanguageModel, State

WIDTH = 8
_BASE = 0x01000193  # of the hash that tells words apart


class Place(NamedTuple):
    """What a model knows after it has read a text; `after_word`: the text ends with a word."""

    state: State
    output: Array  # of the last token
    after_word: Any


class Likeliest(NamedTuple):
    """Words and their scores, the best first; `other` is the score of the likeliest mark, end of text or UNK."""

    words: list[tuple[bytes, float]]
    other: float


class _Hypothesis(NamedTuple):
    score: np.floating
    text: bytes
    place: Place


def likeliest_words(
    model: LanguageModel, pieces: Pieces, place: Place, count: int = 1, typed: bytes = b""
) -> Likeliest:
    """The definition, one hypothesis and one token after another."""
    found: dict[bytes, float] = {}
    other = -np.inf
    hypotheses = [_Hypothesis(np.float32(0), b"", place)]
    for step in range(pieces.most + 1):
        extended = []
        for score, text, here in hypotheses:
            chances = np.asarray(_log_chances(model, here.output))
            ends = np.logaddexp.reduce(chances[~pieces.joins])
            if step == 0 and here.after_word and ends > -np.inf:
                score = score - ends
            if text and text.startswith(typed) and score + ends > found.get(text, -np.inf):
                found[text] = score + ends
            for token, chance in enumerate(chances):
                longer = text + pieces.texts[token]
                if text:
                    fits = pieces.joins[token]
                elif here.after_word and pieces.joins[token]:
                    continue  # the word before has ended
                else:
                    fits = pieces.starts[token] or pieces.opens[token] or pieces.white[token]
                    other = other if fits else max(other, score + chance)
                if fits and (longer.startswith(typed) or typed.startswith(longer)) and score + chance > -np.inf:
                    extended.append((score + chance, longer, here, token))
        # The sort is stable: extensions stand in the order of the hypotheses, and of the ids.
        kept = sorted(extended, key=lambda each: -each[0])[: max(WIDTH, count)] if step < pieces.most else []
        hypotheses = [
            _Hypothesis(score, text, _after(model, here, jnp.asarray(token))) for score, text, here, token in kept
        ]
    best = sorted(found.items(), key=lambda each: -each[1])[:count]
    return Likeliest([(word, float(score)) for word, score in best if score > -np.inf], float(other))


@jax.jit
def _log_chances(model: LanguageModel, output: Array) -> Float[Array, "*any vocabulary"]:
    chances = jax.nn.log_softmax(model.logits(output))
    return jnp.where(jnp.isnan(chances), -jnp.inf, chances)


@jax.jit
def _after(model: LanguageModel, place: Place, token: Array) -> Place:
    """A place one token later."""
    outputs, state = model.read(token[None], place.state)
    return Place(state, outputs[0], jnp.zeros((), bool))


class Reader(NamedTuple):
    """How far a text is read."""

    read: Int[Array, ""]  # tokens
    state: State
    output: Array  # of the last


def begin(model: LanguageModel, tokens: Int[Array, " time"]) -> Reader:
    """Read the first token."""
    outputs, state = model.read(tokens[:1], model.initial_state())
    return Reader(jnp.ones((), jnp.int32), state, outputs[0])


def read_on(model: LanguageModel, tokens: Int[Array, " time"], reader: Reader, length: Array | int) -> Reader:
    """Read until `length` tokens are read: one after another, as texts of any length are one program."""

    def read(reader: Reader) -> Reader:
        outputs, state = model.read(tokens[reader.read][None], reader.state)
        return Reader(reader.read + 1, state, outputs[0])

    return jax.lax.while_loop(lambda reader: reader.read < length, read, reader)


class PieceTable(NamedTuple):
    """The pieces of a tokenizer on the device."""

    starts: Bool[Array, " vocabulary"]
    joins: Bool[Array, " vocabulary"]
    opens: Bool[Array, " vocabulary"]
    white: Bool[Array, " vocabulary"]
    sizes: Int[Array, " vocabulary"]  # bytes of the pieces of words; 0 for all else
    hashes: UInt[Array, "vocabulary lengths"]  # of the first 0, 1, ... bytes of a piece; from its end on, of all
    powers: UInt[Array, " vocabulary"]  # by which the hash of what goes before is multiplied

    @classmethod
    def of(cls, pieces: Pieces) -> PieceTable:
        in_words = pieces.starts | pieces.joins
        kept = [text if part else b"" for text, part in zip(pieces.texts, in_words, strict=True)]
        longest = max(map(len, kept))
        hashes = np.array([_hashes(text.ljust(longest))[np.minimum(range(longest + 1), len(text))] for text in kept])
        powers = np.array([pow(_BASE, len(text), 2**32) for text in kept], np.uint32)
        sizes = np.array([len(text) for text in kept], np.int32)
        columns = (pieces.starts, pieces.joins, pieces.opens, pieces.white, sizes, hashes, powers)
        return cls(*map(jnp.asarray, columns))


def _hashes(text: bytes) -> np.ndarray:
    """Hashes of the first 0, 1, ... bytes. They can be computed piece by piece."""
    values = [0]
    for byte in text:
        values.append((values[-1] * _BASE + byte + 1) % 2**32)
    return np.array(values, np.uint32)


def hash_of(text: bytes) -> int:
    """A hash that tells words apart."""
    return int(_hashes(text)[-1])


class Spelled(NamedTuple):
    """Words, or beginnings of some."""

    score: Float[Array, " words"]  # sorted; -inf where there is no word
    size: Int[Array, " words"]  # bytes
    hash: UInt[Array, " words"]
    tokens: Int[Array, "words most"]  # filled up with -1

    def take(self, rows: Array) -> Spelled:
        return jax.tree.map(lambda column: column[rows], self)


class _Live(NamedTuple):
    """The hypotheses of one step."""

    spelled: Spelled
    in_word: Bool[Array, " width"]
    place: Place


class Typed(NamedTuple):
    """The letters that are typed already."""

    text: UInt[Array, " longest"]
    size: Int[Array, ""]  # bytes of it that count


def search(
    model: LanguageModel, table: PieceTable, place: Place, count: int, most: int, typed: Typed | None = None
) -> tuple[Spelled, Array]:
    """The likeliest words at one place, and the score of what is likeliest besides words: as `likeliest_words`."""
    width = max(WIDTH, count)

    def unfinished(carry: tuple[Array, _Live, Spelled, Array]) -> Array:
        step, live, found, _ = carry
        return (step <= most) & jnp.any(live.spelled.score > found.score[-1])

    def extend(carry: tuple[Array, _Live, Spelled, Array]) -> tuple[Array, _Live, Spelled, Array]:
        step, (spelled, in_word, here), found, other = carry
        chances = _log_chances(model, here.output)  # [width, vocabulary]
        ends = jax.nn.logsumexp(jnp.where(table.joins, -jnp.inf, chances), axis=-1)
        score = jnp.where(here.after_word & (ends > -jnp.inf), spelled.score - ends, spelled.score)
        whole = in_word if typed is None else in_word & (spelled.size >= typed.size)
        complete = spelled._replace(score=jnp.where(whole, score + ends, -jnp.inf))
        found = _best_words(jax.tree.map(lambda *two: jnp.concatenate(two), found, complete), count)

        ended = here.after_word[:, None] & table.joins  # would continue the word before, which has ended
        before = (table.starts | table.opens | table.white) & ~ended
        longer = score[:, None] + chances
        besides = ~(in_word[:, None] | before | ended)
        other = jnp.maximum(other, jnp.max(jnp.where(besides, longer, -jnp.inf)))
        fits = jnp.where(in_word[:, None], table.joins, before) & (step < most)
        if typed is not None:
            fits &= _agrees(table, spelled.size, typed)
        # The best of each hypothesis, then of all: of equal ones the earlier hypothesis and the lower id come first.
        best, ids = jax.lax.top_k(jnp.where(fits, longer, -jnp.inf), width)
        best, rows = jax.lax.top_k(best.ravel(), width)
        parents, tokens = rows // width, ids.ravel()[rows]
        kept = spelled.take(parents)
        spelled = Spelled(
            best,
            kept.size + table.sizes[tokens],
            kept.hash * table.powers[tokens] + table.hashes[tokens, -1],
            kept.tokens.at[:, step].set(tokens),
        )
        moved = jax.tree.map(lambda leaf: leaf[parents], here)
        live = _Live(spelled, in_word[parents] | ~table.white[tokens], jax.vmap(partial(_after, model))(moved, tokens))
        return step + 1, live, found, other

    live = _Live(
        _nothing(width, most)._replace(score=jnp.full(width, -jnp.inf).at[0].set(0.0)),
        jnp.zeros(width, bool),
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (width, *jnp.shape(leaf))), place),
    )
    start = (jnp.zeros((), jnp.int32), live, _nothing(count, most), jnp.asarray(-jnp.inf))
    _, _, found, other = jax.lax.while_loop(unfinished, extend, start)
    return found, other


def _nothing(rows: int, most: int) -> Spelled:
    none = jnp.zeros(rows, jnp.int32)
    return Spelled(jnp.full(rows, -jnp.inf), none, none.astype(jnp.uint32), jnp.full((rows, most), -1, jnp.int32))


def _best_words(words: Spelled, count: int) -> Spelled:
    """The `count` words with the highest scores, each once."""
    score, place = words.score, jnp.arange(len(words.score))
    alike = (words.hash[:, None] == words.hash) & (words.size[:, None] == words.size)
    better = (score > score[:, None]) | ((score == score[:, None]) & (place < place[:, None]))
    score, rows = jax.lax.top_k(jnp.where(jnp.any(alike & better, axis=1), -jnp.inf, score), count)
    return words.take(rows)._replace(score=score)


def _agrees(table: PieceTable, size: Int[Array, " width"], typed: Typed) -> Bool[Array, "width vocabulary"]:
    """Which pieces agree with the typed letters that come after the first `size` bytes, as far as both go."""
    longest = table.hashes.shape[1] - 1
    places = size[:, None] + jnp.arange(longest)  # [width, longest]
    wanted = typed.text[jnp.minimum(places, len(typed.text) - 1)].astype(jnp.uint32)

    def add(hash: Array, byte: Array) -> tuple[Array, Array]:
        longer = hash * jnp.uint32(_BASE) + byte + 1
        return longer, longer

    _, hashes = jax.lax.scan(add, jnp.zeros(len(size), jnp.uint32), wanted.T)
    hashes = jnp.concatenate([jnp.zeros((1, len(size)), jnp.uint32), hashes]).T  # [width, lengths]
    both = jnp.minimum(table.sizes, jnp.maximum(typed.size - size, 0)[:, None])  # [width, vocabulary]
    own = jnp.take_along_axis(table.hashes, both.T, axis=1).T
    return own == jnp.take_along_axis(hashes, both, axis=1)
