"""The words that a keyboard offers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.pieces import pieces_of
from sottovoce.evaluation.suggestions import offer, suggest
from sottovoce.evaluation.whole_words import Place, likeliest_words
from table_model import Table
from tokenizer_examples import few_pieces, wordpiece

MIXED = Vocabulary.from_words(["a", "an", "and", "at", "it", "its", "it's", "1", "日本", "日本語"])


def test_only_words_that_begin_so_are_offered_and_ties_go_to_the_lower_id() -> None:
    scores = np.ones(MIXED.size)
    assert [MIXED.words[token] for token in offer(scores, MIXED)] == ["a", "an", "and"]
    assert [MIXED.words[token] for token in offer(scores, MIXED, "it")] == ["it", "its", "it's"]
    assert [MIXED.words[token] for token in offer(scores, MIXED, "日本語")] == ["日本語"]
    assert offer(scores, MIXED, ",") == offer(scores, MIXED, "<") == offer(scores, MIXED, "q") == []
    assert offer(scores * np.nan, MIXED) == []


def test_suggestions_are_words_a_person_can_type(model, vocabulary):
    offered = suggest(model, vocabulary, "waa wab", count=vocabulary.size)
    assert {word for word, _ in offered} == {word for word in vocabulary.words if word.isalnum()}
    chances = [chance for _, chance in offered]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) < 1


def test_suggestions_go_on_from_the_letters_typed(model, vocabulary):
    everything = suggest(model, vocabulary, "waa wab", count=vocabulary.size)
    fitting = [one for one in everything if one[0].startswith("wa")]
    assert suggest(model, vocabulary, "waa wab", count=3, typed="Wa") == fitting[:3]
    assert suggest(model, vocabulary, "waa wab", typed="xyz") == []


def random_table(size: int) -> Table:
    return Table(jnp.asarray(np.random.default_rng(4).normal(0, 2, (size, size)), jnp.float32))


@pytest.mark.parametrize(("text", "typed"), [("abc a", ""), ("abc a  ", ""), ("a.", "b"), ("", "ab")])
def test_whole_words_are_suggested_where_tokens_are_pieces(text: str, typed: str) -> None:
    tokenizer = few_pieces()
    model, last = random_table(tokenizer.size), tokenizer.encode(text.rstrip())[-2]  # a space is of the next word
    place = Place(jnp.zeros(()), model.rows[last], text.rstrip().endswith("a"))
    expected = likeliest_words(model, pieces_of(tokenizer), place, 2, typed.encode())
    found = suggest(model, tokenizer, text, 2, typed)
    assert [word.encode() for word, _ in found] == [word for word, _ in expected.words]
    assert [chance for _, chance in found] == pytest.approx([np.exp(score) for _, score in expected.words], rel=1e-4)
    assert len(found) == 2
    assert sum(chance for _, chance in found) < 1


def test_typed_letters_are_read_as_the_tokenizer_reads_them() -> None:
    tokenizer = wordpiece()  # all small letters
    model = random_table(tokenizer.size)
    assert suggest(model, tokenizer, "the", typed="Ca")[0][0].startswith("cat")
    assert suggest(model, tokenizer, "the", typed="ca") == suggest(model, tokenizer, "the", typed="Ca")
    assert suggest(model, tokenizer, "the", typed="xyz") == []
