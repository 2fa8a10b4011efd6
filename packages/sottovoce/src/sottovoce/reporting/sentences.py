"""Whether the words of a release are those that follow from its facts: in privacy.json, and in README.md.

Keys, words and sentences are those of the form that this version writes. A release cannot choose another one: nothing
in it makes the comparison weaker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version

from sottovoce.privacy.sampling import SAMPLERS
from sottovoce.reporting.readme_checks import Readme
from sottovoce.reporting.statement import (
    LOUD,
    NOISE_GENERATOR,
    PROTECTS,
    REGISTRY,
    RELEASED,
    SKELLAM_GENERATOR,
    SOFTWARE,
    Statement,
    not_covered,
)
from sottovoce.reporting.statement_text import prose
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import CHECKSUM, Json
from sottovoce_evidence.recipe import Recipe

_VERSION = "[0-9][0-9A-Za-z.+!-]{0,60}"
_ACCOUNTANT = re.compile(
    rf"PLD \((sottovoce {_VERSION}, )?dp-accounting {_VERSION}\)|RDP \(dp-accounting {_VERSION}\)"
    r"|moments accountant \(Abadi et al\. 2016, orders 1 to 32\)"
)
# What a statement lists as not covered because of how records became users, and how they were trained.
_ALSO_NOT_COVERED = re.compile(
    r"what up to [0-9]{1,9} people own together: it is in the text of each of them"
    r"|a person with several records: every record counts as one user"
)


def faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """Sentences that do not follow from the facts."""
    written = {name: value for name, value in release.read_statement().items() if name != CHECKSUM}
    text, recipe = written.pop("prose", ""), _recipe(release)
    yield from _fact_faults(written, statement, recipe)
    if text != prose(statement):
        yield "the prose of privacy.json is not what follows from its facts"
    if (readme := Readme.of(release, statement, recipe)) is not None:
        yield from readme.faults()


def notes(release: RunFolder, statement: Statement) -> Iterator[str]:
    """What a reader must know of sentences that could not be compared. What is on privacy begins with `LOUD`."""
    writer, own = statement.software.get("sottovoce"), version("sottovoce")
    if writer != own:
        wrote = f"{LOUD}: sottovoce {writer!a:.80} wrote it by its own account, and this is {own}"
        yield f"{wrote}: if a check fails, ask that version too"
    if (readme := Readme.of(release, statement, _recipe(release))) is not None:
        yield from readme.notes()


def _fact_faults(written: Json, statement: Statement, recipe: Recipe | None) -> Iterator[str]:
    """Keys and words of facts that a statement has not."""
    facts = statement.to_json()
    if other := sorted(name for name in {*written, *facts} if written.get(name) != facts.get(name)):
        yield f"privacy.json has facts that a statement has not: {', '.join(map(ascii, other))}"
    if not _ACCOUNTANT.fullmatch(statement.accountant):
        yield f"it names an accountant that there is not: {statement.accountant!a:.80}"
    versions = statement.software
    if versions.keys() != set(SOFTWARE):
        yield f"it names other software than {', '.join(SOFTWARE)}"
    if not all(re.fullmatch(_VERSION, found) for found in versions.values()):
        yield f"it names versions that are none: {', '.join(map(ascii, versions.values())):.80}"
    generator = NOISE_GENERATOR if statement.mechanism.devices is None else SKELLAM_GENERATOR
    if (statement.protects, statement.noise_generator) != (PROTECTS, generator):
        yield "whom it protects, or what its noise is drawn from, is not what a statement says"
    if statement.released != (RELEASED if statement.canaries is None else (*RELEASED, REGISTRY)):
        yield "what it says is released is not what a run releases"
    yield from _not_covered_faults(statement, recipe)


def _not_covered_faults(statement: Statement, recipe: Recipe | None) -> Iterator[str]:
    wanted = list(_not_covered(statement, recipe))
    if missing := [text for text in wanted if text not in statement.not_covered]:
        yield f"it does not say what is not covered: {'; '.join(missing)}"
    more = list((Counter(statement.not_covered) - Counter(wanted)).elements())
    if len(set(more)) < len(more) or not all(_ALSO_NOT_COVERED.fullmatch(text) for text in more):
        yield "what it says is not covered is not what follows from its facts"


def _recipe(release: RunFolder) -> Recipe | None:
    """The recipe of a release. One that is none is a failed check of its own."""
    with suppress(SottoError):
        return Recipe.of(release) if release.recipe_file.is_file() else None
    return None


def _not_covered(statement: Statement, recipe: Recipe | None = None) -> Iterator[str]:
    """What every statement with these facts and this recipe lists."""
    yield from not_covered(
        generator=statement.sampling_generator,
        started=statement.start is not None,
        sampler=SAMPLERS[statement.sampling].not_covered,
        federation=statement.federation,
        objective="plain" if recipe is None else recipe.local.objective,
        held_out=statement.held_out,
    )
