"""The tokeniser by example, and its round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sottovoce.data.words import tokenise


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
