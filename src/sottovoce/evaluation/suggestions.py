"""What a model would offer a person to type next."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.vocabulary import BOS, EOS, UNK, Vocabulary
from sottovoce.models.language_model import LanguageModel

Suggestion = tuple[str, float]


def suggest(model: LanguageModel, vocabulary: Vocabulary, text: str, count: int = 3) -> list[Suggestion]:
    """The likeliest next words after a text, with their probabilities.

    What cannot be typed (BOS, EOS, unknown words) is left out of the list, not out of the probabilities.
    """
    tokens = vocabulary.encode(text)[:-1]  # the text goes on: no EOS yet
    outputs, _ = model.read(jnp.asarray(tokens), model.start())
    chances = np.asarray(jax.nn.softmax(model.score(outputs[-1])))
    order = [token for token in np.argsort(-chances, kind="stable") if token not in (BOS, EOS, UNK)]
    return [(vocabulary.words[token], float(chances[token])) for token in order[:count]]
