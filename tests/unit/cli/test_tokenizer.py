"""`sotto tokenizer`: what is passed on, and what is printed."""

from __future__ import annotations

from pathlib import Path

from sottovoce.commands.tokenizer import TrainedTokenizer

TRAIN = "sottovoce.commands.tokenizer.train_tokenizer"
MADE = TrainedTokenizer("tokenizer.json", "bpe", 8000, "9f86", 3.25)


def test_options_are_passed_on(stub, sotto, capsys):
    called = stub(TRAIN, MADE)
    sotto(["tokenizer", "train", "a.txt", "b.txt", "--out", "t.json", "--public", "--size", "500", "--kind", "unigram"])
    assert called.places == ((Path("a.txt"), Path("b.txt")), Path("t.json"))
    assert called.names == {"public": True, "kind": "unigram", "size": 500, "lower_case": False}
    printed = capsys.readouterr().out
    assert "3.25" in printed
    assert "sotto prepare YOURS --tokenizer t.json" in printed
    assert "asked for" not in printed


def test_the_answer_is_one_json_object(stub, answer):
    stub(TRAIN, MADE)
    assert answer("tokenizer", "train", "a.txt", "--out", "t.json", "--public") == MADE.to_json()
