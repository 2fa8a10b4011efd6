"""Sentences of a release against its facts."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from builders import make_statement

from sottovoce.files import pretty, sealed
from sottovoce.reporting import sentences
from sottovoce.reporting.statement import STARTED_FROM, StartFacts
from sottovoce.reporting.statement_text import prose
from sottovoce.runs.folder import RunFolder


@pytest.fixture
def written(tmp_path):
    def write(statement, **other) -> RunFolder:
        (tmp_path / "privacy.json").write_bytes(pretty(sealed({**statement.to_json(), **other})))
        return RunFolder.of_release(tmp_path)

    return write


def test_of_another_version_figures_are_compared_and_words_are_not(written):
    earlier = make_statement()
    told = prose(earlier)
    for text, fine in ((told, True), ("It is (4.63, 1e-6)-private.", True), ("It has ε = 0.5 at δ = 1e-9.", False)):
        release = written(earlier, prose=text)
        assert (list(sentences.faults(release, earlier)) == []) is fine
        assert list(sentences.notes(release, earlier))  # always


def test_what_is_not_covered_follows_from_the_facts():
    started = make_statement(start=StartFacts("public start"), sampling="in_turn")
    missing = [text for text in sentences._not_covered(started) if text not in started.not_covered]
    assert missing[0] == STARTED_FROM
    assert "by a public rule" in missing[1]


def test_only_sentences_of_this_version_are_compared_word_by_word():
    assert not sentences.are_compared(make_statement())
    assert not sentences.are_compared(make_statement(statement=2))
    assert sentences.are_compared(make_statement(statement=3))
    assert not sentences.are_compared(replace(make_statement(statement=3), software={"sottovoce": "0.0.1"}))


@pytest.mark.parametrize(
    ("text", "epsilons", "deltas"),
    [
        ("**ε = 0.931 at δ = 1e-4**", {0.931}, {1e-4}),
        ("(0.931, 1e-4)-differential privacy, a factor of e^0.931 (plus 1e-4)", {0.931}, {1e-4}),
        ("its epsilon is **.001**; ε ≤ 1,234.5", {0.001, 1234.5}, set()),
        (
            "3 users (2024), 5 of 6 rounds, 16 % better; computes ε from `ledger.jsonl` by three accountants",
            set(),
            set(),
        ),
    ],
)
def test_figures_of_a_readme_are_those_called_by_name(text, epsilons, deltas):
    assert sentences._numbers(sentences._README["ε"], text).keys() == epsilons
    assert sentences._numbers(sentences._README["δ"], text).keys() == deltas


@pytest.mark.parametrize("part", ["ε ", " ", "9", "(9", "9,", "ε" + " " * 10, "(1.1", "e^9", "9 of "])
def test_no_readme_makes_a_search_long(part):
    text, began = "ε" + part * (10**6 // len(part)), time.process_time()
    for pattern in (*sentences._README.values(), sentences._ROUNDS):
        pattern.findall(text)
    assert time.process_time() - began < 10
