"""What follows from a recipe, its charges and its facts: what is said of the mechanism is true of round 1."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from releases import WORDS, evidences

from sottovoce_evidence.accounting import BestOfRuns, NonPrivate, SampledGaussian, epsilon
from sottovoce_evidence.accounting.events import ADDED, REPLACED, CorrelatedGaussian
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import (
    CanarySummary,
    ChosenFacts,
    EarlierRun,
    Evidence,
    Registered,
    RunFacts,
    StartFacts,
    Statement,
    VocabularyFacts,
    charge_faults,
    differences,
    state,
    store_total,
)

DELTA = 1e-5
PRIVACY = {"users": 10_000, "cohort": 100.0, "clip_norm": 15.0, "noise_multiplier": 1.0, "delta": DELTA}
ROUND = SampledGaussian(1.0, "poisson", 0.01)
OPEN = {"mode": "none", "clipping": "none", "noise_multiplier": None}
LAYERS = {"clipping": "per_layer"}
ADAPTIVE = {"adaptive_quantile": 0.5, "adaptive_bit_noise": 5.0}
CORRELATED = {"sampling": "min_separation", "min_separation": 5, "participations": 3}
CORRELATED |= {"noise": "banded", "noise_coefficients": [1.0, 0.5]}
NOISED = {"noise": "devices", "survivors": 10, "colluding": 2, "server_noise_multiplier": 0.8}
MASKED = NOISED | {"noise": "server", "server_noise_multiplier": None}
PLAIN: dict[str, Any] = {}
FOUND_WORDS = VocabularyFacts("9f86d081", "private", epsilon=1.0, delta=1e-6)
START = StartFacts("12ab", "private", runs=(EarlierRun("c0ffee", 2.0, 1e-6),), charged=((ROUND, 3),))


def run(
    federation: dict[str, Any] = PLAIN, privacy: dict[str, Any] = PLAIN, rounds: int = 20, **facts: Any
) -> Evidence:
    """A run of 20 rounds of a model of four layers: the expected weight of a cohort is 100, so 𝕊 = S/100."""
    recipe = Recipe.from_dict(
        {
            "data": {"store": "none"},
            "privacy": {**PRIVACY, "accountant": "rdp", **privacy},
            "run": {"rounds": rounds},
            "federation": federation,
        }
    )
    plain = {"rounds_planned": rounds, "rounds_done": rounds, "vocabulary": VocabularyFacts("9f", "public")}
    bare = Evidence(recipe, (), RunFacts(run="b1946ac9", clipped_parts=4, **{**plain, **facts}))
    return replace(bare, charged=bare.mechanism().events(bare.facts.rounds_planned))


# --- the mechanism ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("privacy", "figures", "changes"),
    [
        ({}, (15, 0.15, 1, 0.15), False),
        ({"clipping": "per_layer"}, (15, 0.15, 1, 0.15), False),
        ({"clip_schedule": [[1, 4.0], [10, 1.0]]}, (60, 0.6, 1, 0.6), True),
        ({**LAYERS, "clip_schedule": [[1, 2.0], [7, 0.5]]}, (30, 0.3, 1, 0.3), True),
        ({"noise_schedule": [[1, 2.0], [5, 0.5]]}, (15, 0.15, 2, 0.3), False),
        ({"clip_schedule": [[1, 4.0]], "noise_schedule": [[1, 2.0], [5, 2.0]]}, (60, 0.6, 2, 1.2), True),
        (OPEN, (math.inf, math.inf, 0, 0), False),
    ],
)
def test_figures_of_the_mechanism_are_those_of_round_1(privacy, figures, changes):
    statement = state(run(privacy=privacy))
    found = statement.mechanism
    clip_norm = math.inf if found.clip_norm is None else found.clip_norm
    shown = (clip_norm, found.sensitivity, found.noise_multiplier, found.noise_std)
    assert shown == pytest.approx(figures, rel=1e-6)
    assert statement.clip_norm_changes == changes


@pytest.mark.parametrize("clipping", ["flat", "per_layer"])
def test_a_clip_norm_is_told_as_the_recipe_has_it(clipping):
    """It is clipped to in float32, whose nearest to 0.3 is 0.30000001."""
    assert state(run(privacy={"clip_norm": 0.3, "clipping": clipping})).mechanism.clip_norm == 0.3


def test_a_clip_norm_that_adapts_is_that_of_round_1_with_the_noise_that_counts_leave():
    statement = state(run(privacy=ADAPTIVE))
    found = statement.mechanism
    assert (found.clip_norm, found.sensitivity, found.bit_noise) == (15, 0.15, 5.0)
    assert found.noise_std == pytest.approx(0.15 / math.sqrt(1 - 1 / 100))  # z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2)
    assert statement.clip_norm_changes


def test_correlated_noise_is_stated_with_the_participation_it_is_for():
    statement = state(run(privacy=CORRELATED))
    ((event, count),) = statement.charged
    found = statement.mechanism
    assert isinstance(event, CorrelatedGaussian)
    assert count == 1
    assert (found.buffers, found.run_sensitivity) == (1, event.sensitivity)
    assert found.noise_std / 0.15 == pytest.approx(found.noise_multiplier * event.sensitivity)
    assert statement.epsilon_replaced > 2 * statement.epsilon
    assert (statement.turns, statement.min_separation) == (3, 5)
    assert "separated_rounds" in statement.not_covered
    assert state(run()).mechanism.run_sensitivity is None


def test_noise_of_devices_has_an_epsilon_against_the_server():
    evidence = run(NOISED, registered=Registered(50), vocabulary=FOUND_WORDS)
    evidence = replace(evidence, charged=[(WORDS, 1), *evidence.charged])
    statement = state(evidence)
    found = statement.mechanism.devices
    assert (found.noise_multiplier, found.survivors, found.colluding) == (0.8, 10, 2)
    assert found.participations == evidence.mechanism().devices.participations > 1
    # Every round that a user may join counts against the server, and so do the words.
    rounds = (SampledGaussian(0.8, "poisson", 1.0), found.participations)
    assert statement.epsilon_server == epsilon([(WORDS, 1), rounds], DELTA, "rdp") > statement.epsilon
    assert state(run(MASKED, registered=Registered(50))).epsilon_server is None


@pytest.mark.parametrize("privacy", [{"clipping": "none"}, {"estimator": "true_average"}, {"mode": "none"}])
def test_without_a_bound_or_noise_nothing_is_promised(privacy):
    statement = state(run(privacy={**privacy, **({"noise_multiplier": None} if "mode" in privacy else {})}))
    assert (statement.private, statement.has_guarantee, statement.relation) == (False, False, "none")
    assert statement.epsilon == statement.epsilon_spent == math.inf
    assert statement.epsilon_replaced is None
    assert statement.not_covered == ()


def test_of_an_estimator_that_is_not_known_its_stated_sensitivity_is_taken():
    own = {"estimator": "ours"}
    statement = state(run(privacy=own, own_sensitivity=0.25))
    assert (statement.mechanism.sensitivity, statement.mechanism.noise_std) == (0.25, 0.25)
    assert list(run(privacy=own).own_code()) != []
    assert list(run().own_code()) == []
    assert not state(run(privacy=own)).has_guarantee


# --- the charges ------------------------------------------------------------------------------------------------------


def test_all_that_was_charged_is_in_the_epsilon_and_listed():
    """The vocabulary and the start are paid for. Equal events are listed once."""
    evidence = run(rounds_done=5, vocabulary=FOUND_WORDS, start=START)
    evidence = replace(evidence, charged=[(WORDS, 1), (ROUND, 3), (ROUND, 20)])
    statement = state(evidence)
    assert statement.charged == ((WORDS, 1), (ROUND, 23))
    assert evidence.before == [(WORDS, 1), (ROUND, 3)]
    assert evidence.rounds == {ROUND: 20}
    assert statement.epsilon == pytest.approx(epsilon([(WORDS, 1), (ROUND, 23)], DELTA, "rdp"))
    assert statement.epsilon_training == pytest.approx(epsilon([(ROUND, 20)], DELTA, "rdp"))
    assert statement.epsilon_spent == pytest.approx(epsilon([(WORDS, 1), (ROUND, 8)], DELTA, "rdp"))
    assert statement.is_unfinished
    assert list(charge_faults(evidence)) == []


@pytest.mark.parametrize(("done", "charged"), [(0, 0), (5, 5), (20, 20)])
def test_what_is_spent_is_of_the_rounds_that_are_done(done, charged):
    statement = state(run(rounds_done=done))
    assert statement.epsilon_spent == (epsilon([(ROUND, charged)], DELTA, "rdp") if charged else 0)
    assert statement.epsilon == epsilon([(ROUND, 20)], DELTA, "rdp")


def test_the_epsilon_of_a_choice_is_that_of_all_runs():
    statement, one = (state(evidences()[name]) for name in ("chosen", "poisson"))
    ((event, _),) = statement.charged
    assert statement.epsilon == statement.epsilon_spent == epsilon([(event, 1)], statement.delta, "rdp") > one.epsilon
    assert (statement.accountant, one.accountant) == ("rdp", "pld")


@pytest.mark.parametrize("name", evidences())
def test_what_a_run_is_due_has_no_faults(name):
    assert list(charge_faults(evidences()[name])) == []


def test_fewer_rounds_than_asked_for_need_a_budget_that_forbids_the_next():
    spent = epsilon([(ROUND, 10)], DELTA, "rdp")
    assert list(charge_faults(run(privacy={"epsilon": spent}, rounds=10))) == []
    for asked, limit, faults in ((20, spent, 0), (20, 2 * spent, 1), (20, None, 1)):
        evidence = run(privacy={"epsilon": limit}, rounds=asked, rounds_planned=10, rounds_done=10)
        assert len(list(charge_faults(evidence))) == faults


def test_a_choice_is_of_runs_of_all_rounds_that_are_asked_for():
    spent = epsilon([(ROUND, 10)], DELTA, "rdp")
    for limit, planned, faults in ((None, 20, 0), (None, 10, 1), (2 * spent, 10, 1), (spent, 10, 0)):
        chosen = {"chosen": ChosenFacts(3, "perplexity", "best"), "rounds_planned": planned, "rounds_done": planned}
        evidence = run(privacy={"epsilon": limit}, **chosen)
        best = BestOfRuns(4.0, "geometric", tuple(evidence.charged))
        assert len(list(charge_faults(replace(evidence, charged=[(best, 1)])))) == faults
        assert list(charge_faults(evidence))  # one run is charged, and it was chosen among several


def test_what_a_start_cost_this_runs_people_is_charged():
    evidence = run(start=START)
    assert list(charge_faults(evidence))
    assert list(charge_faults(replace(evidence, charged=[(ROUND, 23)]))) == []


@pytest.mark.parametrize(
    "other",
    [
        SampledGaussian(2.0, "poisson", 0.01),
        SampledGaussian(1.0, "poisson", 0.001),
        SampledGaussian(1.0, "fixed", 0.01, cohort=100, users=10_000),
        WORDS,
    ],
)
def test_nothing_else_stands_for_a_round(other):
    assert list(charge_faults(replace(run(), charged=[(ROUND, 19), (other, 1)])))
    assert list(charge_faults(replace(run(), charged=[(ROUND, 20), (other, 1)])))


def test_replacing_a_user_costs_more_than_adding_one():
    statement = state(run())
    assert statement.epsilon_replaced == epsilon([(ROUND, 20)], DELTA, "rdp", replaced=True) > statement.epsilon
    fixed = state(run(privacy={"sampling": "fixed"}))
    assert (fixed.relation, fixed.epsilon_replaced) == (REPLACED, None)
    assert "epsilon_replaced" not in fixed.to_json()


def test_runs_of_both_kinds_of_sampling_have_a_total_for_replacing_a_user():
    fixed = SampledGaussian(1.0, "fixed", 0.01, cohort=10, users=1000)
    total, relation = store_total([(ROUND, 10), (fixed, 10)], 1e-6, "pld")
    assert relation == REPLACED
    assert total > max(epsilon([(event, 10)], 1e-6) for event in (ROUND, fixed))
    assert store_total([(ROUND, 10)], 1e-6, "pld")[1] == ADDED
    assert store_total([(ROUND, 10), (fixed, 10)], 1e-6, "moments") == (math.inf, REPLACED)
    assert store_total([(ROUND, 10), (NonPrivate(), 1)], 1e-6, "pld")[0] == math.inf


# --- what is not covered, and where tokens come from --------------------------------------------------------------

ALWAYS = {"held_out", "settings", "later_runs", "owners_files", "other_models", "second_ids"}
OF_DEVICES = {"adversaries", "silos"}
OF_MASKED = OF_DEVICES | {"spoiled_rounds"}


@pytest.mark.parametrize(
    ("evidence", "more"),
    [
        (run(), set()),
        (run(privacy={"sampling": "in_turn"}), {"turns"}),
        (run(start=START), {"start"}),
        (run(owners_per_record=3), {"shared_records"}),
        (run(every_record_is_a_user=True), {"records_as_users"}),
        (run(registered=Registered(50)), OF_DEVICES),
        (run(MASKED, registered=Registered(50)), OF_MASKED),
        (run(NOISED, registered=Registered(50)), OF_MASKED),
        (run(NOISED, registered=Registered(50, 2)), OF_MASKED),
        (run(MASKED), set()),  # a simulation
    ],
)
def test_what_is_not_covered_follows(evidence, more):
    found = state(evidence).not_covered
    assert set(found) == ALWAYS | more
    assert len(found) == len(set(found))


def test_held_out_users_are_covered_where_their_accuracy_is_private():
    assert "held_out" not in state(run(held_out="private")).not_covered


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        ({"source": "private", "epsilon": 2.0, "delta": 1e-6, "words_found": 7}, ("private", None, None, 2.0, 1e-6)),
        ({"source": "file", "file": "words.txt"}, ("declared", None, None, None, None)),
        ({"source": "declared"}, ("declared", None, None, None, None)),
        ({"source": "public"}, ("public", None, None, None, None)),
        ({"source": "public", "list": "own words", "language": "hi"}, ("public", "own words", "hi", None, None)),
    ],
)
def test_where_tokens_come_from_is_one_of_three(origin, found):
    facts = VocabularyFacts.of("9f", origin, "pieces (BPE)", ["en"])
    assert (facts.source, facts.public_list, facts.language, facts.epsilon, facts.delta) == found
    assert (facts.kind, facts.contexts, facts.private) == ("pieces (BPE)", ("en",), found[0] == "private")


# --- in files ---------------------------------------------------------------------------------------------------------

FULL = {
    "start": START,
    "canaries": CanarySummary(40, 4, 6, "abcd"),
    "registered": Registered(5, 2),
    "files": {"weights.safetensors": "00"},
}


@pytest.mark.parametrize(
    "evidence",
    [
        run(),
        run(MASKED, **FULL),
        run(privacy=ADAPTIVE),
        run(privacy={"clip_schedule": [[1, 4.0], [10, 1.0]], "noise_schedule": [[1, 2.0], [5, 0.5]]}),
        run(privacy=OPEN),
        run(privacy={"estimator": "clipped_denominator", **LAYERS}),
        run(privacy=CORRELATED),
    ],
)
def test_a_statement_is_read_as_it_was_written(evidence):
    statement = state(evidence)
    written = json.loads(json.dumps(statement.to_json(), allow_nan=False))
    read = Statement.from_json(written)
    assert read.to_json() == written
    assert (read.mechanism, read.charged, read.not_covered) == (
        statement.mechanism,
        statement.charged,
        statement.not_covered,
    )
    assert read.facts == statement.facts == evidence.facts
    assert Statement.from_json(json.loads(json.dumps(statement.exactly()))) == statement


def test_an_epsilon_is_rounded_up_in_files():
    statement = state(run())
    written = statement.to_json()
    for name in ("epsilon", "epsilon_spent", "epsilon_replaced", "epsilon_training"):
        exact = getattr(statement, name)
        assert exact <= written[name] < exact * (1 + 1e-3)
        assert statement.exactly()[name] == exact
    assert written["epsilon_store"] == "infinity"
    assert 1804.2 <= replace(statement, epsilon=1804.2).to_json()["epsilon"] <= 1806


@pytest.mark.parametrize("fact", ["epsilon", "rounds_done", "mechanism", "charged", "vocabulary"])
def test_a_statement_that_lacks_facts_is_none(fact):
    values = {name: value for name, value in state(run()).to_json().items() if name != fact}
    with pytest.raises((KeyError, TypeError), match=fact):
        Statement.from_json(values)


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", None), ("held_out", "perhaps"), ("rounds_done", True), ("not_covered", ["nothing"])]
)
def test_what_is_no_fact_is_refused(name, value):
    with pytest.raises((ValueError, TypeError)):
        Statement.from_json(state(run()).to_json() | {name: value})


@pytest.mark.parametrize(
    ("one", "other", "paths"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-7}, []),
        ({"a": 1.0}, {"a": 1}, []),
        ({"a": 1.0}, {"a": 1.001}, ["a"]),
        ({"a": 1.0}, {"a": True}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": 1}, {"a": "1"}, ["a"]),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, ["a.b[1].c"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"a": 1, "b": 2}, {"a": 1}, ["b"]),
        ({}, {"a": 1}, ["a"]),
    ],
)
def test_values_differ_by_more_than_rounding(one, other, paths):
    assert [path for path, *_ in differences(one, other)] == paths


def test_the_headline_ledger_gives_its_own_statement():
    """A run of 5,000 rounds whose statement, ledger and recipe are in the documentation."""
    values = json.loads((Path(__file__).parents[3] / "docs/results/headline/privacy.json").read_text())
    stated = Statement.from_json(values)
    recipe = Recipe.load("headline").replace(privacy={"accountant": "pld"})
    due = state(Evidence(recipe, stated.charged, stated.facts))
    assert {name: value for name, value in values.items() if name != "checksum"} == due.to_json()
