from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import BOS, EOS
from sottovoce.evaluation.head_words import HEADS, head_words


class Fixed(eqx.Module):
    """A model that scores the words alike at every place."""

    scores: jnp.ndarray

    def initial_state(self):
        return ()

    def read(self, tokens, state, key=None):
        return jnp.zeros((len(tokens), 1)), state

    def logits(self, outputs):
        return jnp.broadcast_to(self.scores, (*outputs.shape[:-1], len(self.scores)))


@pytest.fixture(scope="module")
def people() -> Store:
    """A hundred and fifty words; word i is said the more often the smaller i is, and everybody says the end."""
    frame = Vocabulary.from_words(()).size
    vocabulary = Vocabulary.from_words("w" + chr(97 + number // 26) + chr(97 + number % 26) for number in range(150))
    users = [[BOS, *range(frame, frame + words), EOS] for words in range(1, 151, 10)]
    return Store.from_users(users, vocabulary)


@pytest.mark.parametrize(
    ("first", "expected"), [(0, (10, 10, 10)), (5, (5, 10, 10)), (45, (0, 5, 10)), (95, (0, 0, 5)), (110, (0, 0, 0))]
)
def test_of_ten_predictions_those_among_the_most_frequent_are_counted(people, first, expected):
    frame = people.vocabulary.size - 150
    scores = np.zeros(people.vocabulary.size)
    scores[frame + first : frame + first + 10] = 1
    scores[EOS] = scores[BOS] = 9  # likelier than any word, and no word
    found = head_words(Fixed(jnp.asarray(scores, jnp.float32)), people)
    assert [found.means[n] for n in HEADS] == pytest.approx(expected)
    for n, count in zip(HEADS, expected, strict=True):
        assert found.histograms[n][count] == pytest.approx(1)
        assert sum(found.histograms[n]) == pytest.approx(1)
