"""Options of a vocabulary that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli.prepare import Words
from sottovoce.data.grouping import Grouping
from sottovoce.errors import SottoError

BUDGET = {"epsilon": 1.0, "delta": 1e-6}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 1.0}, "--epsilon is for --private-vocabulary"),
        ({"delta": 1e-6}, "--delta is for --private-vocabulary"),
        ({"words_per_user": 5}, "--words-per-user is for --private-vocabulary"),
        ({"extend_public": True}, "--extend-public is for --private-vocabulary"),
        ({"private_vocabulary": True}, "needs --epsilon and --delta"),
        ({"private_vocabulary": True, "epsilon": 1.0}, "needs --epsilon and --delta"),
        ({"private_vocabulary": True, "tokenizer": "bytes", **BUDGET}, "leave one of them out"),
        ({"private_vocabulary": True, "vocabulary": Path("w.txt"), **BUDGET}, "leave one of them out"),
        ({"private_vocabulary": True, "own_words": True, **BUDGET}, "leave one of them out"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(given, words):
    with pytest.raises(SottoError, match=words):
        Words(**given)


def test_a_store_says_where_its_words_come_from(tmp_path):
    (tmp_path / "words.txt").write_text("tea\nmilk\n")
    vocabulary, source = Words(vocabulary=tmp_path / "words.txt").open()
    assert source == {"source": "file", "file": "words.txt"}
    assert {"tea", "milk"} <= set(vocabulary.words)
    assert Words(vocabulary_size=500).open()[1] == {"source": "public", "list": "wordfreq"}
    assert Words(private_vocabulary=True, **BUDGET).epsilon == 1.0


def test_words_are_counted_in_public_text_alone(tmp_path):
    (tmp_path / "public.txt").write_text("tea tea tea\nmilk\n")
    words, public = Words(own_words=True), [tmp_path / "public.txt"]
    assert words.text_to_count(public, Grouping(plain_text=True)) == public
    assert Words().text_to_count(public, Grouping(plain_text=True)) == []
    with pytest.raises(SottoError, match="--own-words counts public text"):
        words.text_to_count(public, Grouping())
