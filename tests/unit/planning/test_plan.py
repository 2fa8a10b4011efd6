"""What a plan says before anything is paid for."""

from __future__ import annotations

import json
import math

import pytest

from examples import first_of
from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.planning.plan import make_plan, privacy_warnings
from sottovoce_evidence.accounting import SampledGaussian, epsilon
from sottovoce_evidence.recipe import Recipe

PAPER = {"users": 763_430, "cohort": 5000, "rounds": 5000, "delta": 1e-9}


@pytest.mark.parametrize(("delta", "warned"), [(1e-4, 0), (1.1e-4, 1), (9e-4, 1)])
def test_a_delta_that_is_below_one_over_users_but_not_well_below_is_warned_of(delta: float, warned: int) -> None:
    few, *found = privacy_warnings(1000, delta, epsilon=8.0)
    assert few.startswith("1,000 users to train on are few")
    assert len(found) == warned
    assert all("not well below it" in text and text.endswith("take 0.0001 or less") for text in found)


def test_few_users_are_warned_of_in_the_words_of_prepare() -> None:
    assert privacy_warnings(2000, 1e-6, epsilon=8.0) == []
    (few,) = privacy_warnings(780, 1e-6, epsilon=8.0)
    assert few.startswith("780 users to train on are few: below about 2,000, the noise that hides one person hides")


def test_plan_of_the_paper() -> None:
    plan = make_plan(
        **PAPER, noise_multiplier=1.0, accountant="moments", clip_norm=15.0, parameters=1_350_000, users_per_second=2000
    )
    assert plan.epsilon == pytest.approx(4.634, abs=5e-4)
    assert plan.noise_std == pytest.approx(0.003)  # the paper's σ: z·S/(qW) with W = users
    assert plan.signal_to_noise == pytest.approx(5000 / math.sqrt(1_350_000))
    assert plan.bytes_per_device == 5_400_000
    assert plan.user_rate == pytest.approx(5000 / 763_430)
    assert plan.device_rounds_expected == pytest.approx(32.75, abs=0.01)
    assert plan.user_updates == 25_000_000
    assert plan.hours == pytest.approx(25_000_000 / 2000 / 3600)
    assert plan.relation == "add-or-remove-one-user"
    assert plan.warnings == []


def test_curve_goes_from_the_first_round_to_the_last() -> None:
    for rounds in (1, 7, 5000):
        plan = make_plan(**PAPER | {"rounds": rounds}, noise_multiplier=1.0, accountant="rdp")
        assert plan.curve[0]["round"] == 1
        assert plan.curve[-1] == {"round": rounds, "epsilon": plan.epsilon}
        assert len(plan.curve) <= 50
        assert [point["epsilon"] for point in plan.curve] == sorted(point["epsilon"] for point in plan.curve)


@pytest.mark.slow
def test_fixed_size_cohorts_are_charged_for_replacing_a_user() -> None:
    fixed = {"users": 100_000, "cohort": 1000, "rounds": 1000, "delta": 1e-6, "noise_multiplier": 1.0}
    plan = make_plan(**fixed, sampling="fixed")
    assert (plan.accountant, plan.relation) == ("pld", "replace-one-user")
    assert plan.epsilon == pytest.approx(16.97, abs=0.01)
    assert make_plan(**fixed, sampling="fixed", accountant="rdp").epsilon == pytest.approx(23.3, abs=0.1)


def test_plans_of_any_sampling_compare_when_a_user_is_replaced() -> None:
    setting = {"users": 1000, "cohort": 10, "rounds": 50, "noise_multiplier": 1.0, "delta": 1e-6}
    poisson, fixed, moments = (
        make_plan(**setting, **kind) for kind in ({}, {"sampling": "fixed"}, {"accountant": "moments"})
    )
    assert poisson.epsilon_replaced is not None
    assert poisson.epsilon < poisson.epsilon_replaced < fixed.epsilon
    assert fixed.epsilon_replaced == pytest.approx(fixed.epsilon)
    assert moments.epsilon_replaced is None


def test_json_has_no_infinity() -> None:
    plan = make_plan(**PAPER, noise_multiplier=0.0, clip_norm=1.0, parameters=10)
    assert plan.epsilon == math.inf
    data = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert data["epsilon"] == "infinity"
    assert data["curve"][-1] == {"round": 5000, "epsilon": "infinity"}
    assert data["accountant_name"].startswith("PLD")
    assert data["hours"] is None


def test_warnings() -> None:
    plan = make_plan(
        users=100, cohort=50, rounds=100, delta=0.01, noise_multiplier=1.0, accountant="moments", clip_norm=1.0,
        parameters=10**6,
    )  # fmt: skip
    few, delta, promise, noise = plan.warnings
    assert "100 users to train on are few" in few
    assert "not below 1/users = 0.01" in delta
    assert "take 0.001 or less" in delta
    assert "promises next to nothing" in promise
    assert "20 times as long" in noise


IN_TURN = {"users": 3000, "cohort": 10, "delta": 1e-4, "sampling": "in_turn"}


@pytest.mark.parametrize(("rounds", "turns"), first_of([(301, 2), (1, 1), (300, 1), (900, 3)]))
def test_users_in_turn_pay_in_full_for_the_rounds_they_join(rounds, turns) -> None:
    plan = make_plan(**IN_TURN, rounds=rounds, noise_multiplier=4.0)
    once = SampledGaussian(4.0, "fixed", 1.0, cohort=1, users=1)  # a round that one is known to join
    assert plan.epsilon == epsilon([(once, turns)], 1e-4)
    assert (plan.device_rounds_most, plan.relation) == (turns, "replace-one-user")
    assert plan.curve[-1] == {"round": rounds, "epsilon": plan.epsilon}
    sampled = make_plan(**IN_TURN | {"sampling": "fixed"}, rounds=rounds, noise_multiplier=4.0)
    assert plan.epsilon > sampled.epsilon  # no amplification


def test_in_turn_epsilon_rises_when_somebody_joins_once_more() -> None:
    plan = make_plan(users=7, cohort=3, rounds=6, delta=1e-4, sampling="in_turn", noise_multiplier=4.0)
    # Two groups: the first is asked in every other round.
    assert [point["round"] for point in plan.curve] == [1, 3, 5, 6]
    assert plan.curve[2]["epsilon"] == plan.curve[3]["epsilon"] == plan.epsilon
    assert plan.curve[0]["epsilon"] < plan.curve[1]["epsilon"] < plan.epsilon


def test_a_plan_in_turn_is_what_a_run_is_charged() -> None:
    planned = make_plan(**IN_TURN, rounds=450, epsilon=3.0)
    recipe = Recipe().replace(
        privacy={"users": 3000, "cohort": 10.0, "sampling": "in_turn", "epsilon": 3.0, "delta": 1e-4},
        run={"rounds": 450},
    )
    run = resolve(recipe).privacy
    assert run.noise_multiplier == planned.noise_multiplier
    events = build_mechanism(resolve(recipe), ["one"]).events(450)
    assert epsilon(events, 1e-4, planned.accountant) == planned.epsilon <= 3.0
