"""Options of an evaluation that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from sottovoce.cli.evaluate import Measures, Texts
from sottovoce.errors import SottoError


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Texts, {"corpus": [Path("a.jsonl")], "store": Path("b")}, "--corpus goes without --store"),
        (Texts, {"corpus": [Path("a.jsonl")], "split": "train"}, "--corpus goes without --store"),
        (Measures, {"suggestions": 3}, "--suggestions 3 is for --keystrokes"),
        (Measures, {"keystrokes": True, "suggestions": 0}, "--suggestions 0 must be at least 1"),
        (Measures, {"epochs": 2}, "are for --personalise"),
        (Measures, {"learning_rate": 0.1}, "are for --personalise"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(kind, given, words):
    with pytest.raises(SottoError, match=words):
        kind(**given)


def test_keystrokes_are_counted_with_three_suggestions_unless_another_number_is_given():
    assert [measures.shown for measures in (Measures(), Measures(keystrokes=True))] == [0, 3]
    assert Measures(keystrokes=True, suggestions=5).shown == 5
