"""Many texts at once have the ids that each has alone."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sentences import SENTENCES
from sottovoce.data.languages import find_language
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import tokenise

ODD = [
    *("", "a", "'", "\n", "a''b 'a' a'", "<url>'s <a>b> <<x> <URL> <a'b>", "<bos> <eos> <unk>", "a_b 3's a3b ²½"),
    *("l'l'homme qu'on qu'l'x d'", "a\x1eb\x1fc", "\x1f", "कa\u200d\u200cक \u200dक", 'צה"ל "ל', "l·l l· ·l", "\ud800x"),
    *("I İ i\u0307 Σ ΑΣ", "x" * 300, "é" * 300, "\u0301a", "a\u0301'b", "\u200d\u0301a\u200d b", "‘a’b"),
]
TEXTS = [*(text for text, _ in SENTENCES.values()), *ODD]


def column(texts: list[str]) -> pa.Array:
    return pa.array([text.encode("utf-8", "surrogatepass") for text in texts], pa.binary()).view(pa.string())


def vocabulary(code: str) -> Vocabulary:
    """Every other word of the texts: the others are unknown, and keep their lengths."""
    rules = find_language(code)
    words = dict.fromkeys(word for text in TEXTS for word in tokenise(text, rules))
    return Vocabulary.from_words(list(words)[::2], language=code)


def assert_same(words: Vocabulary, texts: list[str]) -> None:
    found, alone = words.encode_many(column(texts)), [words.encode_measured(text) for text in texts]
    assert found.lengths.tolist() == [len(ids) for ids in alone]
    assert found.tokens.tolist() == [token for ids in alone for token in ids]


@pytest.mark.parametrize("code", [*SENTENCES, "en"])
def test_the_ids_are_those_of_each_text_alone_in_every_language(code: str) -> None:
    words = vocabulary(code)
    assert_same(words, TEXTS)
    pool = "".join(TEXTS) + " '’<>az19\"·lqu" * 5
    drawn = random.Random(code)
    assert_same(words, ["".join(drawn.choices(pool, k=drawn.randrange(30))) for _ in range(60)])
    for text in TEXTS[::7]:
        assert_same(words, [text])


WORDS = {code: vocabulary(code) for code in ("en", "fr", "he", "tr")}
LETTERS = st.one_of(st.sampled_from("ab'’<>l·qu \"א1_\u0301\u200d"), st.characters())


@examples(60)
@given(st.lists(st.text(LETTERS, max_size=12), max_size=6), st.sampled_from(sorted(WORDS)))
def test_the_ids_are_those_of_each_text_alone_in_any_characters(texts: list[str], code: str) -> None:
    assert_same(WORDS[code], texts)


def test_no_text_can_write_the_marks_between_texts() -> None:
    words = WORDS["en"]
    begin, end = words.specials[:2]
    found = words.encode_many(column(["a \x1e \x1f b", "\x1e\x1f"]))
    assert found.lengths.tolist() == [4, 2]
    assert [int(token) for token in found.tokens if token in (begin, end)] == [begin, end] * 2


def test_large_vocabularies_have_wide_ids() -> None:
    many = Vocabulary.from_tokens(f"w{number}é" for number in range(2**16))
    assert_same(many, ["a b zz", "né"])
    assert many.encode_many(column(["a"])).tokens.dtype == "uint32"
