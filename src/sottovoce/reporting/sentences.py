"""Whether the sentences of a release say what its facts say: those of privacy.json, and the promise in README.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version

from sottovoce.files import CHECKSUM
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce.reporting.adversaries import not_covered_of
from sottovoce.reporting.model_card import how_good_privately, promise
from sottovoce.reporting.statement import (
    EXACT_ACCURACY,
    NO_CIPHER,
    NOISE_GENERATOR,
    NOT_COVERED,
    PROTECTS,
    SKELLAM_GENERATOR,
    STARTED_FROM,
    Statement,
)
from sottovoce.reporting.statement_text import prose, with_prose
from sottovoce.runs.card import Card
from sottovoce.runs.folder import README, RunFolder

_COMPARED = 2  # the form of a statement from which on its sentences are those that its version writes
_EPSILON = re.compile(r"(?:ε = |ε is |ε >= |e\^|\()([0-9][0-9.,e+-]*[0-9]|[0-9])")
_DELTA = re.compile(r"(?:δ = |plus |, )([0-9.]+e-[0-9]+)")


def are_compared(statement: Statement) -> bool:
    """Does this version write the sentences of this statement? Those of others may have other words."""
    return statement.statement >= _COMPARED and statement.software.get("sottovoce") == version("sottovoce")


def faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """Sentences that do not follow from the facts."""
    written = {name: value for name, value in release.read_statement().items() if name != CHECKSUM}
    text = written.get("prose", "")
    if not are_compared(statement):
        wanted = _figures(prose(statement))
        if odd := sorted(_figures(str(text)) - wanted):
            yield f"privacy.json speaks of {', '.join(odd)}, which is no figure of its facts"
        return
    wanted = with_prose(statement)
    if text != wanted["prose"]:
        yield "the prose of privacy.json is not what follows from its facts"
    if other := sorted(name for name in {*written, *wanted} - {"prose"} if written.get(name) != wanted.get(name)):
        yield f"privacy.json has facts that a statement has not: {', '.join(map(ascii, other))}"
    generator = NOISE_GENERATOR if statement.mechanism.devices is None else SKELLAM_GENERATOR
    if (statement.protects, statement.noise_generator) != (PROTECTS, generator):
        yield "whom it protects, or what its noise is drawn from, is not what this version says"
    if missing := [text for text in _not_covered(statement) if text not in statement.not_covered]:
        yield f"it does not say what is not covered: {'; '.join(missing)}"
    readme = release.path / README
    if readme.is_file():
        wanted = "\n".join(promise(Card.from_json(release.read_card()), statement))
        written = readme.read_text(encoding="utf-8")
        if wanted not in written:
            yield f"{README} promises other than the statement"
        private = statement.private_accuracy
        if private is not None and "\n".join(how_good_privately(private)) not in written:
            yield f"{README} says other of how good the model is than the private accuracy"


def notes(release: RunFolder, statement: Statement) -> Iterator[str]:
    """What a reader must know of sentences that could not be compared."""
    if not are_compared(statement) and release.read_statement().get("prose") != prose(statement):
        yield f"another version wrote the sentences of privacy.json and {README}: only figures in them were compared"


def _not_covered(statement: Statement) -> Iterator[str]:
    """What every statement with these facts lists."""
    private = statement.private_accuracy is not None
    yield from (text for text in NOT_COVERED if not (private and text == EXACT_ACCURACY))
    if statement.sampling_generator == "Philox":
        yield NO_CIPHER
    if statement.start is not None:
        yield STARTED_FROM
    yield from SAMPLERS[statement.sampling].not_covered
    if statement.federation is not None:
        yield from not_covered_of(statement.federation)


def _figures(text: str) -> set[str]:
    return {found.rstrip(".,") for pattern in (_EPSILON, _DELTA) for found in pattern.findall(text)}
