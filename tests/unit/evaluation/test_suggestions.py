"""The words that a keyboard offers."""

from __future__ import annotations

import numpy as np

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.suggestions import offer, suggest

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
