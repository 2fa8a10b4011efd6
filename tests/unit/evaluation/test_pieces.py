"""Words are the same whatever pieces a tokenizer cuts them into."""

from __future__ import annotations

import pytest

from sottovoce.data.subwords import Subwords
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.pieces import characters_of, ends_in_word, pieces_of, words_of
from tokenizer_examples import byte_level, unigram, with_bytes, wordpiece

TEXT = "Hi, don't  go (there)\nin 10 min: <url> été"
WORDS = ["Hi", "don't", "go", "there", "in", "10", "min", "été"]
AFTER_WORD = [False, False, True, False, False, True, True, False]


@pytest.mark.parametrize("tokenizer", [Subwords.of_bytes(), byte_level(), with_bytes()], ids=["bytes", "bpe", "llama"])
def test_words_of_a_text(tokenizer: Subwords) -> None:
    pieces, tokens = pieces_of(tokenizer), tokenizer.encode(TEXT)
    words = words_of(pieces, tokens)
    assert [word.text.decode() for word in words] == WORDS
    assert [word.after_word for word in words] == AFTER_WORD
    # The spaces before a word are its own, so what goes before its place ends with a word, a mark or a beginning.
    for word in words:
        assert tokenizer.decode(tokens[word.place : word.end]).strip() == word.text.decode()
        assert not tokenizer.decode(tokens[: word.place]).endswith((" ", "\n"))
    assert characters_of(pieces, tokens) == len("Hi,don'tgo(there)in10min:été")
    assert [ends_in_word(pieces, tokenizer.encode(text)[:-1]) for text in ("a b", "a,", "")] == [True, False, False]


def test_words_with_implied_spaces_and_an_unknown_one() -> None:
    tokenizer = wordpiece()
    words = words_of(pieces_of(tokenizer), tokenizer.encode("The cats, dogs sitting"))
    assert [(word.text, word.known) for word in words] == [
        (b"the", True), (b"cats", True), (b"", False), (b"sitting", True)
    ]  # fmt: skip
    assert [word.after_word for word in words] == [False, True, False, True]
    assert [(word.place, word.end) for word in words] == [(1, 2), (2, 4), (5, 6), (6, 8)]


def test_what_cannot_be_written_makes_a_word_unknown_to_its_end() -> None:
    tokenizer = unigram()
    words = words_of(pieces_of(tokenizer), tokenizer.encode("the cats. zs"))
    assert [(word.text, word.known) for word in words][:2] == [(b"the", True), (b"cats", True)]
    assert not any(word.known for word in words[2:])


def test_words_that_are_tokens_are_words(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.encode("waa, wab <url> waa unknown .")
    words = words_of(pieces_of(vocabulary), tokens)
    assert [(word.text.decode(), word.known) for word in words] == [
        ("waa", True), ("wab", True), ("waa", True), ("", False)
    ]  # fmt: skip
