"""The words that a keyboard offers next."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.contexts import begin_token
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.evaluation.pieces import ends_in_word, pieces_of
from sottovoce.evaluation.whole_words import PieceTable, Place, Spelled, Typed, begin, read_on, search
from sottovoce.models.contract import LanguageModel

Suggestion = tuple[str, float]
_LONGEST_TYPED = 96  # bytes
_SHORTEST = 16  # tokens that a text is padded to: one compiled program for all short texts


def offer(logits: np.ndarray, tokenizer: Tokenizer, typed: str = "", count: int = 3) -> list[int]:
    """The rule of a keyboard: the ids of the likeliest words that begin with the letters typed so far.

    Words and numbers only: no marks, no placeholders, no specials. Of equal logits the lower id comes first; a token
    whose logit is NaN is not offered. A word typed to its end begins with itself.
    """
    order = (int(token) for token in np.argsort(-logits, kind="stable") if not np.isnan(logits[token]))
    fits = (token for token in order if tokenizer.word_mask[token] and tokenizer.text_of(token).startswith(typed))
    return [token for token, _ in zip(fits, range(count), strict=False)]


def suggest(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    count: int = 3,
    typed: str = "",
    context: str | None = None,
) -> list[Suggestion]:
    """The likeliest next words after a text, given the first letters of the next one, with their probabilities.

    Probabilities are over all tokens, also those that are not offered. Where words have several tokens, the probability
    is that of all of them and of the word's end, and the words are found by the search of `whole_words`.

    Args:
        model: of a run, or of your own.
        tokenizer: the run's vocabulary.
        text: what was written before.
        count: how many words.
        typed: the first letters of the next word.
        context: what is known of the writer: a value that the model was trained with.
    """
    first = begin_token(tokenizer, context)
    if not tokenizer.is_words:
        return _suggest_pieces(model, tokenizer, (first, text), count, typed)
    tokens = [first, *tokenizer.encode(text)[1:-1]]  # the text goes on: no EOS yet
    logits, probabilities = map(np.asarray, _after(model, _padded(tokens), len(tokens) - 1))
    offered = offer(logits, tokenizer, tokenizer.fold(typed), count)
    return [(tokenizer.text_of(token), float(probabilities[token])) for token in offered]


def _padded(tokens: list[int]) -> np.ndarray:
    length = max(_SHORTEST, 1 << (len(tokens) - 1).bit_length())
    return np.pad(np.asarray(tokens, np.int32), (0, length - len(tokens)))


@jax.jit
def _after(model: LanguageModel, tokens: jax.Array, last: int) -> tuple[jax.Array, jax.Array]:
    """The logits and probabilities of the next token after the token at `last`; the padding behind it is not read."""
    outputs, _ = model.read(tokens, model.initial_state())
    logits = model.logits(outputs[last])
    return logits, jax.nn.softmax(logits)


def _suggest_pieces(
    model: LanguageModel, tokenizer: Tokenizer, begun: tuple[int, str], count: int, typed: str
) -> list[Suggestion]:
    """`begun` is the first token, and the text after it."""
    pieces, (first, text) = pieces_of(tokenizer), begun
    # The space before the next word is part of its tokens: a text that ends with one is cut in a way never trained on.
    tokens = [first, *tokenizer.encode(text.rstrip())[1:-1]]
    letters = _as_read(tokenizer, typed)[:_LONGEST_TYPED]
    given = Typed(jnp.asarray(np.frombuffer(letters.ljust(_LONGEST_TYPED), np.uint8)), jnp.asarray(len(letters)))
    after_word = np.bool_(ends_in_word(pieces, tokens))
    sizes = (count, pieces.most)
    found = _search(model, PieceTable.of(pieces), (_padded(tokens), len(tokens), after_word), given, sizes)
    words = [b"".join(pieces.texts[token] for token in row if token >= 0) for row in np.asarray(found.tokens)]
    scores = np.asarray(found.score).tolist()
    offered = zip(words, scores, strict=True)
    return [(word.decode(errors="replace"), math.exp(score)) for word, score in offered if score > -math.inf]


def _as_read(tokenizer: Tokenizer, typed: str) -> bytes:
    """Typed letters as the tokenizer reads them: some make all letters small. Not each can write a part of a word."""
    tokens = tokenizer.encode(typed.strip())
    if tokenizer.specials.unk not in tokens:
        return b"".join(map(tokenizer.bytes_of, tokens)).strip()
    return (typed.lower() if writes_small(tokenizer) else typed).strip().encode()


def writes_small(tokenizer: Tokenizer) -> bool:
    """Has no token a capital letter?"""
    written = (tokenizer.text_of(int(token)) for token in np.flatnonzero(tokenizer.typed_mask))
    return all(text == text.lower() for text in written)


@partial(jax.jit, static_argnums=4)
def _search(
    model: LanguageModel,
    table: PieceTable,
    text: tuple[jax.Array, jax.Array, jax.Array],
    typed: Typed,
    sizes: tuple[int, int],
) -> Spelled:
    """`text` is its tokens, how many they are, and whether it ends with a word."""
    tokens, length, after_word = text
    reader = read_on(model, tokens, begin(model, tokens), length)
    count, most = sizes
    found, _ = search(model, table, Place(reader.state, reader.output, after_word), count, most, typed)
    return found
