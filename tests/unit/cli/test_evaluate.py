"""Options of an evaluation that do not go together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.cli.evaluate import Measures, Private, Texts, _private_rows, evaluate
from sottovoce.commands.private_evaluation import PrivateEvaluation
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Texts, {"corpus": [Path("a.jsonl")], "store": Path("b")}, "--corpus goes without --store"),
        (Texts, {"corpus": [Path("a.jsonl")], "split": "train"}, "--corpus goes without --store"),
        (Measures, {"suggestions": 3}, "--suggestions 3 is for --keystrokes"),
        (Measures, {"keystrokes": True, "suggestions": 0}, "--suggestions 0 must be at least 1"),
        (Measures, {"words": -1}, "--words -1 must be 0 or more"),
        (Measures, {"keystrokes": True, "words": 0}, "--words 0 must be at least 1, for --keystrokes"),
        (Measures, {"epochs": 2}, "are for --personalise"),
        (Measures, {"learning_rate": 0.1}, "are for --personalise"),
        (Private, {"private_delta": 1e-6}, "--private-delta is for --private-epsilon"),
        (Private, {"tokens_per_user": 9}, "--tokens-per-user is for --private-epsilon"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(kind, given, words):
    with pytest.raises(SottoError, match=words):
        kind(**given)


@pytest.mark.parametrize(
    "more",
    [
        {"measures": Measures(by_band=True)},
        {"texts": Texts(split="train")},
        {"texts": Texts(corpus=[Path("a")])},
        {"texts": Texts(public=[Path("a")])},
        {"other": Path("b")},
    ],
    ids=str,
)
def test_exact_figures_are_not_asked_for_with_private_ones(more):
    with pytest.raises(SottoError, match="measures held-out users of a store; it goes with --store"):
        evaluate(Path("a"), private=Private(1.0), **more)


def test_private_figures_are_shown_with_their_noise_and_what_they_cost():
    terms = Terms(2.0, 1e-6, 2.2, 100, 18.4)
    hidden = PrivateAccuracy(terms=terms, users=3, targets=10)
    assert _private_rows(PrivateEvaluation(hidden, 2.0, 1, False, "private"))["top-1 of these people"] == "hidden"
    found = replace(hidden, top1=0.15, top1_noise=0.004, top1_within=0.01, perplexity=90.0)
    found = replace(found, perplexity_low=80.0, perplexity_high=100.0)
    rows = _private_rows(PrivateEvaluation(found, 2.7, 2, False, "private"))
    assert rows["top-1 of these people"] == "15.00% ± 0.40"
    assert rows["top-1 of people like them (95%)"] == "15.00% ± 1.00"
    assert rows["perplexity, losses cut off"] == "90 (80 to 100), at 18.4"
    assert rows["ε for a held-out user"] == "2 at δ = 1e-6"
    assert rows["ε of all private evaluations (2)"] == "2.7"
