"""The README of a release: YAML that Hugging Face reads, then the facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from releases import evidences, write

from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms
from sottovoce_evidence.readme import TAGS, Released, readme
from sottovoce_evidence.statement import Published, StartFacts, Statement, state
from sottovoce_evidence.statement_text import epsilon_text, paragraphs, plain, prose, rows, uncovered_texts

yaml = pytest.importorskip("yaml")

STATEMENT = state(evidences()["poisson"])
FIGURES = {"users": 200, "top1": 0.172, "top3": 0.3, "perplexity": 97.5}
ABOUT = Released(
    statement=STATEMENT,
    card={
        "code": "lstm",
        "model": {"kind": "lstm", "embedding": 96, "hidden": 256},
        "parameters": 1_346_144,
        "vocabulary": 10_000,
        "rounds": 6,
    },
    record=[{"round": 1}, {"round": 6, "evaluation": FIGURES}],
    baselines={"token": "the", "constant": {"users": 200, "top1": 0.04, "top3": 0.1, "perplexity": None}},
    onnx=True,
)
START = StartFacts("0c68ae32" * 8, "public", name="base english", text="Wikipedia", licence="CC BY-SA 4.0")
ACCURACY = PrivateAccuracy(terms=Terms(2.0, 1e-6, 2.2, 100, 18.4), users=310, targets=9, top1=0.15, top1_within=0.01)


def about(statement: Statement = STATEMENT, **changes: Any) -> str:
    """The README of a release with other files."""
    return readme(replace(ABOUT, statement=statement, **changes), "SHA256:abc")


def stated(**changes: Any) -> Statement:
    return replace(STATEMENT, **changes)


def published(**changes: Any) -> Statement:
    return stated(published=replace(STATEMENT.published, **changes))


def front(text: str) -> dict:
    _, matter, _ = text.split("---\n", 2)
    return yaml.safe_load(matter)


def test_the_front_matter_is_what_hugging_face_reads():
    assert front(about(stated(start=START))) == {
        "license": "apache-2.0",
        "language": "en",
        "base_model": "english",
        "library_name": "sottovoce",
        "pipeline_tag": "text-generation",
        "tags": list(TAGS),
    }
    bare = front(about(stated(published=Published("model", "other"))))
    assert set(bare) == {"license", "library_name", "pipeline_tag", "tags"}


@pytest.mark.parametrize("name", ['a"\nlicense: mit', "a: b", "a\n---\nlicense: mit", "- a", "é\u2028b"])
def test_a_name_cannot_add_a_key(name):
    found = front(about(replace(published(language=name), start=replace(START, name=f"base {name}"))))
    assert (found["license"], found["language"], found["base_model"]) == ("apache-2.0", name, name)


def test_it_has_the_whole_statement_and_what_is_not_covered():
    text = about()
    assert f"**ε = {epsilon_text(STATEMENT.epsilon)} at δ = {plain(STATEMENT.delta)}**" in text
    assert all(paragraph in text for paragraph in paragraphs(STATEMENT))
    assert all(f"| {name} | {'; '.join(lines)} |\n" in text for name, lines in rows(STATEMENT).items())
    assert all(f"- {reason}\n" in text for reason in uncovered_texts(STATEMENT))
    assert "None" not in text


def test_one_epsilon_has_one_figure_wherever_it_is_said():
    """Rounded up, to three digits; only files have all."""
    statement = stated(epsilon=8.60191)
    for text in (about(statement), prose(statement), statement.short):
        assert "8.61" in text
        assert "8.60" not in text


def test_it_says_what_the_model_is():
    assert "| model | lstm (embedding 96, hidden 256) |" in about()
    assert "| trained | 1,346,144 of 1,346,144 parameters |" in about()
    assert "| licence | apache-2.0 |" in about()
    assert "| licence | not stated; ask the owner |" in about(published(license="other"))
    adapted = about(card={**ABOUT.card, "trained_parameters": 1_000, "adapter": {"rank": 4}})
    assert "| trained | 1,000 of 1,346,144 parameters (adapters of rank 4, beside" in adapted


def test_a_row_of_a_table_is_one_row():
    assert "trained on a / b (CC BY-SA 4.0)) |\n" in about(stated(start=replace(START, text="a | b")))


def test_it_says_how_to_use_it_and_where_to_get_what_checks_it():
    text = about(published(name="my model", prompt='say "hi"'))
    assert 'model = sv.ModelFolder.open(\'my model\')\nmodel.suggest("say \\"hi\\"")\n' in text
    assert "pip install sottovoce-evidence==0.1.0\nsotto-verify 'my model' --signer SHA256:abc\n" in text
    assert "\nsha256sum -c SHA256SUMS\nssh-keygen -Y check-novalidate -n sottovoce-release -s SHA256SUMS.sig" in text
    assert "`onnx/`" in text
    assert "`onnx/`" not in about(onnx=False)


def test_accuracy_stands_beside_that_of_the_baselines():
    text = about()
    assert "Exact accuracy, not private, on about 200 held-out users, who are not protected by the guarantee:" in text
    assert "| | top-1 | top-3 | perplexity per token |\n" in text
    assert "| **this model** | 17.2% | 30.0% | 97.5 |\n" in text
    assert "| always “the” | 4.0% | 10.0% | – |\n" in text
    measured = [{"round": 6, "evaluation": {**FIGURES, "top1_words": 0.076, "bits_per_byte": 2.5}}]
    start = {"start": "base english", "start_model": {**FIGURES, "top1": 0.118, "top1_words": 0.0771}}
    lines = about(record=measured, baselines=start).splitlines()
    assert "| | top-1 | top-1 over words | top-3 | perplexity per token | bits per byte |" in lines
    assert "| **this model** | 17.2% | 7.6% | 30.0% | 97.5 | 2.5 |" in lines
    assert "| the start, base english | 11.8% | 7.7% | 30.0% | 97.5 | – |" in lines


def test_an_evaluation_before_the_last_round_is_not_that_of_the_model():
    for record in ([], ABOUT.record[:1], [{"round": 5, "evaluation": FIGURES}]):
        assert "No accuracy on held-out users is released." in about(record=record)


def test_private_accuracy_takes_the_place_of_exact_accuracy():
    text = about(stated(private_accuracy=ACCURACY, epsilon_held_out=2.7))
    assert "**Private accuracy** on about 310 held-out users (ε = " in text
    assert "for each): top-1 15.00% ± 1.00" in text
    for shown in ("Exact accuracy", "17.2%", "always “the”"):
        assert shown in about()
        assert shown not in text
    hidden = about(stated(private_accuracy=replace(ACCURACY, top1=None), epsilon_held_out=2.7))
    assert "the noise hides how well the model predicts them" in hidden


@pytest.mark.parametrize("name", evidences())
def test_it_is_made_of_the_files_of_a_release(name, tmp_path):
    evidence = evidences()[name]
    folder = write(tmp_path / name, evidence)
    found = Released.of(folder, state(evidence))
    assert (len(found.record), found.baselines, found.onnx) == (7, {}, False)
    assert front(readme(found, "SHA256:abc"))["license"] == "apache-2.0"
    (folder / "record.jsonl").unlink()
    assert Released.of(folder, state(evidence)).record == []
