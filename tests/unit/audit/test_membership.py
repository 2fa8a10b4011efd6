"""Attacks on membership, where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from examples import first_of
from sottovoce.audit.membership import area, curve, draw_halves, evaluate_attack, offline_scores, online_scores, rate_at


def test_the_area_by_hand():
    """Of nine pairs 6.5 are in order; one is a tie."""
    auc, low, high = area(np.array([4.0, 2.0, 1.0]), np.array([3.0, 2.0, 0.0]))
    assert auc == pytest.approx((3 + 1.5 + 1) / 9)
    assert 0 <= low < auc < high <= 1


def test_the_area_is_that_of_the_curve_and_of_mann_and_whitney():
    generator = np.random.default_rng(0)
    inside, outside = generator.integers(0, 30, 80) + 4.0, generator.integers(0, 30, 50) * 1.0
    auc = area(inside, outside)[0]
    fprs, tprs = curve(inside, outside)
    assert (fprs[0], tprs[0], fprs[-1], tprs[-1]) == (0, 0, 1, 1)
    assert auc == pytest.approx(np.trapezoid(tprs, fprs))
    assert auc == pytest.approx(stats.mannwhitneyu(inside, outside).statistic / (80 * 50))


@pytest.mark.parametrize(("inside", "outside"), first_of([(100, 100), (24, 6), (400, 40)]))
@pytest.mark.parametrize("auc", [0.5, 0.9])
def test_the_interval_holds_the_area_as_often_as_it_says(inside, outside, auc):
    """Of two normal laws so far apart, in 400 repeats. Not always either: such an interval would say nothing."""
    generator = np.random.default_rng(1)
    apart = stats.norm.ppf(auc) * np.sqrt(2)
    held = 0
    for _ in range(400):
        _, low, high = area(generator.normal(size=inside) + apart, generator.normal(size=outside))
        held += low <= auc <= high
    assert 0.91 <= held / 400 <= 0.99


def test_users_who_are_wholly_apart_leave_a_doubt():
    """With six pairs, all in order, an area of 0.54 is still as likely as the level."""
    auc, low, high = area(np.arange(10, 30.0), np.arange(6.0))
    assert (auc, high) == (1, 1)
    assert low == pytest.approx(0.025 ** (1 / 6))
    assert area(np.arange(6.0), np.arange(10, 30.0)) == pytest.approx((0, 0, 1 - 0.025 ** (1 / 6)))


def test_found_at_few_false_alarms_by_hand():
    outside = np.arange(1000.0)
    inside = np.array([2000.0] * 7 + [998.5] * 2 + [989.5] * 11 + [0.0] * 80)
    strict, loose = (rate_at(fpr, inside, outside) for fpr in (0.001, 0.01))
    assert (strict.tpr, strict.false_alarms) == (0.09, 1)  # above all but one
    assert (loose.tpr, loose.false_alarms) == (0.20, 10)
    assert not strict.too_few
    exact = stats.binomtest(9, 100).proportion_ci(0.95, "exact")
    assert (strict.low, strict.high) == pytest.approx(tuple(exact))
    assert strict.fpr_at_most == pytest.approx(stats.binomtest(1, 1000, alternative="less").proportion_ci(0.95).high)


def test_too_few_to_see_a_false_alarm_is_said_and_nobody_but_who_is_above_all_is_found():
    rate = rate_at(0.001, np.array([3.0, 2.0, 1.0]), np.array([2.0, 0.0]))
    assert rate.too_few
    assert (rate.false_alarms, rate.tpr) == (0, pytest.approx(1 / 3))


def test_scores_that_say_nothing_find_nobody():
    """All alike: no threshold is above nobody, so nobody is found, and the area is that of a coin."""
    attack = evaluate_attack("constant", np.zeros(50), np.zeros(2000))
    assert attack.auc == 0.5
    assert [rate.tpr for rate in attack.rates] == [0, 0]


def test_everybody_is_in_half_of_the_references():
    inside = draw_halves(7, 6, np.random.default_rng(0))
    assert inside.shape == (6, 7)
    assert np.all(inside.sum(axis=0) == 3)
    assert not np.array_equal(inside[0], inside[2])


def test_references_take_out_how_hard_a_user_is():
    """Losses of users differ widely, and being in lowers one by little: only references show it."""
    generator = np.random.default_rng(0)
    users, gain, noise = 400, 0.1, 0.03
    hard = generator.normal(4, 1, users)
    target = np.arange(users) < users // 2
    inside = draw_halves(users, 8, generator)
    seen = hard - gain * inside + noise * generator.normal(size=inside.shape)
    losses = hard - gain * target + noise * generator.normal(size=users)

    def auc(scores):
        return evaluate_attack("a test", scores[target], scores[~target]).auc

    assert auc(-losses) < 0.6
    truth = stats.norm.cdf(gain / (noise * np.sqrt(2)))  # what nobody who knows all means can beat
    for scores in (offline_scores(losses, seen, inside), online_scores(losses, seen, inside)):
        assert truth - 0.05 < auc(scores) < truth + 0.02


def test_references_that_never_saw_a_difference_give_a_coin():
    generator = np.random.default_rng(3)
    inside = draw_halves(300, 4, generator)
    losses, seen = generator.normal(size=300), generator.normal(size=inside.shape)
    for scores in (offline_scores(losses, seen, inside), online_scores(losses, seen, inside)):
        attack = evaluate_attack("a test", scores[:200], scores[200:])
        assert attack.low < 0.5 < attack.high
