"""Baselines of public text: computed as for a model, and blind to users who are not evaluated."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import BOS, EOS, UNK
from sottovoce.evaluation.baselines import Frequencies, Unigram, common_tokens, evaluate_baselines
from sottovoce.evaluation.keystrokes import count_keystrokes, saving
from sottovoce.evaluation.prediction import evaluate
from tokenizer_examples import byte_level

WORDS = ("red", "green", "blue", "sky")
VOCABULARY = Vocabulary.from_words(WORDS)
RED, GREEN, BLUE, SKY = range(VOCABULARY.frame_size, VOCABULARY.size)
COUNTED = {"red": 50, "green": 30, "blue": 20, "grey": 7, "<eos>": 10, "<bos>": 10, "<unk>": 3}


def people() -> Store:
    return Store.from_users([[BOS, GREEN, GREEN, RED, EOS], [BOS, GREEN, UNK, SKY, BLUE, EOS]], VOCABULARY)


def test_what_the_vocabulary_lacks_is_unknown():
    frequencies = Frequencies.of("text", COUNTED, VOCABULARY)
    found = dict(zip(VOCABULARY.words, frequencies.counts.tolist(), strict=True))
    assert (found["red"], found["sky"], found["<unk>"], found["<eos>"]) == (50, 0, 10, 10)
    assert sum(found.values()) == sum(COUNTED.values())


def test_text_in_another_language_says_nothing():
    other = Vocabulary.from_words(("rot", "blau", "red"))
    assert Frequencies.of("text", COUNTED, other) is None


def test_the_unigram_is_measured_as_a_model_is():
    frequencies, store = Frequencies.of("text", COUNTED, VOCABULARY), people()
    weights = np.maximum(frequencies.counts, 1.0)
    weights[BOS] = 1e-9  # never a target, but read where a text is padded
    model = evaluate(Unigram(jnp.log(weights)), store)
    found = evaluate_baselines(frequencies, store, range(2)).unigram
    assert (found.users, found.targets, found.oov_rate) == (model.users, model.targets, model.oov_rate)
    assert found.top1 == model.top1 == 1 / 9
    assert found.perplexity == pytest.approx(model.perplexity, rel=1e-4)
    assert found.perplexity_in_vocabulary == pytest.approx(model.perplexity_in_vocabulary, rel=1e-4)


def test_keystrokes_of_the_unigram_by_hand():
    """It shows one word: "red", after a letter the most frequent that begins so."""
    model = Unigram.of(Frequencies.of("text", COUNTED, VOCABULARY))
    store = Store.from_users([[BOS, GREEN, RED, SKY, BLUE, EOS]], VOCABULARY)
    found = saving(count_keystrokes(model, store, 1), 1)
    assert (found.characters, found.keystrokes) == (5 + 3 + 3 + 4, 1 + 0 + 1 + 1)


def test_constant_suggestions_are_the_frequent_public_tokens_that_suit_these_users():
    found = evaluate_baselines(Frequencies.of("text", COUNTED, VOCABULARY), people(), range(2))
    assert found.token == GREEN
    assert found.constant.top1 == pytest.approx(3 / 9)
    assert found.constant.top3 == pytest.approx(6 / 9)  # green, the end, and red or blue
    assert math.isinf(found.constant.perplexity)
    assert found.constant.top1 >= found.unigram.top1


def test_without_public_text_the_end_marks_and_first_words_of_a_list_are_suggested():
    names = [VOCABULARY.text_of(token) for token in common_tokens(VOCABULARY, listed=True)]
    assert names == ["<eos>", ".", ",", "?", "!", *WORDS]
    assert len(common_tokens(Vocabulary.from_words(f"w{letter}" for letter in "abcdefgh"), listed=True)) == 10
    found = evaluate_baselines(None, people(), range(2), listed=True)
    assert (found.token, found.unigram) == (GREEN, None)
    assert found.constant.top1 == pytest.approx(3 / 9)
    assert math.isinf(found.constant.perplexity)
    # Words in an order of people's own text are not among them, nor are pieces of words.
    found = evaluate_baselines(None, people(), range(2))
    assert (found.token, found.constant.top1, found.constant.top1_words) == (EOS, pytest.approx(2 / 9), 0)
    pieces = byte_level()
    assert [pieces.text_of(token) for token in common_tokens(pieces, listed=False)][1:] == [".", ",", "?", "!"]


def test_a_list_saves_keystrokes_by_its_order_alone():
    """It shows one word: "red", after a letter the first that begins so."""
    vocabulary = Vocabulary.from_words(("red", "rose", "blue"))
    red, rose, blue = range(vocabulary.frame_size, vocabulary.size)
    found = saving(
        count_keystrokes(Unigram.in_order(vocabulary), Store.from_users([[BOS, red, rose, blue, EOS]], vocabulary), 1),
        1,
    )
    assert (found.characters, found.keystrokes) == (3 + 4 + 4, 0 + 2 + 1)


def test_users_who_are_not_evaluated_change_nothing():
    frequencies, store = Frequencies.of("text", COUNTED, VOCABULARY), people()
    alone = Store.from_users([store[0]], VOCABULARY, store.tokens_per_user)
    for counted in (frequencies, None):
        assert evaluate_baselines(counted, store, range(1)) == evaluate_baselines(counted, alone, range(1))
    assert evaluate_baselines(frequencies, store, range(1)).constant.users == 1
