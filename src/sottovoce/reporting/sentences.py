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
from sottovoce.reporting.statement_text import epsilon_text, plain, prose, with_prose
from sottovoce.runs.card import Card
from sottovoce.runs.folder import README, RunFolder

# The form of a statement from which on its sentences are those that its version writes. Form 2 was written in other
# words too: one of something had the plural.
_COMPARED = 3
_EPSILON = re.compile(r"(?:ε = |ε is |ε >= |e\^|\()([0-9][0-9.,e+-]*[0-9]|[0-9])")
_DELTA = re.compile(r"(?:δ = |plus |, )([0-9.]+e-[0-9]+)")
# In README.md, which speaks of more than privacy: only numbers that are called ε, δ or planned rounds. Every repetition
# is bounded, so that no file makes a search long.
_NUMBER = r"[*_`$]{0,3}((?:\.[0-9]{1,40}|[0-9]{1,40}(?:,[0-9]{3}){0,9}(?:\.[0-9]{1,40})?)(?:e[+-]?[0-9]{1,9})?)"
_SAID = r"[*_`$]{0,3}\s{0,3}(?:=|≈|~|≤|≥|<=|>=|<|>|:|is|of|was)?\s{0,3}(?:at most|about|below|only)?\s{0,3}"
_DIGITS = "[0-9.]{1,40}"
_README = {
    "ε": re.compile(rf"(?:(?:ε|\bepsilon\b){_SAID}|e\^|\((?={_DIGITS}, {_DIGITS}e-)){_NUMBER}", re.IGNORECASE),
    "δ": re.compile(rf"(?:(?:δ|\bdelta\b){_SAID}|\bplus |\({_DIGITS}, (?={_DIGITS}e-)){_NUMBER}", re.IGNORECASE),
}
_ROUNDS = re.compile(r"(?<![0-9,])([0-9][0-9,]{0,20}) of ([0-9][0-9,]{0,20}) planned")


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
        # Words of other versions differ; none of them listed nothing.
        if statement.private and not any(text.strip() for text in statement.not_covered):
            yield "it does not say what is not covered"
        yield from _readme_faults(release, statement)
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
    if (readme := _readme(release)) is not None:
        if _promised(release, statement) not in readme:
            yield f"{README} promises other than the statement"
        private = statement.private_accuracy
        if private is not None and "\n".join(how_good_privately(private)) not in readme:
            yield f"{README} says other of how good the model is than the private accuracy"
    yield from _readme_faults(release, statement)


def notes(release: RunFolder, statement: Statement) -> Iterator[str]:
    """What a reader must know of sentences that could not be compared."""
    if are_compared(statement):
        return
    readme = _readme(release)
    alike = readme is None or _promised(release, statement) in readme
    if not alike or release.read_statement().get("prose") != prose(statement):
        yield f"another version wrote the sentences of privacy.json and {README}: only figures in them were compared"


def _readme(release: RunFolder) -> str | None:
    file = release.path / README
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _promised(release: RunFolder, statement: Statement) -> str:
    return "\n".join(promise(Card.from_json(release.read_card()), statement))


def _readme_faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """Figures of README.md that are not those of the facts, whatever version wrote its words."""
    if (readme := _readme(release)) is None:
        return
    private = statement.private_accuracy
    facts = "\n".join([_promised(release, statement), *(how_good_privately(private) if private else ())])
    for name, pattern in _README.items():
        said, known = _numbers(pattern, readme), _numbers(pattern, facts)
        if odd := sorted(said - known):
            yield f"{README} speaks of {name} {', '.join(map(str, odd))}, which is no figure of its facts"
        headline = epsilon_text(statement.epsilon) if name == "ε" else plain(statement.delta)
        if not _numbers(pattern, f"{name} = {headline}") <= said:
            yield f"{README} does not say {name} = {headline}"
    rounds = (statement.rounds_done, statement.rounds_planned)
    told = {tuple(int(number.replace(",", "")) for number in pair) for pair in _ROUNDS.findall(readme)}
    if odd := sorted(told - {rounds}):
        shown = ", ".join(f"{done} of {planned}" for done, planned in odd)
        yield f"{README} speaks of {shown} planned rounds, and the statement of {rounds[0]} of {rounds[1]}"


def _numbers(pattern: re.Pattern[str], text: str) -> set[float]:
    return {float(found.replace(",", "")) for found in pattern.findall(text)}


def _not_covered(statement: Statement) -> Iterator[str]:
    """What every statement with these facts lists."""
    private = statement.private_accuracy is not None and not statement.exact_before
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
