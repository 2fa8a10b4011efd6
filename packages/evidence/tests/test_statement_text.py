"""What a person reads of a statement follows from its facts: what carries the guarantee, and its figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from releases import WORDS, evidences

from sottovoce_evidence.accounting import SampledGaussian, rounded_up
from sottovoce_evidence.accounting.events import ADDED, REPLACED
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms
from sottovoce_evidence.recipe import Federation
from sottovoce_evidence.statement import (
    NOT_COVERED,
    AuditOutcome,
    CanarySummary,
    EarlierRun,
    Registered,
    StartFacts,
    Statement,
    VocabularyFacts,
    state,
)
from sottovoce_evidence.statement_text import (
    epsilon_text,
    format_value,
    pairs,
    plain,
    prose,
    rows,
    uncovered_texts,
    vocabulary_text,
)

STATEMENTS = {name: state(evidence) for name, evidence in evidences().items()}
PLAIN, MASKED = STATEMENTS["poisson"], STATEMENTS["masked"]
START = StartFacts("c0ffee00" * 8, "public")
EARLIER = replace(START, trained_on="private", runs=(EarlierRun("feed", 2.0, 1e-6),))


def stated(name: str = "poisson", **privacy: object) -> Statement:
    """Of a run with other settings."""
    evidence = evidences()[name]
    recipe = evidence.recipe.replace(privacy=privacy)
    charged = replace(evidence, recipe=recipe).mechanism().events(recipe.run.rounds)
    return state(replace(evidence, recipe=recipe, charged=charged))


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_guarantee_has_epsilon_and_delta_rounded_up(name):
    statement = STATEMENTS[name]
    text, shown = prose(statement), rounded_up(statement.epsilon)
    assert float(shown) >= statement.epsilon
    assert f"satisfies ({shown}, 1e-6)-differential privacy for users whose text it was trained on" in text
    assert f"by a factor of at most e^{shown} (plus 1e-6) when the whole text of any one person" in text
    assert "not for those held out" in text
    if statement.epsilon_replaced is not None:
        assert (
            f"all planned rounds, when one user is replaced by another: {rounded_up(statement.epsilon_replaced)}"
            in text
        )
    assert "None" not in text


def test_what_a_guarantee_is_for_is_told_by_its_relation():
    assert "any one person it was trained on is added or removed." in prose(PLAIN)
    fixed = stated(sampling="fixed")
    assert "any one person it was trained on is replaced by any other, added or removed." in prose(fixed)
    assert "when one user is replaced" not in prose(fixed)


def test_without_a_guarantee_there_is_none_in_words():
    text = prose(stated(mode="none", clipping="none", noise_multiplier=None))
    assert text.startswith("This run gives no privacy guarantee: ε is infinite.")
    assert "satisfies" not in text
    assert rows(stated(mode="none", clipping="none", noise_multiplier=None))["ε"] == ["infinite"]
    assert "Not covered" not in text


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_reviewer_finds_every_fact_in_its_row(name):
    found = rows(STATEMENTS[name])
    needed = {"unit", "protects", "relation", "ε", "δ", "accountant", "rounds", "sampling", "settings", "clip", "noise"}
    needed |= {"estimator", "vocabulary", "start", "secrets", "training", "software"}
    needed |= {"masked": {"who sees what"}, "chosen": {"chosen"}}.get(name, set())
    assert needed <= found.keys()
    assert all(lines and all(lines) for lines in found.values())


def test_what_is_not_covered_is_the_last_paragraph():
    assert prose(PLAIN).split("\n\n")[-1] == f"Not covered: {'; '.join(uncovered_texts(PLAIN))}."


def test_all_that_may_be_uncovered_has_a_text_of_its_own():
    statement = replace(MASKED, not_covered=tuple(NOT_COVERED))
    texts = uncovered_texts(statement)
    assert len(set(texts)) == len(NOT_COVERED)
    assert not any("{" in text for text in texts)
    kept = replace(MASKED, registered=Registered(9, 3))
    assert "if it kept the 3 device keys" in "; ".join(rows(kept)["who sees what"])
    (shared,) = uncovered_texts(replace(PLAIN, not_covered=("shared_records",), owners_per_record=3))
    assert "up to 3 people own together" in shared


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"starts": 3}, "training was begun or resumed 3 times"),
        ({"privacy": replace(PLAIN.privacy, secrets="seeded")}, "anyone who knows the seed can undo the noise"),
        ({"practice": True}, "it was trained on synthetic people"),
        ({"rounds_done": 2}, "(projected: ε is that of all 6 planned rounds; 2 of them are done)"),
        ({"relation_store": REPLACED}, "on the store, when one user is replaced by another"),
        ({"store_gone": True}, "all private runs on the store, when this run ended: 50"),
        ({"epsilon_store": math.inf}, "all private runs on the store: not known to be finite"),
        ({"start": START}, "start: weights c0ffee00, public by its own card"),
        ({"start": replace(START, declared=True)}, "weights c0ffee00, declared public by the owner"),
        ({"start": replace(START, trained_on="unknown")}, "weights c0ffee00, of unknown origin"),
        (
            {"start": EARLIER},
            "of private runs on other people (feed: ε = 2 at δ = 1e-06; a person who is among them and among this "
            "run's has at most the sum of all ε)",
        ),
        (
            {"start": replace(EARLIER, charged=((SampledGaussian(1.0, "poisson", 0.1), 3),))},
            "of private runs on the same people (feed), whose charges are part of its ε, if its noise and its "
            "rounds were not chosen by their results",
        ),
        ({"canaries": CanarySummary(40, 4, 6, "ab")}, "40 canary users, each in or out by a secret coin and 6 who"),
        ({"federation": Federation()}, "on users' own devices, which draw who joins"),
        ({"federation": Federation(), "min_separation": 5}, "keep count of the rounds that they join"),
    ],
)  # fmt: skip
def test_a_fact_has_its_sentence(facts, sentence):
    assert sentence in prose(replace(PLAIN, **facts))
    assert sentence not in prose(PLAIN)


@pytest.mark.parametrize(
    ("privacy", "name", "line"),
    [
        ({}, "sampling", "Poisson: every user joins a round independently, with probability 0.01"),
        ({}, "settings", "users: 5,000; cohort: 50"),
        ({}, "estimator", "fixed denominator, of sensitivity 0.01; total weight W = 5,000"),
        ({"sampling": "in_turn"}, "sampling", "one user joins 1 planned round at most, two of them 100 rounds apart"),
        (
            {"sampling": "min_separation", "min_separation": 3, "participations": 2},
            "sampling",
            "joins 2 planned rounds",
        ),
        ({}, "clip", "a user's update, to L2 norm 0.5 (flat, every step)"),
        ({"clip_schedule": ((1, 4.0), (5, 1.0))}, "clip", "in round 1"),
        ({"clip_schedule": ((1, 4.0), (5, 1.0))}, "settings", "clip schedule: [1, 4], [5, 1]"),
        (
            {"noise_schedule": ((1, 2.0), (5, 0.5))},
            "noise",
            "it follows a schedule, and every round is charged",
        ),
        ({"noise_schedule": ((1, 2.0), (5, 0.5))}, "settings", "noise schedule: [1, 2], [5, 0.5]"),
        ({"adaptive_quantile": 0.5}, "noise", "2.5 on each count of clipped users, charged together with the update"),
        ({"adaptive_quantile": 0.5}, "settings", "adaptive quantile: 0.5"),
        ({"weight_cap": 4.0, "total_weight": 100.0}, "settings", "weight cap: 4"),
    ],
)
def test_a_setting_is_told(privacy, name, line):
    assert line in "; ".join(rows(stated(**privacy))[name])
    mechanism = stated(**privacy).mechanism
    assert f"of standard deviation {mechanism.noise_std:.4g} on every" in prose(stated(**privacy))


def test_correlated_noise_is_told_over_the_run_and_over_a_round():
    mechanism = STATEMENTS["correlated"].mechanism
    (line,) = (line for line in rows(STATEMENTS["correlated"])["noise"] if "correlated" in line)
    assert f"the run's sensitivity is {mechanism.run_sensitivity:.4g} times a round's" in line
    assert f"is {mechanism.noise_multiplier * mechanism.run_sensitivity:.4g} times that of one round" in line


def test_against_the_server_another_epsilon_is_told_with_who_may_collude():
    (line,) = (line for line in rows(MASKED)["ε"] if "against the server" in line)
    assert "updates are replaced by zeros in all rounds that they join, 2 at most" in line
    assert line.endswith(f": {epsilon_text(MASKED.epsilon_server)}")
    assert "6 honest devices of a sum add 0.8 times the clip norm together" in rows(MASKED)["noise"]
    sees = "one sum over 6 other devices or more, with the noise of the devices"
    epsilon = epsilon_text(MASKED.epsilon_server)
    assert f"the server with up to 2 devices: {sees} (ε = {epsilon})" in rows(MASKED)["who sees what"]
    assert "sum over 8 devices or more" in "; ".join(rows(MASKED)["who sees what"])
    assert "simulation" not in prose(MASKED)
    assert "this run was a simulation" in prose(replace(MASKED, registered=None))


def test_words_that_were_found_in_peoples_text_are_told_with_their_cost():
    statement = STATEMENTS["words"]
    assert WORDS in dict(statement.charged)
    assert "found in the users' own text with ε = " in prose(statement)
    assert "at δ = 1e-7, which is part of this run's ε" in prose(statement)
    assert f"training alone: {rounded_up(statement.epsilon_training)}" in rows(statement)["ε"]
    assert "training alone" not in prose(PLAIN)


@pytest.mark.parametrize(
    ("vocabulary", "text"),
    [
        (VocabularyFacts("9f", "declared"), "declared public by the owner of the store"),
        (VocabularyFacts("9f", "declared", "bpe"), "bpe, declared public by the owner of the store"),
        (VocabularyFacts("9f", "public"), "public: the list of wordfreq"),
        (
            VocabularyFacts("9f", "public", "characters", "characters", "hi"),
            "characters, public: the characters of wordfreq's list, and bytes (hi)",
        ),
        (
            VocabularyFacts("9f", "declared", contexts=("de", "en")),
            "declared public by the owner of the store; the contexts de, en, declared public by the owner of the store",
        ),
    ],
)
def test_where_tokens_come_from(vocabulary, text):
    assert vocabulary_text(vocabulary) == text


def test_the_best_of_several_runs_says_how_many_settings_and_that_their_number_is_secret():
    text = prose(STATEMENTS["chosen"])
    assert "each with one of 3 settings at random" in text
    assert "their number is a secret, drawn from a geometric distribution" in text


def test_audits_and_private_accuracy_of_a_released_model():
    passed = AuditOutcome("rounds", "passed", would_notice=0.9078)
    text = prose(replace(PLAIN, audits=(passed, AuditOutcome("canaries", "not run"))))
    assert "audits: by rounds: passed, would have seen noise at 0.9 of its scale; by canaries: not run" in text
    found = PrivateAccuracy(terms=Terms(2.0, 1e-6, 2.2, 100, 18.4), users=310, targets=9, top1=0.15, top1_within=0.01)
    text = prose(replace(PLAIN, private_accuracy=found, epsilon_held_out=2.7))
    assert "measured privately, with ε = 2 at δ = 1e-6 for each of them" in text
    assert "over all private evaluations ε is 2.7; this release has no exact figure of them" in text
    hidden = prose(replace(PLAIN, private_accuracy=replace(found, top1=None), epsilon_held_out=2.7))
    assert "the noise hides how well the model predicts them" in hidden


def test_values_are_written_as_a_person_writes_them():
    assert [plain(value) for value in (1e-6, 20_000, 1500.0, 0.5, True)] == ["1e-6", "20,000", "1,500", "0.5", "True"]
    assert format_value(ADDED) == "one user is added or removed"
    assert format_value([[1, 4.0], [10, 1.0]]) == "[1, 4], [10, 1]"
    assert pairs({"clip_norm": 5.0, "noise": "blt"}) == ["clip norm: 5", "noise: blt"]
