"""The tokeniser by example, in many scripts, and its round trip."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sentences import SENTENCES
from sottovoce.data.languages import NAMES, find_language
from sottovoce.data.words import fold, is_word, tokenise


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"]),
        ("Don't can’t donʼt", ["don't", "can't", "don't"]),
        ("rock 'n' roll", ["rock", "'", "n", "'", "roll"]),
        ("the boys' o'clock", ["the", "boys", "'", "o'clock"]),
        ("at 10:30 in 2019", ["at", "10", ":", "30", "in", "2019"]),
        ("3rd h2o", ["3", "rd", "h", "2", "o"]),
        ("see <url> or <EMAIL>, <user>", ["see", "<url>", "or", "<email>", ",", "<user>"]),
        ("a < b > c <3 <a1>", ["a", "<", "b", ">", "c", "<", "3", "<", "a", "1", ">"]),
        ("snake_case", ["snake", "_", "case"]),
        ("wait...", ["wait", ".", ".", "."]),
        ("Ärger ÉTÉ été Привет", ["ärger", "été", "été", "привет"]),
        ("e\u0301te\u0301", ["été"]),
        ("😂👍", ["😂", "👍"]),
        (" \t\n\u00a0", []),
    ],
)
def test_tokens_by_example(text: str, tokens: list[str]) -> None:
    assert tokenise(text) == tokens


@examples(100)
@given(st.text())
def test_cutting_again_changes_nothing(text: str) -> None:
    tokens = tokenise(text)
    assert tokenise(" ".join(tokens)) == tokens


@examples(100)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_visible_character_of_lower_case_ascii_is_lost(text: str) -> None:
    lowered = "".join(c for c in text if c.isascii()).lower()
    assert "".join(tokenise(lowered)) == "".join(lowered.split())


def without_marks(text: str) -> list[str]:
    """The rule without marks, in one expression."""
    text = unicodedata.normalize("NFC", text.lower()).translate({ord("’"): "'", ord("ʼ"): "'"})
    return re.findall(r"<[a-z]+>|[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[^\w\s]|_", text)


@examples(200)
@given(st.text(st.characters(codec="ascii")))
def test_ascii_text_has_the_tokens_of_the_rule_without_marks(text: str) -> None:
    assert tokenise(text) == without_marks(text)


@pytest.mark.parametrize("code", SENTENCES)
def test_words_of_many_scripts(code: str) -> None:
    (sentence, words), language = SENTENCES[code], find_language(code)
    tokens = tokenise(sentence, language)
    assert tokens == unicodedata.normalize(language.form, words).split()
    assert tokenise(" ".join(tokens), language) == tokens
    assert all(is_word(token) for token in tokens if len(token) > 1)


@pytest.mark.parametrize("code", ["hi", "ta", "ka", "am", "ru", "ko", "bn"])
def test_scripts_with_spaces_need_no_language(code: str) -> None:
    sentence, words = SENTENCES[code]
    assert tokenise(sentence) == unicodedata.normalize("NFC", words).split()


@pytest.mark.slow
@examples(100)
@given(st.sampled_from(sorted(NAMES)), st.text())
def test_cutting_again_changes_nothing_in_any_language(code: str, text: str) -> None:
    language = find_language(code)
    tokens = tokenise(text, language)
    assert tokenise(" ".join(tokens), language) == tokens


LETTERS = "".join(sentence for sentence, _ in SENTENCES.values()) + "\u200c\u200d a'A"


@examples(200)
@given(st.sampled_from(["th", "zh", "ja", "km", "lo", "my", "en", "he", "fr"]), st.text(LETTERS))
def test_cutting_again_changes_nothing_in_mixed_scripts(code: str, text: str) -> None:
    language = find_language(code)
    tokens = tokenise(text, language)
    assert tokenise(" ".join(tokens), language) == tokens
    assert "".join(tokens) == "".join(fold(text, language).split())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("क्\u200dया", ["क्\u200dया"]),
        ("می\u200cشود", ["می\u200cشود"]),
        ("a\u200d b\u200c\u200cc", ["a", "\u200d", "b\u200c\u200cc"]),
        ("👩\u200d💻 ❤\ufe0f", ["👩", "\u200d", "💻", "❤", "\ufe0f"]),
        ("x\u0302y 1\u0301", ["x\u0302y", "1", "\u0301"]),
        ("१२३ ٤٥ ๖๗", ["१२३", "٤٥", "๖๗"]),
        ('say"no"', ["say", '"', "no", '"']),
    ],
)
def test_marks_joiners_and_digits(text: str, tokens: list[str]) -> None:
    assert tokenise(text) == tokens


def test_without_a_language_words_are_not_looked_for_inside_runs() -> None:
    assert tokenise("我喜欢中文") == ["我喜欢中文"]
