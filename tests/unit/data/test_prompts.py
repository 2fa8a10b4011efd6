"""Beginnings of sentences: in the language of the words, and never a user's."""

from __future__ import annotations

import pytest

from sottovoce.data import prompts
from sottovoce.data.languages import NAMES
from sottovoce.data.prompts import prompts_for
from sottovoce.data.vocabulary import Vocabulary
from tokenizer_examples import byte_level

ENGLISH = Vocabulary.from_words(word for prompt in prompts._WRITTEN["en"] for word in prompt.split())


@pytest.mark.parametrize("language", prompts._WRITTEN)
def test_a_public_list_knows_all_sentences_of_its_language(language):
    assert language in NAMES
    written = prompts._WRITTEN[language]
    assert len(written) == len(set(written)) == 8
    assert prompts_for(Vocabulary.public(10_000, language), listed=True) == written


def test_sentences_that_a_vocabulary_cannot_write_are_left_out():
    assert prompts_for(ENGLISH, listed=True) == prompts._WRITTEN["en"]
    without = Vocabulary.from_words(word for word in ENGLISH.words[ENGLISH.frame_size :] if word != "weather")
    assert "the weather is" not in prompts_for(without, listed=True)
    assert len(prompts_for(without, listed=True)) == 7


@pytest.mark.parametrize("language", ["en", "fi", "de"])
def test_a_list_of_other_words_gives_its_first_ones_unless_people_brought_them(language):
    """Not each list names its language: "en" is what stands there then."""
    words = Vocabulary.from_words(("7", "ja", "on", "see", "you"), language=language)
    assert prompts_for(words, listed=True) == ("ja", "on", "see", "you")
    assert prompts_for(words, listed=False) == ()


def test_pieces_of_words_write_every_sentence():
    assert prompts_for(byte_level(), listed=True) == prompts._WRITTEN["en"]
