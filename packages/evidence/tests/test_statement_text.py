"""The sentences of a statement follow from its facts: here are those that carry the guarantee, and their figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from releases import WORDS, evidences

from sottovoce_evidence.accounting import SampledGaussian, rounded_up
from sottovoce_evidence.accounting.events import ADDED, REPLACED
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms
from sottovoce_evidence.statement import (
    AuditOutcome,
    CanarySummary,
    EarlierRun,
    NotCovered,
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
    paragraphs,
    plain,
    prose,
    uncovered_texts,
    vocabulary_text,
)

STATEMENTS = {name: state(evidence) for name, evidence in evidences().items()}
PLAIN, MASKED = STATEMENTS["poisson"], STATEMENTS["masked"]
START = StartFacts("c0ffee00" * 8, "public")
EARLIER = replace(START, trained_on="private", runs=(EarlierRun("feed", 2.0, 1e-6),))
ROUND_1 = "These are figures of round 1."


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
        replaced = f"When it is replaced by any other, the factor is at most e^{rounded_up(statement.epsilon_replaced)}"
        assert replaced in text
    assert "None" not in text


def test_what_a_guarantee_is_for_is_told_by_its_relation():
    assert "any one person it was trained on is added or removed." in prose(PLAIN)
    fixed = stated(sampling="fixed")
    assert "any one person it was trained on is replaced by any other, added or removed." in prose(fixed)
    assert "When it is replaced" not in prose(fixed)


def test_without_a_guarantee_there_is_none_in_words():
    text = prose(stated(mode="none", clipping="none", noise_multiplier=None))
    assert text.startswith("This run gives no privacy guarantee: ε is infinite.")
    assert "satisfies" not in text
    assert "Not covered" not in text


def test_what_is_not_covered_is_the_last_paragraph_and_no_part_of_the_others():
    uncovered = uncovered_texts(PLAIN)
    assert prose(PLAIN).split("\n\n") == [*paragraphs(PLAIN), f"Not covered: {'; '.join(uncovered)}."]
    assert not any(text in " ".join(paragraphs(PLAIN)) for text in uncovered)


@pytest.mark.parametrize("code", get_args(NotCovered))
def test_all_that_may_be_uncovered_has_a_text_of_its_own(code):
    (text,) = uncovered_texts(replace(MASKED, not_covered=(code,)))
    others = {other: uncovered_texts(replace(MASKED, not_covered=(other,))) for other in get_args(NotCovered)}
    assert [other for other, found in others.items() if found == [text]] == [code]


def test_who_is_trusted_is_named_with_its_figures():
    (server,) = uncovered_texts(replace(PLAIN, not_covered=("server",)))
    assert "before the noise is in, and is trusted to keep none of it" in server
    (more,) = uncovered_texts(replace(MASKED, not_covered=("server_with_more",)))
    assert more == "the server with more than 2 devices that collude with it"
    kept = replace(MASKED, not_covered=("kept_keys",), federation=replace(MASKED.federation, keys_made_by_server=3))
    assert "if it kept the keys of 3 devices" in uncovered_texts(kept)[0]
    (shared,) = uncovered_texts(replace(PLAIN, not_covered=("shared_records",), owners_per_record=3))
    assert "up to 3 people own together" in shared


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"starts": 3}, "Training was begun or resumed 3 times"),
        ({"secrets": "seeded"}, "anyone who knows the seed can undo the noise"),
        ({"practice": True}, "it was trained on synthetic people"),
        ({"rounds_done": 2}, "(projected: ε is that of all 6 planned rounds; 2 of them are done)"),
        ({"relation_store": REPLACED}, "at the same δ, when one user is replaced by another."),
        ({"store_gone": True}, "ε was 50 at the same δ, when this run ended."),
        ({"epsilon_store": math.inf}, "ε is not known to be finite at the same δ"),
        ({"start": START}, "The model began with weights c0ffee00, public by its own card."),
        ({"start": replace(START, declared=True)}, "weights c0ffee00, declared public by the owner."),
        ({"start": replace(START, trained_on="unknown")}, "weights c0ffee00, of unknown origin."),
        (
            {"start": EARLIER},
            "of private runs on other people (feed: ε = 2 at δ = 1e-06; a person who is among them and among this "
            "run's has at most the sum of all ε).",
        ),
        (
            {"start": replace(EARLIER, charged=((SampledGaussian(1.0, "poisson", 0.1), 3),))},
            "of private runs on the same people (feed), whose charges are part of its ε, if its noise and its "
            "rounds were not chosen by their results.",
        ),
        ({"canaries": CanarySummary(40, 4, 6, "ab")}, "40 canary users, each in or out by a secret coin and 6 who"),
        ({"registered": Registered(9)}, "trained on their own devices, which draw who joins"),
        ({"registered": Registered(9), "min_separation": 5}, "keep count of the rounds that they join"),
    ],
)  # fmt: skip
def test_a_fact_has_its_sentence(facts, sentence):
    assert sentence in prose(replace(PLAIN, **facts))
    assert sentence not in prose(PLAIN)


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({}, "Every user joins a round independently with probability 0.01 (50 expected of 5,000 declared)"),
        ({"sampling": "fixed"}, "Every round draws exactly 50 of 5,000 declared places"),
        ({"sampling": "in_turn"}, "one of 100 groups (50 expected of 5,000 declared)"),
        ({"sampling": "in_turn"}, "Each joins at most 1 of the planned rounds, without amplification by sampling"),
        ({"sampling": "min_separation", "min_separation": 3, "participations": 2}, "Each joins at most 2 of the plan"),
        ({"sampling": "min_separation", "min_separation": 3}, "Two rounds of one user are at least 3 apart."),
    ],
)
def test_how_users_join_is_told_with_what_is_declared(privacy, sentence):
    assert sentence in prose(stated(**privacy))


@pytest.mark.parametrize(
    ("privacy", "changes"),
    [
        ({}, []),
        ({"clip_schedule": ((1, 4.0),), "noise_schedule": ((1, 2.0), (5, 2.0))}, []),
        (
            {"clip_schedule": ((1, 4.0), (5, 1.0)), "clip_path": "geometric"},
            ["schedule: 2 in round 1, 0.5 in round 5, on a geometric path between them, and constant after that."],
        ),
        ({"clip_schedule": ((1, 2.0), (3, 0.5))}, ["schedule: 1 from round 1 on, 0.25 from round 3 on."]),
        (
            {"noise_schedule": ((1, 2.0), (5, 0.5))},
            ["schedule: 2 from round 1 on, 0.5 from round 5 on; every round is charged its own."],
        ),
        (
            {"noise_schedule": ((1, 2.0), (5, 0.5)), "adaptive_quantile": 0.5, "adaptive_bit_noise": 5.0},
            ["Update and counts together are charged the noise multiplier of their round.", "2 from round 1 on"],
        ),
    ],
)
def test_what_changes_after_round_1_is_said(privacy, changes):
    statement = stated(**privacy)
    text, mechanism = prose(statement), statement.mechanism
    assert text.count(ROUND_1) == bool(changes)
    assert all(change in text for change in changes)
    assert f"is clipped to L2 norm {mechanism.clip_norm:g} (" in text
    assert f"standard deviation {mechanism.noise_std:.4g} (noise multiplier {mechanism.noise_multiplier:.4g})" in text


def test_correlated_noise_is_told_over_the_run_and_over_a_round():
    found = STATEMENTS["correlated"].mechanism.correlation
    text = prose(STATEMENTS["correlated"])
    assert f"one user may join the sensitivity is {found.sensitivity:.4g} times that of one round." in text
    assert f"{found.noise_over_clip:.4g} times that of one round" in text


def test_against_the_server_another_epsilon_is_told_with_who_may_collude():
    text = prose(MASKED)
    assert "any 6 honest ones together 0.8 times the clip norm. A sum is opened over 8 devices or more." in text
    assert f"Against the server with up to 2 devices, ε is {epsilon_text(MASKED.epsilon_server)} at the same δ" in text
    assert "Devices add noise before they send" in text
    assert "simulation" not in text
    assert "This run was a simulation" in prose(replace(MASKED, registered=None))


def test_words_that_were_found_in_peoples_text_are_told_with_their_cost():
    statement = STATEMENTS["words"]
    assert WORDS in dict(statement.charged)
    assert "found in the users' own text with ε = " in prose(statement)
    assert "at δ = 1e-7, which is part of this run's ε" in prose(statement)
    assert f"Training alone has ε = {rounded_up(statement.epsilon_training)} at the same δ." in prose(statement)
    assert "Training alone" not in prose(PLAIN)


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
    assert "each with one of 3 settings, at random. Their number was drawn from a geometric distribution" in text
    assert "is a secret" in text


def test_audits_and_private_accuracy_of_a_released_model():
    passed = AuditOutcome("rounds", "passed", would_notice=0.9078)
    text = prose(replace(PLAIN, audits=(passed, AuditOutcome("canaries", "not run"))))
    assert "The model was audited by rounds before its release. The claim was not contradicted" in text
    assert "The audit by rounds would have seen noise at 0.9 of its scale. It was not audited by canaries." in text
    found = PrivateAccuracy(terms=Terms(2.0, 1e-6, 2.2, 100, 18.4), users=310, targets=9, top1=0.15, top1_within=0.01)
    text = prose(replace(PLAIN, private_accuracy=found, epsilon_held_out=2.7))
    assert "measured privately, with ε = 2 at δ = 1e-6 for each of them" in text
    assert "Over all private evaluations on them, ε is 2.7 at the same δ. This release has no exact figure" in text
    hidden = prose(replace(PLAIN, private_accuracy=replace(found, top1=None), epsilon_held_out=2.7))
    assert "the noise hides how well the model predicts them" in hidden


def test_values_are_written_as_a_person_writes_them():
    assert [plain(value) for value in (1e-6, 20_000, 1500.0, 0.5, True)] == ["1e-6", "20,000", "1,500", "0.5", "True"]
    assert format_value(ADDED) == "one user is added or removed"
    assert format_value([[1, 4.0], [10, 1.0]]) == "[1, 4], [10, 1]"
    assert pairs({"clip_norm": None, "adaptive": {"bit_noise": 5.0}}) == ["clip norm: none", "adaptive: bit noise 5"]
