"""Sentences of a release against its facts."""

from __future__ import annotations

from builders import make_statement

from sottovoce.reporting import sentences
from sottovoce_evidence.statement import STARTED_FROM, StartFacts


def test_what_is_not_covered_follows_from_the_facts():
    started = make_statement(start=StartFacts("c0ffee00" * 8, "public"), sampling="in_turn")
    missing = [text for text in sentences._not_covered(started) if text not in started.not_covered]
    assert missing[0] == STARTED_FROM
    assert "by a public rule" in missing[1]
