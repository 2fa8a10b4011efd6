"""The README.md of a release, in the format of Hugging Face's model cards: it follows from the other files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce_evidence.errors import count_of, plural
from sottovoce_evidence.files import LINES, Json, parse_json, read_plain, read_sealed
from sottovoce_evidence.signature import MANIFEST, RELEASE, SIGNATURE
from sottovoce_evidence.statement import Published, Statement
from sottovoce_evidence.statement_text import (
    accuracy_text,
    epsilon_text,
    paragraphs,
    percent,
    plain,
    rows,
    uncovered_texts,
)

TAGS = ("differential-privacy", "user-level-privacy", "federated-learning", "next-word-prediction", "sottovoce")
_SCORES = {
    "top1": ("top-1", percent),
    "top1_words": ("top-1 over words", percent),  # where words have pieces, there is none
    "top3": ("top-3", percent),
    "perplexity": ("perplexity per token", plain),
    "bits_per_byte": ("bits per byte", plain),
}
_BASELINES = {"start_model": "the start, {start}", "constant": "always “{token}”", "unigram": "a unigram"}


@dataclass(frozen=True)
class Released:
    """The files of a release that its README is about."""

    statement: Statement
    card: Json
    record: list[Json]
    baselines: Json  # empty where there are none
    onnx: bool

    @staticmethod
    def of(folder: Path, statement: Statement) -> Released:
        record, baselines = folder / "record.jsonl", folder / "baselines.json"
        return Released(
            statement=statement,
            card=read_sealed(folder / "card.json"),
            record=[parse_json(line) for line in read_plain(record, LINES).splitlines()] if record.exists() else [],
            baselines=read_sealed(baselines) if baselines.exists() else {},
            onnx=(folder / "onnx").exists(),
        )

    @property
    def published(self) -> Published:
        return self.statement.published or Published("release", "other")


def readme(about: Released, signer: str) -> str:
    """As it is written; `signer` is the fingerprint of the owner's key."""
    sections = (_front(about), _promise(about), _how_good(about), _model(about), _use(about, signer))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _front(about: Released) -> Iterator[str]:
    """The YAML that Hugging Face reads. A JSON string is a YAML string too."""
    published, start = about.published, about.statement.start
    yield "---"
    yield f"license: {json.dumps(published.license)}"
    if published.language:
        yield f"language: {json.dumps(published.language)}"
    if start is not None and start.name:
        yield f"base_model: {json.dumps(start.name.removeprefix('base '), ensure_ascii=False)}"
    yield "library_name: sottovoce"
    yield "pipeline_tag: text-generation"
    yield "tags:"
    yield from (f"- {tag}" for tag in TAGS)
    yield "---"


def _promise(about: Released) -> Iterator[str]:
    """What the model is, and what is promised."""
    card, statement = about.card, about.statement
    yield "# A private next-word model"
    yield ""
    yield (
        f"A next-word model of {card['parameters']:,} parameters over {card['vocabulary']:,} tokens, trained on the "
        f"text of many people with user-level differential privacy: **ε = {epsilon_text(statement.epsilon)} at "
        f"δ = {plain(statement.delta)}**."
    )
    yield ""
    yield "## What is promised"
    for text in paragraphs(statement):
        yield ""
        yield text
    yield ""
    yield from _table(rows(statement))
    yield ""
    yield "Not covered:"
    yield from (f"- {text}" for text in uncovered_texts(statement))


def _table(facts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    yield from (f"| {name} | {'; '.join(lines).replace('|', '/')} |" for name, lines in facts.items())


def _how_good(about: Released) -> Iterator[str]:
    yield "## How good it is"
    yield ""
    if (private := about.statement.private_accuracy) is not None:
        each = f"ε = {epsilon_text(private.terms.epsilon)} at δ = {plain(private.terms.delta)} for each"
        people = f"about {count_of(private.users, 'held-out user')} ({each})"
        yield f"**Private accuracy** on {people}: {accuracy_text(private)}."
        return
    done = [line for line in about.record if line["round"] == about.statement.rounds_done and "evaluation" in line]
    if not done:
        yield "No accuracy on held-out users is released."
        return
    evaluation = done[-1]["evaluation"]
    users = evaluation["users"]
    people = f"about {count_of(users, 'held-out user')}"
    yield f"Exact accuracy, not private, on {people}, who {plural(users, 'is', 'are')} not protected by the guarantee:"
    yield ""
    scores = {"**this model**": evaluation}
    for name, called in _BASELINES.items():
        if about.baselines.get(name):
            scores[called.format(**{"start": "", "token": "", **about.baselines})] = about.baselines[name]
    known = [key for key in _SCORES if any(score.get(key) is not None for score in scores.values())]
    yield f"| | {' | '.join(_SCORES[key][0] for key in known)} |"
    yield f"| --- |{' ---: |' * len(known)}"
    for name, score in scores.items():
        figures = ("–" if score.get(key) is None else _SCORES[key][1](score[key]) for key in known)
        yield f"| {name} | {' | '.join(figures)} |"


def _model(about: Released) -> Iterator[str]:
    """What the model is."""
    card, licence = about.card, about.published.license
    model = card.get("model") or {}
    sizes = ", ".join(f"{name} {value}" for name, value in model.items() if name != "kind")
    facts = {
        "model": f"{model['kind']} ({sizes})" if sizes else card["code"],
        "trained": f"{card.get('trained_parameters') or card['parameters']:,} of {card['parameters']:,} parameters",
        "licence": "not stated; ask the owner" if licence == "other" else licence,
    }
    if card.get("adapter"):
        facts["trained"] += f" (adapters of rank {card['adapter']['rank']}, beside the weights of the start)"
    yield "## The model"
    yield ""
    yield from _table({name: [value] for name, value in facts.items()})
    yield ""
    yield "`training.toml` has all settings, `report.html` the evidence on one page."


_USE = """## Use it

```python
import sottovoce as sv

model = sv.ModelFolder.open({name!r})
model.suggest({prompt})
```
{onnx}
## Check it

```bash
pip install sottovoce-evidence=={version}
sotto-verify {folder} --signer {signer}
```

This README could be anyone's: take the fingerprint from the owner in another way. `sotto-verify` checks the files and \
the signature, and computes the statement again from `training.toml`, `ledger.jsonl` and `facts.json`. It needs no jax.

Two common programs check the files and the signature alone, in this folder; the second prints who signed:

```bash
sha256sum -c {manifest}
ssh-keygen -Y check-novalidate -n {release} -s {signature} < {manifest}
```"""
_ONNX = "\n`onnx/` has the model for other programs, with a manifest that names its inputs and outputs.\n"


def _use(about: Released, signer: str) -> Iterator[str]:
    published = about.published
    yield _USE.format(
        name=published.name,
        prompt=json.dumps(published.prompt, ensure_ascii=False),
        onnx=_ONNX if about.onnx else "",
        version=about.statement.software.get("sottovoce-evidence", ""),
        folder=shlex.quote(published.name),
        signer=signer,
        manifest=MANIFEST,
        release=RELEASE,
        signature=SIGNATURE,
    )
