"""Sentences of a release against its facts."""

from __future__ import annotations

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
