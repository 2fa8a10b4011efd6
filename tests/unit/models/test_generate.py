"""Texts that a model writes, and their probabilities."""

from __future__ import annotations

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sottovoce.data.tokenizer import Specials
from sottovoce.data.words import BOS, EOS
from sottovoce.models.generate import log_probabilities, sample_texts
from sottovoce.models.lstm import LSTM

SPECIALS = Specials(BOS, EOS, 2)


@pytest.fixture(scope="module")
def tiny():
    """Five tokens: BOS, EOS, UNK and two words, some much likelier than others."""
    model = LSTM(5, embedding=3, hidden=4, key=jax.random.key(4))
    return eqx.tree_at(lambda model: model.projection_bias, model, jnp.array([1.0, -1.5, 0.5]))


def by_hand(model, text, specials=SPECIALS):
    """log P of a text, read in one go, with BOS put after each EOS."""
    stream, targets = [specials.bos], []
    for token in text:
        targets.append(len(stream) - 1)
        stream += [token, specials.bos] if token == specials.eos else [token]
    padded = np.pad(stream, (0, 2 * len(text) + 1 - len(stream)))
    outputs, _ = jax.jit(LSTM.read)(model, padded, model.initial_state())
    scores = np.array(model.logits(outputs), np.float64)[targets]
    scores[:, specials.bos] = -np.inf
    logs = scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
    return sum(logs[place, token] for place, token in enumerate(text))


def test_a_text_is_scored_as_if_it_were_read_in_one_go(model):
    texts = np.array([[5, 9, 30, 7], [5, EOS, 8, 8], [EOS, EOS, 12, EOS]])
    expected = [by_hand(model, text) for text in texts]
    np.testing.assert_allclose(log_probabilities(model, SPECIALS, texts), expected, rtol=1e-5)


@pytest.mark.slow
def test_specials_are_those_of_the_tokenizer(model):
    other = Specials(bos=7, eos=5, unk=None)
    texts = np.array([[5, 9, 30, 8], [0, 1, 2, 5]])
    expected = [by_hand(model, text, other) for text in texts]
    np.testing.assert_allclose(log_probabilities(model, other, texts), expected, rtol=1e-5)


@pytest.mark.slow
def test_all_texts_of_one_length_have_probability_one(tiny):
    texts = np.array(list(product(range(1, 5), repeat=4)))
    assert np.exp(log_probabilities(tiny, SPECIALS, texts)).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_texts_come_as_often_as_they_are_likely(tiny):
    drawn = sample_texts(tiny, SPECIALS, 6000, jax.random.key(1), length=2)
    assert drawn.shape == (6000, 2)
    texts = np.array(list(product(range(1, 5), repeat=2)))
    expected = 6000 * np.exp(log_probabilities(tiny, SPECIALS, texts))
    seen = np.array([np.sum(np.all(drawn == text, axis=1)) for text in texts])
    assert seen.sum() == 6000  # no BOS
    assert stats.chisquare(seen, expected * 6000 / expected.sum()).pvalue > 0.001
    flatter = expected**0.8
    assert stats.chisquare(seen, 6000 * flatter / flatter.sum()).pvalue < 0.001


@pytest.mark.slow
def test_a_key_gives_its_texts_and_another_gives_others(tiny):
    first, again, other = (sample_texts(tiny, SPECIALS, 700, jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[:188], first[512:])  # the second block is not the first once more
