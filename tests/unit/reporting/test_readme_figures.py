"""Which numbers of a README are called ε and δ."""

from __future__ import annotations

import time

import pytest

from sottovoce.reporting.readme_figures import Figure, figures, planned_rounds


@pytest.mark.parametrize(
    ("text", "epsilons", "deltas"),
    [
        ("**ε = 0.931 at δ = 1e-4**", {0.931}, {1e-4}),
        ("(0.931, 1e-4)-differential privacy, a factor of e^0.931 (plus 1e-4)", {0.931}, {1e-4}),
        ("its epsilon is **.001**; ε ≤ 1,234.5", {0.001, 1234.5}, set()),
        ("(0.9, 10^-4)-private; δ = 3 × 10⁻⁵, $\\delta = 2 \\times 10^{-6}$ or 10**-7", {0.9}, {1e-4, 3e-5, 2e-6}),
        ("ε, δ = 0.9, 1e-4; $(\\varepsilon, \\delta) = (2, 10^{-5})$", {0.9, 2}, {1e-4, 1e-5}),
        ("ε and δ: 0.9 and 1e-4, or ε of 80 %", {0.9, 0.8}, {1e-4}),
        (
            "3 users (2024), 5 of 6 rounds, 16 % better; computes ε from `ledger.jsonl` by three accountants",
            set(),
            set(),
        ),
    ],
)
def test_figures_of_a_readme_are_those_called_by_name(text, epsilons, deltas):
    assert {each.value for each in figures("ε", text)} == epsilons
    assert {each.value for each in figures("δ", text)} == deltas


@pytest.mark.parametrize(
    "then",
    ["/1,000", " / 1e12", "^-40", "**-40", "⁻", " in a billion", " in 1,000", " millionth", " · 0.1", " * .1", " e-3"],
)
def test_what_makes_a_number_smaller_is_told(then):
    assert list(figures("ε", f"Here\nε = 90{then}")) == [Figure(90, 2, then)]


@pytest.mark.parametrize(
    "then", [" · 60 rounds", "**-private", "** 10 people", "/δ = 0.1", " in 2024", ", 3 x as many"]
)
def test_what_only_follows_a_number_is_none_of_it(then):
    assert list(figures("ε", f"ε = 90{then}")) == [Figure(90, 1, "")]


def test_rounds_that_were_planned_are_found_with_their_line():
    assert list(planned_rounds("5 of 6\n1,000 of 2,000 planned rounds\n3 of 4 planned")) == [(1000, 2000, 2), (3, 4, 3)]


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
        assert sum(1 for _ in found) >= 0
    assert time.process_time() - began < 10
