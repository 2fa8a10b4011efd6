"""The words that a keyboard offers next."""

from __future__ import annotations

import jax
import numpy as np

from sottovoce.data.tokenizer import Tokenizer
from sottovoce.models.contract import LanguageModel

Suggestion = tuple[str, float]
_SHORTEST = 16  # tokens that a text is padded to: one compiled program for all short texts


def offer(logits: np.ndarray, tokenizer: Tokenizer, typed: str = "", count: int = 3) -> list[int]:
    """The rule of a keyboard: the ids of the likeliest words that begin with the letters typed so far.

    Words and numbers only: no marks, no placeholders, no specials. Of equal logits the lower id comes first; a token
    whose logit is NaN is not offered. A word typed to its end begins with itself.
    """
    order = (int(token) for token in np.argsort(-logits, kind="stable") if not np.isnan(logits[token]))
    fits = (token for token in order if tokenizer.word_mask[token] and tokenizer.text_of(token).startswith(typed))
    return [token for token, _ in zip(fits, range(count), strict=False)]


def suggest(model: LanguageModel, tokenizer: Tokenizer, text: str, count: int = 3, typed: str = "") -> list[Suggestion]:
    """The likeliest next words after a text, given the first letters of the next one, with their probabilities.

    Probabilities are over all tokens, also those that are not offered.

    Args:
        model: of a run, or of your own.
        tokenizer: the run's vocabulary.
        text: what was written before.
        count: how many words.
        typed: the first letters of the next word.
    """
    tokens = tokenizer.encode(text)[:-1]  # the text goes on: no EOS yet
    length = max(_SHORTEST, 1 << (len(tokens) - 1).bit_length())
    padded = np.pad(np.asarray(tokens, np.int32), (0, length - len(tokens)))
    logits, probabilities = map(np.asarray, _after(model, padded, len(tokens) - 1))
    offered = offer(logits, tokenizer, typed.lower(), count)
    return [(tokenizer.text_of(token), float(probabilities[token])) for token in offered]


@jax.jit
def _after(model: LanguageModel, tokens: jax.Array, last: int) -> tuple[jax.Array, jax.Array]:
    """The logits and probabilities of the next token after the token at `last`; the padding behind it is not read."""
    outputs, _ = model.read(tokens, model.initial_state())
    logits = model.logits(outputs[last])
    return logits, jax.nn.softmax(logits)
