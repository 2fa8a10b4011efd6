"""Examples or users sampled, at the same ε and for the same gradients: which has less noise."""

from __future__ import annotations

import math

import pytest

from sottovoce.planning.levels import DEPENDS, EXAMPLES, USERS, Level, compare_levels, verdict
from sottovoce.planning.plan import make_plan
from sottovoce_evidence import accounting

SIZES = {"users": 1_000, "cohort": 400, "rounds": 50, "delta": 1e-5, "epsilon": 4.0, "examples_per_user": 9}


@pytest.fixture(scope="module")
def plan():
    return make_plan(**SIZES, clip_norm=0.5)


@pytest.fixture(scope="module")
def levels(plan):
    return compare_levels(plan)


def test_a_plan_of_sampled_examples_has_their_rate_their_event_and_their_noise(plan):
    assert plan.sampling == "examples"
    assert plan.example_rate == 400 / 9_000
    assert plan.user_rate == pytest.approx(1 - (1 - 400 / 9_000) ** 9)
    event = accounting.SampledExamples(plan.noise_multiplier, 400 / 9_000, 9)
    assert plan.epsilon == accounting.epsilon([(event, 50)], 1e-5) <= 4.0
    assert plan.noise_std == pytest.approx(plan.noise_multiplier * 0.5 / 400)
    assert plan.examples == pytest.approx(400)
    half = make_plan(**SIZES | {"epsilon": None}, noise_multiplier=3.0, clip_norm=0.5, total_weight=4_500)
    assert half.examples == pytest.approx(200), "half of the places have text"
    assert half.noise_std == pytest.approx(3.0 * 0.5 / 200)


def test_all_rows_spend_the_same_gradients_at_the_same_epsilon(plan, levels):
    assert [(each.sampled, each.examples) for each in levels] == [(EXAMPLES, 1), (USERS, 1), (USERS, 3), (USERS, 9)]
    for each in levels:
        assert each.cohort * each.examples == pytest.approx(400)
        assert each.noise_alike == pytest.approx(each.noise_multiplier / each.cohort)
        assert each.noise_unrelated == pytest.approx(each.noise_alike / math.sqrt(each.examples))
    for each in levels[1:]:
        spent = [(accounting.SampledGaussian(each.noise_multiplier, "poisson", each.rate), 50)]
        assert accounting.epsilon(spent, 1e-5) == pytest.approx(4.0, rel=2e-3)
        assert each.break_even == pytest.approx(levels[0].noise_alike / each.noise_alike)


def test_one_example_of_each_user_has_less_noise_than_sampled_examples(levels):
    """The same number joins on average, and no user joins twice: less to hide."""
    assert levels[1].less_noise == USERS
    assert levels[1].break_even > 1
    assert verdict(levels).startswith("Less noise, whatever the text: users, one example each.")


def test_more_gradients_than_users_leave_no_plan_with_one_example_of_each():
    levels = compare_levels(make_plan(**SIZES | {"cohort": 1_200}))
    assert levels[1].noise_multiplier is None
    assert "1,200 users a round are needed, of 1,000" in levels[1].missing
    assert levels[2].noise_multiplier


@pytest.mark.parametrize(
    ("break_even", "which", "words"),
    [
        (1.2, USERS, "whatever the text: users, 4 examples each"),
        (0.7, DEPENDS, "It depends on the text: users, 4 examples each, have less noise if"),
        (0.4, EXAMPLES, "whatever the text: examples."),
        (None, EXAMPLES, "no plan that samples users"),
    ],
)
def test_the_verdict_is_certain_only_where_no_text_could_change_it(break_even, which, words):
    level = Level(USERS, 4, 100.0, 0.1, 1.0, 0.01, 0.005, break_even)
    assert level.less_noise == which
    assert words in verdict([level])
