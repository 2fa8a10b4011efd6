from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.schedule import CONSTANT, Schedule

POINTS = ((1, 1.0), (11, 4.0), (31, 2.0))


def test_steps_hold_until_the_next_point():
    schedule = Schedule(POINTS)
    assert [schedule(t) for t in (1, 10, 11, 30, 31, 10_000)] == [1.0, 1.0, 4.0, 4.0, 2.0, 2.0]


@given(rounds=st.integers(1, 60))
def test_stretches_are_the_rounds_in_order(rounds):
    schedule = Schedule(POINTS)
    spelt_out = [factor for factor, count in schedule.stretches(rounds) for _ in range(count)]
    assert spelt_out == [schedule(t) for t in range(1, rounds + 1)]


def test_without_points_nothing_changes():
    assert CONSTANT.constant
    assert CONSTANT.stretches(5000) == [(1.0, 5000)]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ((), "begin at round 1"),
        (((2, 1.0),), "begin at round 1"),
        (((1, 1.0), (2.5, 1.0)), "begin at round 1"),
        (((1, 1.0), (5, 2.0), (5, 3.0)), "must increase"),
        (((1, 1.0), (5, 0.0)), "above 0"),
        (((1, math.inf),), "above 0"),
        (((1, math.nan),), "above 0"),
    ],
)
def test_a_schedule_without_meaning_is_refused(points, said):
    with pytest.raises(SottoError, match=said):
        Schedule(points)
