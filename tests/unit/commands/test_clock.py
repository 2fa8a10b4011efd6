"""The time left of a run: rounds and evaluations apart, without what is compiled."""

from __future__ import annotations

import pytest

from sottovoce.commands import clock
from sottovoce.commands.clock import Clock, Pace, evaluations
from sottovoce_evidence.recipe import Run

SETTINGS = Run(rounds=10, evaluate_every=4)  # evaluated after rounds 4, 8 and 10


@pytest.fixture
def pass_time(monkeypatch):
    """Let seconds go by, some of them in the compiler."""
    now = 100.0
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now)

    def go(seconds: float, compiling: float = 0.0) -> None:
        nonlocal now
        now += seconds
        clock._count("/jax/core/compile/backend_compile_duration", compiling)
        clock._count("/jax/something/else", 50.0)

    return go


@pytest.mark.parametrize(("done", "left"), [(0, 3), (3, 3), (4, 2), (8, 1), (9, 1), (10, 0)])
def test_evaluations_that_are_left_are_those_that_a_run_makes(done, left):
    assert evaluations(SETTINGS, done) == left
    made = [each for each in range(done + 1, 11) if each % 4 == 0 or each == 10]
    assert left == len(made)
    assert evaluations(Run(rounds=10, evaluate_every=0), done) == 0


def test_a_run_that_its_budget_ends_has_only_the_rounds_up_to_there(pass_time):
    assert [evaluations(SETTINGS, 0, planned) for planned in (3, 4, 7, 9, 10)] == [1, 1, 2, 3, 3]
    assert (evaluations(SETTINGS, 4, 7), evaluations(SETTINGS, 9, 7)) == (1, 0)
    assert Clock(SETTINGS, 1, Pace(2.0, 5.0), 7).seconds_left == 6 * 2 + 2 * 5


def test_before_the_first_round_the_given_pace_counts(pass_time):
    assert Clock(SETTINGS, 0, Pace(2.0, 5.0)).seconds_left == 10 * 2 + 3 * 5
    assert Clock(SETTINGS, 8, Pace(2.0, 5.0)).seconds_left == 2 * 2 + 5, "a run that goes on"
    assert Clock(SETTINGS, 0, Pace()).seconds_left is None


def test_what_was_compiled_is_not_counted_again(pass_time):
    watch = Clock(SETTINGS, 0, Pace())
    pass_time(60.0, compiling=57.0)
    watch.round_done()
    assert watch.seconds_left == pytest.approx(9 * 3)
    pass_time(5.0)
    watch.round_done()
    assert watch.seconds_left == pytest.approx(8 * 4), "the mean of both rounds"


def test_evaluations_have_a_pace_of_their_own(pass_time):
    watch = Clock(SETTINGS, 3, Pace(1.0, 1.0))
    pass_time(2.0)
    watch.round_done()
    pass_time(7.0)
    watch.evaluation_done()
    assert watch.seconds_left == pytest.approx(6 * 2 + 2 * 7)


def test_more_time_in_the_compiler_than_on_the_clock_is_no_debt(pass_time):
    watch = Clock(SETTINGS, 0, Pace())
    pass_time(1.0, compiling=2.0)
    watch.round_done()
    assert watch.seconds_left == 0
