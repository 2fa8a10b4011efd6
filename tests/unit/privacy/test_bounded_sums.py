"""One user moves the sums of a private evaluation by no more than is paid for, and the noise is what is paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.privacy import bounded_sums
from sottovoce.privacy.bounded_sums import LOSS_STEPS, RANKS, BoundedSums
from sottovoce.privacy.noise import Scale, draw_one
from sottovoce_evidence.accounting import GaussianRelease, SampledGaussian
from sottovoce_evidence.accounting.events import HELD_OUT
from sottovoce_evidence.errors import SottoError

MECHANISM = BoundedSums(1.5, 20)
ANYTHING = st.one_of(st.floats(0, 40), st.floats(), st.just(math.nan))


def moved_by(mechanism: BoundedSums, row: np.ndarray) -> float:
    """How far a row moves the sums, over the noise on each, times the noise multiplier: one at most is paid for."""
    shares = 0.0
    for part in mechanism.parts.values():
        norm = math.hypot(*map(float, row[part.columns]))
        shares += (norm / part.noise_std(mechanism.noise_multiplier)) ** 2
    return mechanism.noise_multiplier * math.sqrt(shares)


@settings(max_examples=40)
@given(st.lists(ANYTHING, min_size=RANKS, max_size=RANKS), ANYTHING)
def test_a_user_moves_the_sums_by_no_more_than_is_paid_for(ranks, loss):
    (row,) = MECHANISM.bounded(np.array([ranks]), np.array([loss]))
    assert (row >= 0).all()
    assert row[:RANKS].sum() <= MECHANISM.tokens_per_user
    assert row[RANKS] <= LOSS_STEPS * row[:RANKS].sum()
    for part in MECHANISM.parts.values():
        assert math.hypot(*map(float, row[part.columns])) <= part.sensitivity
    assert moved_by(MECHANISM, row) <= 1 + 1e-12


def test_a_user_with_all_tokens_alike_moves_them_by_all_that_is_paid_for():
    (row,) = MECHANISM.bounded(np.array([[20.0, 0, 0, 0]]), np.array([20.0]))
    assert moved_by(MECHANISM, row) == pytest.approx(1)


def test_what_a_user_adds_by_hand():
    rows = MECHANISM.bounded(np.array([[3.0, 1, 0, 4], [0, 0, 0, 0], [15, 0, 3, 9]]), np.array([2.5, 0.0, 99.0]))
    assert rows.tolist() == [
        [3, 1, 0, 4, 640, 9, 15, 25, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 1],
        [15, 0, 3, 2, 20 * LOSS_STEPS, 225, 75, 25, 1],
    ]


def test_the_shares_are_one_gaussian_of_the_noise_multiplier():
    assert sum(part.share for part in MECHANISM.parts.values()) == pytest.approx(1)
    assert MECHANISM.event() == GaussianRelease(1.5, people=HELD_OUT)
    assert MECHANISM.event().gaussians() == (SampledGaussian(1.5, "poisson", 1.0),)


def test_the_noise_is_exact_of_the_scale_that_is_paid_for_and_its_own_for_every_sum(monkeypatch):
    monkeypatch.setattr(bounded_sums.os_entropy, "token_bytes", bytes)
    rows = np.arange(18).reshape(2, 9)
    found = MECHANISM.draw(rows)
    stds = [1.5 * 20 / math.sqrt(0.5)] * 4 + [1.5 * 20 * 256 / math.sqrt(0.3)]
    stds += [1.5 * 400 / math.sqrt(0.1)] * 3 + [1.5 / math.sqrt(0.1)]
    places = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (1, 2), (2, 2), (0, 3)]
    noise = [
        draw_one(bytes(32), place, Scale.at_least(std), stream)
        for (place, stream), std in zip(places, stds, strict=True)
    ]
    drawn = [*found.ranks, found.loss, *found.squares, found.users]
    assert (np.array(drawn) - rows.sum(axis=0)).tolist() == noise
    assert len(set(noise)) > 6


@pytest.mark.parametrize("tokens", [0, -1, 2**16 + 1])
def test_the_tokens_of_a_user_have_limits(tokens):
    with pytest.raises(SottoError, match="must be from 1 to 65536"):
        BoundedSums(1.0, tokens)
