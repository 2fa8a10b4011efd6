"""What a statement says of the mechanism is true of round 1, and it says so where later rounds differ."""

from __future__ import annotations

from typing import Any

import pytest

from sottovoce.accounting import NonPrivate, SampledGaussian, epsilon, rounded_up
from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.recipe import Recipe
from sottovoce.reporting.statement import Statement, make_statement, restate, store_total

ROUND_1 = "These are figures of round 1."


def state(users_at_once: int = 1, **privacy: Any) -> Statement:
    """A run of 20 rounds of a model of four layers: the expected weight of a cohort is 100, so 𝕊 = S/100."""
    told = {"users": 10_000, "cohort": 100, "clip_norm": 15.0, "noise_multiplier": 1.0, "delta": 1e-5}
    recipe = resolve(
        Recipe.from_dict({"data": {"store": "none"}, "privacy": {**told, **privacy}, "run": {"rounds": 20}})
    )
    mechanism = build_mechanism(recipe, ["a", "b", "c", "d"])
    return make_statement(
        recipe=recipe, mechanism=mechanism, accountant="rdp",
        planned_rounds=20, rounds_done=20, spent=[], charged=mechanism.events(20),
        repeated=[], vocabulary_spent=[], store_spent=[], run="b1946ac9",
        vocabulary="9f86d081", vocabulary_source={"source": "public"}, users_at_once=users_at_once,
    )  # fmt: skip


def figures(statement: Statement) -> tuple[float, ...]:
    names = ("clip_norm", "sensitivity", "noise_multiplier", "noise_std")
    return tuple(statement.facts["mechanism"][name] for name in names)


def test_where_nothing_changes_no_round_is_named() -> None:
    for same in ({}, {"clipping": "per_layer"}, {"layer_clip_norms": [12.0, 8.0, 4.0, 1.0], "clipping": "per_layer"}):
        statement = state(**same)
        assert figures(statement) == pytest.approx((15, 0.15, 1, 0.15))
        assert "clipped to L2 norm 15 (" in statement.prose()
        assert "round 1" not in statement.prose()


def test_a_clip_norm_is_told_as_the_recipe_has_it() -> None:
    """It is clipped to in float32, whose nearest to 0.3 is 0.30000001."""
    for clipping in ("flat", "per_layer"):
        assert state(clip_norm=0.3, clipping=clipping).facts["mechanism"]["clip_norm"] == 0.3


def test_a_schedule_of_one_value_is_that_value() -> None:
    statement = state(clip_schedule=[[1, 4.0]], noise_schedule=[[1, 2.0], [5, 2.0]])
    assert figures(statement) == pytest.approx((60, 0.6, 2, 1.2))
    assert "clipped to L2 norm 60 (" in statement.prose()
    assert "round 1" not in statement.prose()


def test_a_clip_norm_on_a_path_is_told_by_its_values_and_its_path() -> None:
    statement = state(clip_schedule=[[1, 4], [10, 1]], clip_path="geometric")
    assert figures(statement) == pytest.approx((60, 0.6, 1, 0.6))
    prose = statement.prose()
    assert "clipped to L2 norm 60 (" in prose
    assert "whose sensitivity is 0.6, and Gaussian noise of standard deviation 0.6 (noise multiplier 1)" in prose
    assert (
        f"{ROUND_1} The clip norm, and the noise with it, follow a schedule: 60 in round 1, 15 in round 10, on a "
        "geometric path between them, and constant after that."
    ) in prose
    mechanism = statement.facts["mechanism"]
    assert (mechanism["nominal_clip_norm"], mechanism["clip_path"]) == (15, "geometric")
    assert mechanism["clip_schedule"] == [[1, 4], [10, 1]]


def test_a_clip_norm_by_steps_and_by_layers() -> None:
    layers = {"clipping": "per_layer", "layer_clip_norms": [3.0, 4.0, 12.0, 84.0]}
    statement = state(**layers, clip_schedule=[[1, 2.0], [7, 0.5]])
    assert figures(statement) == pytest.approx((170, 1.7, 1, 1.7), rel=1e-6)
    assert "clipped to L2 norm 170 (per layer" in statement.prose()
    assert ROUND_1 in statement.prose()
    assert "a schedule: 170 from round 1 on, 42.5 from round 7 on." in statement.prose()


def test_a_noise_that_changes_is_told_by_its_noise_multipliers() -> None:
    statement = state(noise_schedule=[[1, 2.0], [5, 0.5]])
    assert figures(statement) == pytest.approx((15, 0.15, 2, 0.3))
    prose = statement.prose()
    assert "standard deviation 0.3 (noise multiplier 2)" in prose
    assert (
        f"{ROUND_1} The noise multiplier follows a schedule: 2 from round 1 on, 0.5 from round 5 on; every round is "
        "charged its own."
    ) in prose
    assert statement.facts["mechanism"]["nominal_noise_multiplier"] == 1


def test_a_clip_norm_that_adapts_is_told_as_that_of_round_1() -> None:
    adaptive = {"adaptive_quantile": 0.5, "adaptive_bit_noise": 5.0}
    prose = state(**adaptive).prose()
    assert "clipped to L2 norm 15 (" in prose
    assert f"{ROUND_1} The clip norm, and the noise with it, follow the 0.5 quantile" in prose
    assert "update and counts together are charged the noise multiplier of their round." in prose
    both = state(**adaptive, noise_schedule=[[1, 2.0], [5, 0.5]]).prose()
    assert both.count(ROUND_1) == 1
    assert "(noise multiplier 2)" in both
    assert "follow the 0.5 quantile" in both
    assert "2 from round 1 on, 0.5 from round 5 on" in both


POISSON = SampledGaussian(1.0, "poisson", 0.01)
FIXED = SampledGaussian(1.0, "fixed", 0.01, cohort=10, users=1000)


def test_runs_of_both_kinds_of_sampling_have_a_total_for_replacing_a_user() -> None:
    total = store_total([(POISSON, 10), (FIXED, 10)], 1e-6, "pld")
    assert total["relation_store"] == "replace-one-user"
    assert total["epsilon_store"] > max(epsilon([(event, 10)], 1e-6) for event in (POISSON, FIXED))
    told = restate(state().to_json(), **total)
    assert "at the same δ, when one user is replaced by another." in told["prose"]
    assert "when one user is replaced" not in restate(told, **store_total([(POISSON, 10)], 1e-6, "pld"))["prose"]


def test_a_total_that_no_accountant_knows_is_infinite() -> None:
    unknown = {"epsilon_store": "infinity", "relation_store": "replace-one-user"}
    assert store_total([(POISSON, 10), (FIXED, 10)], 1e-6, "moments") == unknown
    assert store_total([(POISSON, 10), (NonPrivate(), 1)], 1e-6, "pld")["epsilon_store"] == "infinity"


def test_what_replacing_a_user_costs_is_told_beside_what_adding_one_costs() -> None:
    told = state()
    planned = [(SampledGaussian(1.0, "poisson", 0.01), 20)]
    assert told.facts["epsilon_replaced"] == epsilon(planned, 1e-5, "rdp", replaced=True) > told.epsilon
    shown = rounded_up(told.facts["epsilon_replaced"])
    assert f"When it is replaced by any other, the factor is at most e^{shown}." in told.prose()


@pytest.mark.parametrize("privacy", [{"sampling": "fixed"}, {"mode": "none", "clipping": "none"}])
def test_where_that_is_the_relation_or_nothing_is_promised_it_is_not(privacy) -> None:
    told = state(**privacy, **({"noise_multiplier": None} if privacy.get("mode") else {}))
    assert "epsilon_replaced" not in told.facts
    assert "When it is replaced" not in told.prose()


def test_users_who_are_trained_side_by_side_are_named() -> None:
    """The proofs take an update for a function of its user; in one program, rounding may depend on who shares it."""
    assert any("16 users are trained at once" in fact for fact in state(users_at_once=16).facts["not_covered"])
    assert not any("trained at once" in fact for fact in state().facts["not_covered"])
