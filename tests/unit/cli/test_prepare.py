"""Options that do not go together, and made-up people in place of files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sottovoce.cli.main import main
from sottovoce.cli.prepare import Words
from sottovoce_evidence.errors import SottoError

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


@pytest.mark.parametrize(("given", "held_out"), [([], "exact"), (["--held-out", "private"], "private")])
def test_prepare_says_what_it_took_of_held_out_users(tmp_path, capsys, given, held_out):
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"user": n, "text": "tea and milk"}) + "\n" for n in range(30))
    )
    with pytest.raises(SystemExit) as ended:
        main(["prepare", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "store"), *given])
    assert ended.value.code == 0
    assert f"held-out users are declared {held_out}: " in capsys.readouterr().out
    assert json.loads((tmp_path / "store" / "store.json").read_text())["held_out"] == held_out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("c.jsonl", "--shards", "2"), "are for --engine spark"),
        (("--table", "t"), "are for --engine spark"),
        (("c.jsonl", "--order-field", "time"), "stay in the order of files and lines"),
        (("--engine", "spark"), "name at least one corpus file"),
        (("--engine", "spark", "--table", "t"), "name the field that does, .* with --order-field"),
        (("c.jsonl", "--engine", "spark", "--plain-text"), "plain text has no users"),
        (("c.jsonl", "--engine", "spark", "--plain-text", "--own-words"), "the vocabulary is given"),
    ],
    ids=str,
)
def test_what_spark_cannot_do_is_refused_in_one_line(given, said, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["prepare", *given, "--out", str(tmp_path / "store")])
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert re.search(said, line), line
    assert "\n" not in line
    assert not list(tmp_path.iterdir())


def comments(tmp_path: Path, last: str = "") -> Path:
    """A made-up dump of Reddit: three people, a bot, and a line that may be broken."""
    row = '{{"author":"{}","body":"the tea is good","created_utc":{}}}\n'
    path = tmp_path / "RC_2017-11"
    text = "".join(row.format(f"{name}", number) for number, name in enumerate(["ann", "bea", "cy", "tea_bot"] * 3))
    path.write_text(text + last, encoding="utf-8")
    return path


def test_a_dump_becomes_a_store_by_its_format(tmp_path, capsys):
    arguments = ["prepare", str(comments(tmp_path)), "--format", "reddit", "--test-users", "0"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path / "store"), "--json"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    assert (found["train_users"], found["records"], found["records_filtered"]) == (3, 9, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--format", "reddit", "--split", "test"], "are for --format stackoverflow"),
        (["--format", "reddit", "--user-field", "author"], "a dump names its own fields"),
        (["--format", "reddit", "--plain-text"], "leave one of them out"),
        (["--format", "reddit", "--engine", "spark"], "--format is read on this machine"),
        (["--format", "stackoverflow", "--split", "all"], "--split 'all' must be one of train, heldout, test"),
        (["--format", "stackoverflow"], "RC_2017-11 is neither an SQLite nor an HDF5 file"),
        (["--format", "reddit", "broken"], "RC_2017-11:13: no field 'body'"),
    ],
    ids=str,
)
def test_what_a_dump_cannot_be_is_refused_in_one_line(given, said, tmp_path, capsys):
    broken = given[-1] == "broken"
    path = comments(tmp_path, '{"author":"ann","created_utc":99}\n' if broken else "")
    with pytest.raises(SystemExit) as ended:
        main(["prepare", str(path), *given[: -1 if broken else None], "--out", str(tmp_path / "store")])
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert said in line
    assert "\n" not in line
    assert not (tmp_path / "store").exists()


def test_words_of_a_dump_that_is_cut_are_cut_at_spaces(tmp_path, capsys):
    (tmp_path / "stackoverflow.word_count").write_text("the\t2\nfront-end\t1\n")
    words = Words(vocabulary=tmp_path / "stackoverflow.word_count")
    assert words.of_dump("reddit") is words
    assert "front-end" in words.of_dump("stackoverflow").open()[0].words
    assert "the guarantee then does not cover which words there are" in capsys.readouterr().err
