"""The baselines of a run: kept in its folder, and the sentence for a model that is no better."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import scores
from sottovoce.evaluation.figures import Evaluation
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import DamagedRun


def score(top1: float, perplexity: float | None = 100.0) -> Evaluation:
    return scores.score(200, top1, perplexity=perplexity)


def said_of(baselines: Baselines, top1: float, top1_words: float | None = None) -> str | None:
    return baselines.no_better(replace(score(top1), top1_words=top1_words))


FULL = Baselines("base english", score(0.117), "the text of base english", ".", score(0.05, None), score(0.03))


def test_they_are_read_as_they_were_written(tmp_path):
    run = RunFolder(tmp_path)
    assert Baselines.of(run) is None
    for baselines in (FULL, Baselines()):
        run.write_json(run.baselines_file, baselines.to_json())
        assert Baselines.of(run) == baselines
    assert json.loads(run.baselines_file.read_text()) == {"start": "nothing"}


@pytest.mark.parametrize("damaged", ["", "[]", '{"start": "x", "checksum": "0"}', '{"unigram": {"users": 1}}'])
def test_a_damaged_file_is_named(tmp_path, damaged):
    run = RunFolder(tmp_path)
    run.baselines_file.write_text(damaged)
    with pytest.raises(DamagedRun, match=r"baselines\.json"):
        Baselines.of(run)


def test_a_model_that_is_no_better_is_named_with_the_best_baseline_it_does_not_beat():
    assert said_of(FULL, 0.118) is None
    assert said_of(FULL, 0.117).startswith("the model is no better than the start, base english: top-1 11.70% against")
    assert "against 11.70%" in said_of(FULL, 0.01)
    assert "sotto plan" in said_of(FULL, 0.01)


def test_words_that_gain_nothing_are_named_where_all_tokens_gain():
    words = replace(FULL, start_model=replace(score(0.117), top1_words=0.0768))
    said = said_of(words, 0.172, 0.076)
    assert said.startswith(
        "over words alone the model is no better than the start, base english: top-1 7.60% against 7.68%; what it "
        "gained is in punctuation, placeholders and ends of text; what helps: "
    )
    assert said_of(words, 0.172, 0.0769) is None
    # Words that gained, and are still behind another baseline: where the gain is, is not known.
    behind = said_of(replace(words, unigram=replace(score(0.02), top1_words=0.09)), 0.172, 0.08)
    assert behind.startswith("over words alone the model is no better than a unigram")
    assert "what it gained" not in behind
    assert said_of(words, 0.172, None) is None
    assert said_of(words, 0.11, 0.07).startswith("the model is no better than the start, base english: top-1 11.00%")


def test_a_model_that_predicts_no_word_is_named_whatever_it_is_compared_with():
    text = "no word that the model suggests first is right: top-1 over words 0.00%; what helps: "
    ends = Baselines(token="<eos>", constant=replace(score(0.0668), top1_words=0.0))
    for baselines in (FULL, Baselines(), ends):
        assert said_of(baselines, 0.172, 0.00004).startswith(text)
        assert said_of(baselines, 0.172, 0.0001) is None
    said = said_of(ends, 0.06684, 0.0)  # as exact as it was measured: the other is rounded
    assert said.startswith("the model is no better than always end of text: top-1 6.68% against 6.68%, and over words")
    assert "a base to start from (`sotto base train` makes one of public text)" in said


def test_only_a_run_from_nothing_is_told_of_bases():
    scratch = Baselines(frequencies="the text of base english", constant=score(0.05), token=".")
    assert said_of(scratch, 0.06) is None
    assert "always “.”: top-1 4.40% against 5.00%" in said_of(scratch, 0.044)
    assert "--from english" in said_of(scratch, 0.044)
    assert "--from" not in said_of(FULL, 0.044)


def test_the_end_of_a_text_is_called_so():
    assert list(Baselines(constant=score(0.05), token="<eos>").scores) == ["always end of text"]
    assert Baselines(constant=score(0.05), token="<eos>").short == "end of text 5.0%"


def test_where_nothing_was_measured_nothing_is_said():
    assert Baselines().scores == {}
    assert said_of(Baselines(), 0.0) is None
