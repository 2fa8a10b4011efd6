"""The sentences of a statement follow from its facts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import make_statement

from sottovoce.audit.results import CanarySummary
from sottovoce_evidence.adversaries import Adversary, FederationFacts
from sottovoce_evidence.statement import AuditOutcome, VocabularyFacts
from sottovoce_evidence.statement_text import bytes_text, format_value, pairs, paragraphs, plain, prose, with_prose


def test_a_private_vocabulary_is_in_the_sentences():
    assert "wordfreq" in VocabularyFacts.of("9f86", {"source": "public", "list": "wordfreq"}).source
    hindi = VocabularyFacts.of("9f86", {"source": "public", "list": "characters", "language": "hi"}, "characters")
    assert hindi.source == "characters, public: the characters of wordfreq's list, and bytes (hi)"
    declared = VocabularyFacts.of("9f86", {"source": "declared"})
    known = VocabularyFacts.of("9f86", {"source": "declared"}, contexts=("de", "en"))
    assert known.source.startswith(f"{declared.source}; the contexts de, en, declared public")
    assert VocabularyFacts.of("9f86", {"source": "file"}, "bpe").source == f"bpe, {declared.source}"
    assert VocabularyFacts.of("9f86", {"source": "file", "file": "words.txt"}) == declared
    private = VocabularyFacts.of("9f86", {"source": "private", "epsilon": 2.0, "delta": 1e-6, "words_found": 7})
    assert "ε = 2 at δ = 1e-6" in private.source
    assert "part of this run's ε" in private.source
    text = prose(make_statement(vocabulary=private, epsilon_training=1.25))
    assert private.source in text
    assert "Training alone has ε = 1.25" in text
    # The fact decides, not the words.
    reworded = replace(private, source="taken from what people wrote")
    assert "Training alone" in prose(make_statement(vocabulary=reworded, epsilon_training=1.25))
    assert "Training alone" not in prose(make_statement(vocabulary=replace(private, private=False)))


MASKED = FederationFacts(9, "masked", survivors=6, colluding=2)
NOISED = replace(MASKED, noise="devices")


def test_what_is_not_covered_is_the_last_paragraph_of_a_guarantee_and_no_part_of_the_others():
    statement = make_statement()
    assert prose(statement).split("\n\n") == [
        *paragraphs(statement), f"Not covered: {'; '.join(statement.not_covered)}.",
    ]  # fmt: skip
    public = make_statement(private=False)
    assert prose(public) == "\n\n".join(paragraphs(public))
    assert with_prose(public)["prose"] == prose(public)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"charged_again": 2}, "2 rounds were begun, broken off and done again"),
        ({"charged_again": 1}, "1 round was begun, broken off and done again with fresh noise. ε counts it twice"),
        ({"rounds_planned": 1, "rounds_done": 1}, " 1 of 1 planned round was done; "),
        ({"charged_elsewhere": 3}, "3 more rounds were charged for other copies"),
        ({"out_of_date": True}, "its ε is out of date until `sotto resume`"),
        ({"secrets": "seeded"}, "anyone who knows the seed can undo the noise"),
        ({"across_devices": True}, "trained on their own devices, which draw who joins"),
        ({"across_devices": True, "min_separation": 5}, "keep count of the rounds that they join"),
        ({"across_devices": True, "federation": FederationFacts(9)}, "The server adds up and adds the noise, and is"),
        ({"across_devices": True, "federation": MASKED}, "opens one sum over 6 devices or more, or nothing. Up to 2"),
        ({"across_devices": True, "federation": NOISED}, "Devices add noise before they send"),
        (
            {"across_devices": True, "adversaries": (Adversary("the server", "a sum", 2.0),)},
            "Who sees what: the server: a sum (ε = 2).",
        ),
        (
            {"across_devices": True, "adversaries": (Adversary("the server", "a sum", math.inf),)},
            "Who sees what: the server: a sum (no ε).",
        ),
        ({"start": PUBLIC_START}, "The model began with weights c0ffee00, public by its own card."),
        (
            {"start": replace(PUBLIC_START, declared=True)},
            "The model began with weights c0ffee00, declared public by the owner.",
        ),
        (
            {"start": replace(PUBLIC_START, trained_on="private", runs=(EarlierRun("feed", 2.0, 1e-6),))},
            "of private runs on other people (feed: ε = 2 at δ = 1e-06; a person who is among them and among this "
            "run's has at most the sum of all ε).",
        ),
        (
            {
                "start": replace(
                    PUBLIC_START,
                    trained_on="private",
                    runs=(EarlierRun("feed", 2.0, 1e-6),),
                    charged=((SampledGaussian(1.0, "poisson", 0.1), 3),),
                )
            },
            "of private runs on the same people (feed), whose charges are part of its ε, if its noise and its rounds "
            "were not chosen by their results.",
        ),
        (
            {"canaries": CanarySummary(40, 4, 6, "ab")},
            "40 canary users, each in or out by a secret coin and 6 who hold 4",
        ),
        ({"sampling": "fixed"}, "Every round draws exactly 200 of 20,000 declared places"),
        ({"sampling": "in_turn", "turns": 7}, "one of 100 groups"),
    ],
)
def test_a_fact_has_its_sentence(facts, sentence):
    assert sentence in prose(make_statement(**facts))
    assert sentence not in prose(make_statement())


def test_audits_of_a_released_model():
    passed = AuditOutcome("rounds", "passed", would_notice=0.9078)
    text = prose(make_statement(audits=(passed, AuditOutcome("canaries", "not run"))))
    assert "The model was audited by rounds before its release" in text
    assert "The audit by rounds would have seen noise at 0.9 of its scale. It was not audited by canaries." in text


def test_bytes_are_told_in_units_of_a_thousand():
    told = {0: "0 B", 999: "999 B", 1000: "1 kB", 224_352: "224 kB", 999_600: "1,000 kB", 3_663_656_000: "3.66 GB"}
    assert {count: bytes_text(count) for count in told} == told


def test_values_are_written_as_a_person_writes_them():
    assert [plain(value) for value in (1e-6, 20_000, 1500.0, 0.5, True)] == ["1e-6", "20,000", "1,500", "0.5", "True"]
    assert format_value("add-or-remove-one-user") == "one user is added or removed"
    assert format_value([[1, 4.0], [10, 1.0]]) == "[1, 4], [10, 1]"
    assert pairs({"clip_norm": None, "adaptive": {"bit_noise": 5.0}}) == ["clip norm: none", "adaptive: bit noise 5"]
