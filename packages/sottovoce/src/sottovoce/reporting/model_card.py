"""The README.md of a release, in the format of Hugging Face's model cards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from sottovoce.evaluation.private_accuracy import PrivateAccuracy
from sottovoce.reporting.statement import Statement
from sottovoce.reporting.statement_text import accuracy_text, epsilon_text, noise_text, paragraphs, percent, plain
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce_evidence.bases import Base
from sottovoce_evidence.errors import count_of, plural
from sottovoce_evidence.evaluation import Evaluation
from sottovoce_evidence.files import Json
from sottovoce_evidence.signature import MANIFEST, RELEASE, SIGNATURE

TITLE, HOW = "# A private next-word model", "## How it was trained"
TAGS = ("differential-privacy", "user-level-privacy", "federated-learning", "next-word-prediction", "sottovoce")


@dataclass(frozen=True)
class Described:
    """What a README is about: only facts that may be public."""

    name: str
    card: Card
    statement: Statement
    model: Json  # kind and sizes
    license: str
    signer: str  # fingerprint
    language: str | None = None
    prompt: str = ""  # the beginning of a sentence in it
    base_model: str | None = None
    base: Base | None = None  # the card of the base, where it is in the package
    evaluation: Evaluation | None = None  # of held-out users, as the record has it
    baselines: Baselines | None = None
    onnx: bool = False


def model_card(about: Described) -> str:
    promised = promise(about.card, about.statement)
    sections = (_front(about), [TITLE], promised, _how_good(about), _how(about), _use(about))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _front(about: Described) -> Iterator[str]:
    """The YAML that Hugging Face reads. A JSON string is a YAML string too."""
    yield "---"
    yield f"license: {json.dumps(about.license)}"
    if about.language:
        yield f"language: {json.dumps(about.language)}"
    if about.base_model:
        yield f"base_model: {json.dumps(about.base_model, ensure_ascii=False)}"
    yield "library_name: sottovoce"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    yield from (f"- {tag}" for tag in TAGS)
    yield "---"


def promise(card: Card, statement: Statement) -> Iterator[str]:
    """What the model is, and what is promised. `sotto verify` compares it with the statement."""
    yield (
        f"A next-word model of {card.parameters:,} parameters over {card.vocabulary:,} tokens, trained on the text of "
        f"many people with user-level differential privacy: **ε = {epsilon_text(statement.epsilon)} at "
        f"δ = {plain(statement.delta)}**."
    )
    yield ""
    yield "## What is promised"
    for text in paragraphs(statement):
        yield ""
        yield text
    yield ""
    yield "Not covered:"
    yield from (f"- {text}" for text in statement.not_covered)


def how_good_privately(private: PrivateAccuracy) -> Iterator[str]:
    """All that is said of how good a model with a private accuracy is. `sotto verify` compares it too."""
    yield "## How good it is"
    yield ""
    cost = f"ε = {epsilon_text(private.terms.epsilon)} at δ = {plain(private.terms.delta)}"
    people = f"about {count_of(private.users, 'held-out user')} ({cost} for each)"
    yield f"**Private accuracy** on {people}: {accuracy_text(private)}."
    yield ""
    yield HOW


def _how_good(about: Described) -> Iterator[str]:
    if about.statement.private_accuracy is not None:
        *lines, _, _ = how_good_privately(about.statement.private_accuracy)
        yield from lines
        return
    yield "## How good it is"
    yield ""
    if about.evaluation is None:
        yield "No accuracy on held-out users is released."
        return
    users = about.evaluation.users
    people = f"about {count_of(users, 'held-out user')}"
    yield f"Exact accuracy, not private, on {people}, who {plural(users, 'is', 'are')} not protected by the guarantee:"
    yield ""
    rows = {"**this model**": about.evaluation}
    if about.baselines is not None:
        rows |= about.baselines.scores
    over_words = any(score.top1_words is not None for score in rows.values())  # not where words have pieces
    heads = ("top-1", *(["top-1 over words"] * over_words), "top-3", "perplexity per token", "bits per byte")
    yield f"| | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(heads)}"
    for name, score in rows.items():
        perplexity = plain(score.perplexity) if isfinite(score.perplexity) else "–"  # a baseline's may be infinite
        words = "–" if score.top1_words is None else percent(score.top1_words)
        figures = (percent(score.top1), *([words] * over_words), percent(score.top3), perplexity)
        figures += ("–" if score.bits_per_byte is None else plain(score.bits_per_byte),)
        yield f"| {name} | {' | '.join(figures)} |"


def rows(about: Described) -> dict[str, str]:
    """The table of how a model was trained: a line for each name. `sotto verify` compares it too."""
    statement = about.statement
    declared, mechanism = statement.declared, statement.mechanism
    sizes = ", ".join(f"{name} {value}" for name, value in about.model.items() if name != "kind")
    facts = {
        "model": f"{about.model.get('kind', about.card.code)} ({sizes})" if sizes else about.card.code,
        **_trained_part(card=about.card),
        "start": "fresh weights" if statement.start is None else statement.start.described,
        "people": f"{declared.users:,} declared; about {plain(declared.cohort)} join each round ({statement.sampling})",
        "rounds": f"{statement.rounds_done} of {statement.rounds_planned} planned",
        "clip norm, noise multiplier": f"{plain(mechanism.clip_norm)}, {plain(mechanism.noise_multiplier)}",
        **({} if mechanism.correlation is None else {"noise": noise_text(mechanism)}),
        "licence": "not stated; ask the owner" if about.license == "other" else about.license,
        "vocabulary": statement.vocabulary.source,
        "software": ", ".join(f"{name} {version}" for name, version in statement.software.items()),
    }
    if about.base is not None:
        facts["text of the start"] = f"{about.base.text}; {about.base.licence}"
    return {name: f"| {name} | {str(value).replace('|', '/')} |" for name, value in facts.items()}


def _how(about: Described) -> Iterator[str]:
    yield HOW
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    yield from rows(about).values()
    yield ""
    yield "`training.toml` has all settings, `report.html` the evidence on one page."


def _trained_part(card: Card) -> dict[str, str]:
    """What was trained, where it is not all of the model."""
    if card.trained_parameters in (None, card.parameters):
        return {}
    trained = f"{card.trained_parameters:,} of {card.parameters:,} parameters; the others are frozen"
    if card.adapter is not None:
        trained += f" (adapters of rank {card.adapter['rank']}, beside the weights of the start)"
    return {"trained": trained}


def _use(about: Described) -> Iterator[str]:
    yield "## Use it"
    yield ""
    yield "```python"
    yield "import sottovoce as sv"
    yield ""
    yield f"model = sv.load_model({about.name!r})"
    yield f"model.suggest({json.dumps(about.prompt, ensure_ascii=False)})"
    yield "```"
    if about.onnx:
        yield ""
        yield "`onnx/` has the model for other programs, with a manifest that names its inputs and outputs."
    yield ""
    yield "## Check it"
    yield ""
    yield "```bash"
    if version := about.statement.software.get("sottovoce"):
        yield f"pip install {shlex.quote(f'sottovoce=={version}')}"
    yield f"sotto verify {shlex.quote(about.name)} --signer {about.signer}"
    yield "```"
    yield ""
    yield (
        "This README could be anyone's: take the fingerprint from the owner in another way. `sotto verify` checks the "
        "files and the signature, and computes ε from `ledger.jsonl` by three accountants. It needs no jax: "
        "`docs/how-to/release.md` of sottovoce says how to install it without."
    )
    yield ""
    yield "Two common programs check the files and the signature alone, in this folder; the second prints who signed:"
    yield ""
    yield "```bash"
    yield f"sha256sum -c {MANIFEST}"
    yield f"ssh-keygen -Y check-novalidate -n {RELEASE} -s {SIGNATURE} < {MANIFEST}"
    yield "```"
