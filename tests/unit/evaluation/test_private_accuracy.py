"""The figures of a private evaluation say what was charged for them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sottovoce.evaluation.private_prediction import accuracy_of
from sottovoce.privacy import bounded_sums
from sottovoce.privacy.bounded_sums import BoundedSums, NoisySums
from sottovoce_evidence import private_accuracy
from sottovoce_evidence.accounting import GaussianRelease
from sottovoce_evidence.accounting.events import HELD_OUT
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms, faults, loss_bound

TERMS = Terms(2.0, 1e-6, 2.2, 100, 18.4)


def test_the_terms_name_their_charge():
    assert TERMS.event == GaussianRelease(2.2, people=HELD_OUT)


def test_what_the_noise_hides_is_said():
    assert "hidden by the noise" in repr(PrivateAccuracy(terms=TERMS, users=3, targets=10))
    found = PrivateAccuracy(terms=TERMS, users=300, targets=10_000, top1=0.1234, top1_within=0.01)
    assert repr(found) == "<PrivateAccuracy: top-1 12.34% ± 1.00, ε = 2 for each held-out user>"
    assert PrivateAccuracy.from_json(found.to_json()) == found


WORDS = 10_000
OF_WORDS = replace(TERMS, loss_bound=loss_bound(WORDS))
MECHANISM = BoundedSums(2.2, 100)
SUMS = NoisySums((30_000, 10_000, 10_000, 150_000), 25_600_000, (60_000, 300_000, 2_000_000), 4_000)


def test_what_an_evaluation_found_has_no_fault():
    assert not list(faults(accuracy_of(SUMS, MECHANISM, OF_WORDS), WORDS))
    few = NoisySums((3, 1, 1, 15), 2_560, (1, 1, 1), -3)
    assert not list(faults(accuracy_of(few, MECHANISM, OF_WORDS), WORDS))


@pytest.mark.parametrize(
    ("figures", "terms"),
    [
        *[({name: value}, {}) for name in ("top1", "top1_within", "perplexity") for value in (math.nan, -0.1, None)],
        ({"top1": 1.5}, {}),
        ({"top3": math.inf}, {}),
        ({"users": 0}, {}),
        ({"users": -40}, {}),
        ({"users": 10**6}, {}),  # δ is no longer below 1 over their number
        ({"targets": -1}, {}),
        ({"perplexity_low": 1e9}, {}),
        ({"top1_within": 1e-9}, {}),
        ({"top1_noise": 1e-9}, {}),
        ({}, {"noise_multiplier": 4.4}),  # more noise than its intervals have
        ({}, {"epsilon": math.inf}),
        ({}, {"epsilon": 1e6}),
        ({}, {"epsilon": math.nan}),
        ({}, {"delta": 0.01}),
        ({}, {"delta": 0.0}),
        ({}, {"delta": math.nan}),
        ({}, {"tokens_per_user": 10**9}),
        ({}, {"loss_bound": 1.0}),
    ],
    ids=str,
)
def test_figures_that_no_evaluation_has_are_faults(figures, terms):
    found = accuracy_of(SUMS, MECHANISM, OF_WORDS)
    assert list(faults(replace(found, **figures, terms=replace(OF_WORDS, **terms)), WORDS))


def test_the_noise_of_counts_is_the_one_that_is_drawn():
    assert private_accuracy.RANKS == bounded_sums.RANKS
    assert TERMS.rank_noise == pytest.approx(MECHANISM.parts["ranks"].noise_std(TERMS.noise_multiplier))
