"""The README of a release: YAML that Hugging Face reads, then the facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_record, make_statement

from scores import score
from sottovoce.evaluation.figures import Evaluation
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms
from sottovoce_evidence.readme import TAGS, Described, model_card
from sottovoce_evidence.statement import StartFacts

yaml = pytest.importorskip("yaml")

STATEMENT = make_statement()
ABOUT = Described(
    name="keyboard-model",
    card=Card(parameters=1_346_144, vocabulary=10_000),
    statement=STATEMENT,
    model={"kind": "lstm", "embedding": 96, "hidden": 256},
    license="apache-2.0",
    signer="SHA256:abc",
    language="en",
    base_model="english",
    evaluation=Evaluation.from_json(make_record()[-1]["evaluation"]),
    baselines=Baselines(token="the", constant=score(200, 0.04, 0.1, 0.2, 900.0)),
    onnx=True,
)


def front(text: str) -> dict:
    _, matter, _ = text.split("---\n", 2)
    return yaml.safe_load(matter)


def test_the_front_matter_is_what_hugging_face_reads():
    assert front(model_card(ABOUT)) == {
        "license": "apache-2.0",
        "language": "en",
        "base_model": "english",
        "library_name": "sottovoce",
        "pipeline_tag": "text-generation",
        "tags": list(TAGS),
    }
    bare = front(model_card(replace(ABOUT, license="other", language=None, base_model=None)))
    assert set(bare) == {"license", "library_name", "pipeline_tag", "tags"}
    assert "| licence | not stated; ask the owner |" in model_card(replace(ABOUT, license="other"))
    assert "| licence | apache-2.0 |" in model_card(ABOUT)


def test_it_says_where_to_get_what_checks_it():
    about = replace(ABOUT, statement=make_statement(software={"sottovoce": "0.3.1"}))
    _, check = model_card(about).split("## Check it\n\n")
    assert check.startswith("```bash\npip install sottovoce==0.3.1\nsotto verify keyboard-model --signer SHA256:abc\n")
    assert "\nsha256sum -c SHA256SUMS\nssh-keygen -Y check-novalidate -n sottovoce-release -s SHA256SUMS.sig" in check
    unknown = model_card(replace(ABOUT, statement=make_statement(software={})))
    assert "pip install" not in unknown


def test_a_name_cannot_add_a_key():
    assert front(model_card(replace(ABOUT, base_model='a"\nlicense: mit')))["license"] == "apache-2.0"


def test_it_has_epsilon_unit_training_accuracy_and_baselines():
    text = model_card(ABOUT)
    for shown in (
        "**ε = 4.63 at δ = 1e-6**", "any one person", "| **this model** |", "| always “the” | 4.0% |",
        "lstm (embedding 96, hidden 256)", "20,000 declared", "| clip norm, noise multiplier | 15, 0.8125 |",
        "sotto verify keyboard-model --signer SHA256:abc", "sv.ModelFolder.open('keyboard-model')",
        "`onnx/`", "Not covered:",
    ):  # fmt: skip
        assert shown in text, shown
    assert all(reason in text for reason in STATEMENT.not_covered)


def test_private_accuracy_takes_the_place_of_exact_accuracy():
    accuracy = PrivateAccuracy(
        terms=Terms(2.0, 1e-6, 2.2, 100, 18.4), users=310, targets=9, top1=0.15, top1_within=0.01
    )
    statement = replace(STATEMENT, private_accuracy=accuracy, epsilon_held_out=2.7)
    text = model_card(replace(ABOUT, statement=statement))
    assert "Exact accuracy, not private" in model_card(ABOUT)
    assert "**Private accuracy** on about 310" in text
    assert "Exact accuracy" not in text
    assert "always “the”" not in text
    assert "top-1 15.00% ± 1.00 points (95%, of people like them)" in text
    assert (
        "Over all private evaluations on them, ε is 2.7 at the same δ. This release has no exact figure of them."
        in text
    )
    assert "not measured" not in model_card(replace(ABOUT, statement=statement, evaluation=None))
    hidden = replace(statement, private_accuracy=replace(accuracy, top1=None))
    assert "the noise hides how well the model predicts them" in model_card(replace(ABOUT, statement=hidden))


def test_an_infinite_perplexity_is_a_dash_and_the_start_has_its_name():
    start = StartFacts(f"public start: {'0c68ae32' * 8}, public by its own card", name="base english")
    endless = Baselines(token="the", constant=score(200, 0.04, 0.1, 0.2, None))
    text = model_card(replace(ABOUT, statement=replace(STATEMENT, start=start), baselines=endless))
    assert "\n# A private next-word model\n" in text
    assert "| always “the” | 4.0% | – | 10.0% | – | – |" in text
    assert "The model began with base english (weights 0c68ae32, public by its own card)." in text
    assert "| start | base english (weights 0c68ae32, public" in text
    assert "None" not in text


def test_top_1_over_words_stands_beside_top_1_where_it_was_measured():
    measured = score(200, 0.172, 0.3, perplexity=97.5, top1_words=0.076, bits_per_byte=2.5)
    start = score(200, 0.118, 0.2, 0.3, 210.7, top1_words=0.0771)
    lines = model_card(replace(ABOUT, evaluation=measured, baselines=Baselines("base english", start))).splitlines()
    assert "| | top-1 | top-1 over words | top-3 | perplexity per token | bits per byte |" in lines
    assert "| **this model** | 17.2% | 7.6% | 30.0% | 97.5 | 2.5 |" in lines
    assert "| the start, base english | 11.8% | 7.7% | 20.0% | 210.7 | – |" in lines
    assert "over words" not in model_card(replace(ABOUT, evaluation=replace(measured, top1_words=None)))


def test_what_was_not_measured_is_not_there():
    text = model_card(replace(ABOUT, evaluation=None, baselines=None, onnx=False))
    assert "No accuracy on held-out users is released." in text
    assert "onnx" not in text
