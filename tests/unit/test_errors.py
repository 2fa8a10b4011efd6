"""Errors know the settings they name."""

from __future__ import annotations

import pytest

from sottovoce_evidence.errors import SettingError, did_you_mean

ERROR = SettingError(
    "{cohort:g} must be at most {users}; lower {cohort.name}, not {split!r}", cohort=11.0, users=10, split="x"
)


def test_settings_are_written_as_in_python():
    assert str(ERROR) == "cohort=11 must be at most users=10; lower cohort, not split='x'"


def test_settings_that_have_an_option_are_written_as_options():
    options = {"cohort": "--cohort", "split": "--split"}
    assert ERROR.text(options) == "--cohort 11 must be at most users=10; lower --cohort, not --split 'x'"


@pytest.mark.parametrize(("word", "answer"), [("cohrot", "; did you mean 'cohort'?"), ("xyz", "")])
def test_a_near_word_is_proposed(word, answer):
    assert did_you_mean(word, ["cohort", "clip_norm"]) == answer
