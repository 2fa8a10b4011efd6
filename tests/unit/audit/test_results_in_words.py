"""What the figures of audits mean: sentences with the right numbers in them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from made_audits import made
from sottovoce.audit.results import (
    AttackResult,
    CanariesResult,
    Exposure,
    Guesses,
    MembershipResult,
    OneRunResult,
    Proved,
    RoundsResult,
    TailPair,
    TailsResult,
)

GUESSES = Guesses(shown=0.7, correct=180, guesses=200, most=3.0, noise=0.8, by_curve=5.0)
WEAK = Guesses(shown=0.0, correct=110, guesses=200, most=3.0, noise=math.inf, by_curve=0.0)
NO_CLAIM = made(Guesses, shown=0.7, correct=9, guesses=9)
ROUNDS = made(RoundsResult, judged=1500, correct=900, claimed=1.0, confidence=0.999, claimed_multiplier=2.0)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Proved(True, 1.0, 1e-5), "more than 2.72 times likelier or less likely, but for a chance of 1e-5"),
        (Proved(False, math.inf, 1e-5), "nothing limits"),
        (ROUNDS, "60% of them right; a coin gets 50%, and the claim allows up to 73.1%"),
        (replace(ROUNDS, shown_multiplier=1.0), "at most 0.5 of what is claimed, with 99.9%"),
        (replace(ROUNDS, shown_multiplier=2.2), "at most 1.1 times what is claimed"),
        (OneRunResult(200, 0.7, WEAK, WEAK, GUESSES), "with the released weights guessed 90% of 200 coins"),
        (OneRunResult(200, 0.7, GUESSES, WEAK, None), "at most 0.8 of what is claimed: less than is claimed"),
        (
            OneRunResult(200, 0.0, WEAK, WEAK, None),
            "a run with ε = 0 may do so by chance. The guesses are too few",
        ),
        (OneRunResult(9, 0.7, NO_CLAIM, NO_CLAIM, None), "No noise is claimed"),
        (made(CanariesResult, exposure=(made(Exposure, bits=10.0),)), "ranks first among about 1,024 of its kind"),
        (made(TailsResult, pairs=(made(TailPair),)), "neither a proof nor a bound"),
        (made(MembershipResult, attacks=(made(AttackResult, auc=0.71),)), "picks the right one 71 times in 100"),
    ],
)
def test_figures_are_said_in_words(found, said):
    assert said in found.sentence


@pytest.mark.parametrize("kind", [RoundsResult, CanariesResult, TailsResult, MembershipResult, OneRunResult])
def test_what_was_not_found_means_nothing(kind):
    assert made(kind).sentence == ""
