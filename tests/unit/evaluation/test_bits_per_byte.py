"""Bits per byte, counted by hand."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.subwords import Subwords
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.prediction import evaluate
from table_model import Table
from tokenizer_examples import byte_level, wordpiece

TEXT = "the cat, the  été"  # without spaces: 3 + 3 + 1 + 3 letters and marks, and 5 bytes of été


def store_of(tokenizer, *texts: str) -> Store:
    both = [tokenizer.separate(np.array(tokenizer.encode_measured(text))) for text in texts]
    return Store.from_users([tokens for tokens, _ in both], tokenizer, unknown=[lengths for _, lengths in both])


@pytest.mark.parametrize(
    "tokenizer",
    [Vocabulary.from_words(["the", "cat", "été"]), Subwords.of_bytes(), byte_level()],
    ids=["words", "bytes", "bpe"],
)
def test_a_text_has_as_many_bytes_in_every_tokenizer(tokenizer) -> None:
    text = Text.of(store_of(tokenizer, TEXT))
    assert (text.bytes, text.unknown_words) == (15, 0)
    # A uniform model pays log2(tokens) bits for each target, the end of the text among them.
    targets = len(tokenizer.encode(TEXT)) - 1
    found = evaluate(Table(jnp.zeros((tokenizer.size, tokenizer.size))), store_of(tokenizer, TEXT))
    assert found.bits_per_byte == pytest.approx(targets * math.log2(tokenizer.size) / 15)
    assert found.bytes == 15


def test_words_outside_the_vocabulary_are_spelled_out() -> None:
    """ "the cat sat": UNK stands for "cat" and for "sat"."""
    vocabulary = Vocabulary.from_words(["the"])
    text = Text.of(store_of(vocabulary, "the cat sat"))
    assert (text.bytes, text.known, text.unknown_words) == (9, 3, 2)
    # 4 bits are the loss; "cat" and its end are 32, as are "sat" and its end.
    assert text.bits_per_byte(4 * math.log(2)) == pytest.approx((4 + 32 + 32) / 9)


def test_letters_of_unknown_words_have_as_many_bytes_as_known_ones() -> None:
    vocabulary = Vocabulary.from_words(["да", "и"])  # two bytes a letter
    assert Text.of(store_of(vocabulary, "да нет и")).bytes == 4 + 6 + 2


def test_a_smaller_vocabulary_does_not_help() -> None:
    """The same text and a model that knows it by heart, but for what it cannot write."""
    text = "red blue red green " * 5
    figures = []
    for words in (["red", "blue", "green"], ["red", "blue"], ["red"]):
        vocabulary = Vocabulary.from_words(words)
        # It is as certain of the next token as can be: the loss is nothing.
        figures.append(Text.of(store_of(vocabulary, text)).bits_per_byte(0.0))
    assert figures == sorted(figures)
    assert figures[0] == 0


def test_unknown_lengths_leave_it_unknown_and_no_text_has_none() -> None:
    vocabulary = Vocabulary.from_words(["the"])
    tokens = [vocabulary.encode("the cat")]
    assert Text.of(Store.from_users(tokens, vocabulary)).bits_per_byte(1.0) is None
    found = evaluate(Table(jnp.zeros((vocabulary.size, vocabulary.size))), Store.from_users(tokens, vocabulary))
    assert (found.bits_per_byte, found.bytes) == (None, 0)
    assert "bits_per_byte" not in found.to_json()
    assert Text.of(Store.from_users([[0, 1]], vocabulary)).bits_per_byte(1.0) is None


def test_rows_choose_the_users_and_a_diverged_model_is_infinitely_bad() -> None:
    store = store_of(wordpiece(), "the cats", "the")
    assert Text.of(store, [1]).bytes == 3
    assert Text.of(store).bytes == 10
    assert Text.of(store).bits_per_byte(math.nan) == math.inf
