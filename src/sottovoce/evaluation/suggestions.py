"""What a model would offer a person to type next."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.models.contract import LanguageModel

Suggestion = tuple[str, float]


def offer(scores: np.ndarray, vocabulary: Vocabulary, typed: str = "", count: int = 3) -> list[int]:
    """The rule of a keyboard: the ids of the likeliest words that begin with the letters typed so far.

    Words and numbers only: no marks, no placeholders, nothing that cannot be typed. Of equal scores the lower id comes
    first; what has no score (NaN) is not offered. A word typed to its end begins with itself.
    """
    order = (int(token) for token in np.argsort(-scores, kind="stable") if not np.isnan(scores[token]))
    fits = (token for token in order if vocabulary.is_word(token) and vocabulary.words[token].startswith(typed))
    return [token for token, _ in zip(fits, range(count), strict=False)]


def suggest(
    model: LanguageModel, vocabulary: Vocabulary, text: str, count: int = 3, typed: str = ""
) -> list[Suggestion]:
    """The likeliest next words after a text, given the first letters of the next one, with their probabilities.

    What is not offered is left out of the list, not out of the probabilities.
    """
    tokens = vocabulary.encode(text)[:-1]  # the text goes on: no EOS yet
    outputs, _ = model.read(jnp.asarray(tokens), model.start())
    scores = model.score(outputs[-1])
    chances = np.asarray(jax.nn.softmax(scores))
    offered = offer(np.asarray(scores), vocabulary, typed.lower(), count)
    return [(vocabulary.words[token], float(chances[token])) for token in offered]
