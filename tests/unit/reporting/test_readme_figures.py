"""Which numbers of a README are called ε and δ."""

from __future__ import annotations

import time
from collections import deque

import pytest

from sottovoce.reporting.readme_figures import Figure, figures, planned_rounds, speaks_of_privacy


@pytest.mark.parametrize(
    ("text", "epsilons", "deltas"),
    [
        ("**ε = 0.931 at δ = 1e-4**", {0.931}, {1e-4}),
        ("(0.931, 1e-4)-differential privacy, a factor of e^0.931 (plus 1e-4)", {0.931}, {1e-4}),
        ("its ε is **.001**; ε ≤ 1,234.5", {0.001, 1234.5}, set()),
        ("(0.9, 10^-4)-private; δ = 3 × 10⁻⁵, or δ: 10**-7", {0.9}, {1e-4, 3e-5, 1e-7}),
        ("ε, δ = 0.9, 1e-4; (ε, δ) = (2, 10^{-5})", {0.9, 2}, {1e-4, 1e-5}),
        (
            "3 users (2024), 5 of 6 rounds, 16 % better; computes ε from `ledger.jsonl`; epsilon = 1e-8; Δ = 0 points",
            set(),
            set(),
        ),
    ],
)
def test_figures_of_a_readme_are_those_called_by_name(text, epsilons, deltas):
    assert {each.value for each in figures("ε", text)} == epsilons
    assert {each.value for each in figures("δ", text)} == deltas


def test_a_figure_has_its_line():
    assert list(figures("ε", "Here\nε = 90 · 60 rounds")) == [Figure(90, 2)]


def test_rounds_that_were_planned_are_found_with_their_line():
    text = "5 of 6\n1,000 of 2,000 planned rounds\n| rounds | 3 of 4 planned |\n12 of 12 planned languages"
    assert list(planned_rounds(text)) == [(1000, 2000, 2), (3, 4, 3)]


@pytest.mark.parametrize("line", ["An ε of 1", "δ", "Epsilon one", "0.5-DP", "It keeps secrets", "no certificate"])
def test_lines_on_privacy_are_told_from_others(line):
    assert speaks_of_privacy(line)
    assert not speaks_of_privacy("It was trained for keyboards, on 3 phones.")


@pytest.mark.parametrize(
    "part",
    [
        "ε ",
        " ",
        "9",
        "(9",
        "9,",
        "ε" + " " * 10,
        "(1.1",
        "e^9",
        "9 of ",
        "ε 9\n",
        " × 10^9",
        "ε, δ ",
        "1 of 2 planned\n",
    ],
)
def test_no_readme_makes_a_search_long(part):
    text, began = "ε" + part * (10**6 // len(part)), time.process_time()
    for found in (figures("ε", text), figures("δ", text), planned_rounds(text)):
        deque(found, maxlen=0)
    assert time.process_time() - began < 10
