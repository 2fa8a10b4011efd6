from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from builders import make_statement

from sottovoce.reporting.meaning import at_most, best_guess, meaning_of, posterior
from sottovoce_evidence.accounting import SampledGaussian


def test_odds_grow_by_the_factor_and_no_more():
    assert posterior(0.5, math.log(3)) == pytest.approx(0.75)
    assert posterior(0.001, math.log(999)) == pytest.approx(0.5)
    assert posterior(0.5, 800) == 1  # without overflow


def test_the_best_guess_is_bounded_from_above_and_not_far():
    """Of one Gaussian release of multiplier z the best guess is right with probability Φ(1 / 2z)."""
    for noise in (0.5, 1.0, 4.0):
        exact = NormalDist().cdf(1 / (2 * noise))
        event = SampledGaussian(noise_multiplier=noise, user_rate=1.0, sampling="poisson")
        assert exact <= best_guess([(event, 1)], 50.0, 1e-5) <= exact + 0.02


def test_without_charges_the_claim_bounds_the_guess():
    assert best_guess((), math.log(3), 0.0) == pytest.approx(0.75)
    assert best_guess((), 0.0, 0.1) == pytest.approx(0.55)


def test_a_bound_is_never_shown_below_itself():
    assert (at_most(0.75), at_most(0.7501), at_most(0.99001), at_most(0.99995)) == (
        "75.0%",
        "75.1%",
        "99.01%",
        "nearly 100%",
    )


def test_the_page_says_what_its_epsilon_means():
    found = meaning_of(make_statement())
    assert found.title == "What ε = 4.63 means"
    text = " ".join(found.paragraphs)
    assert "by at most 103, which is e^4.63" in text
    assert "δ = 1e-6: with a probability of at most this, the bound may not hold." in text
    assert [bar.shown for bar in found.bars] == ["50%", "≤ 99.04%"]
    event = SampledGaussian(noise_multiplier=0.8125, user_rate=0.01, sampling="poisson")
    bars = meaning_of(make_statement(charged=((event, 60),))).bars
    assert 0.5 < bars[1].share < 0.6 < bars[2].share
    unknown = "everyone else's text and the model after every round, but not who joined a round"
    assert unknown in found.paragraphs[0]
    assert unknown not in meaning_of(make_statement(turns=3)).paragraphs[0]
    assert "which of two texts" in meaning_of(make_statement(relation="replace-one-user")).paragraphs[0]


@pytest.mark.parametrize(
    ("epsilon", "words"), [(0.7, "strong"), (2.0, "moderate"), (8.0, "weak bound"), (30.0, "says almost nothing")]
)
def test_a_large_epsilon_is_not_praised(epsilon, words):
    text = " ".join(meaning_of(make_statement(epsilon=epsilon)).paragraphs)
    assert [word for word in ("strong", "moderate", "weak bound", "says almost nothing") if word in text] == [words]


def test_no_guarantee_has_no_odds():
    found = meaning_of(make_statement(private=False))
    assert (found.title, found.bars, found.odds) == ("What no guarantee means", [], None)
    assert meaning_of(make_statement(epsilon=math.inf)).bars == []
