"""Whether the words of a release are those that follow from its facts: in privacy.json and in README.md.

The form of a statement tells which keys and which words its facts have, whatever version wrote it. Sentences, the prose
and README.md, are compared where this version wrote them.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from sottovoce import bases
from sottovoce.data.prompts import prompts_for
from sottovoce.data.tokenizer_files import find_tokenizer, load_tokenizer
from sottovoce.errors import SottoError, count_of
from sottovoce.files import CHECKSUM, Facts, Json
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce.recipe import Recipe
from sottovoce.reporting.model_card import Described, how_good_privately, model_card, promise, rows
from sottovoce.reporting.readme_figures import figures, planned_rounds, speaks_of_privacy
from sottovoce.reporting.statement import (
    EXACT_ACCURACY,
    LOUD,
    NOISE_GENERATOR,
    PROTECTS,
    REGISTRY,
    RELEASED,
    SKELLAM_GENERATOR,
    SOFTWARE,
    TRAINED_AT_ONCE,
    Statement,
    not_covered,
)
from sottovoce.reporting.statement_text import epsilon_text, plain, prose
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce.runs.folder import ONNX, README, RunFolder
from sottovoce.runs.signature import SIGNER, public_fingerprint

# The form of a statement from which on its sentences are those that its version writes. Form 2 was written in other
# words too: one of something had the plural. It had the same words for whom it protects and what is released.
_COMPARED, _SAME_LABELS = 3, 2
_VERSION = "[0-9][0-9A-Za-z.+!-]{0,60}"
_ACCOUNTANT = re.compile(
    rf"PLD \((sottovoce {_VERSION}, )?dp-accounting {_VERSION}\)|RDP \(dp-accounting {_VERSION}\)"
    r"|moments accountant \(Abadi et al\. 2016, orders 1 to 32\)"
)
# What a statement lists as not covered because of how records became users, and how they were trained.
_ALSO_NOT_COVERED = re.compile(
    r"what up to [0-9]{1,9} people own together: it is in the text of each of them"
    r"|a person with several records: every record counts as one user"
    rf"|{re.escape(TRAINED_AT_ONCE).replace(re.escape('{}'), '[0-9]{1,9}')}"
)
_FRONT = re.compile(r'^(license|language): "([\w.+-]{1,64})"$', re.MULTILINE | re.ASCII)
# A line that begins with the command, after marks of a list, a quotation, a prompt or code.
_COMMAND = re.compile(r"([\s>$`*+-]{0,9})(sotto[ \t]{1,9}verify\b[^`]{0,999})")
_CODE, _FENCES, _END_OF_COMMAND = re.compile(r" {4}|\t|.*[$`]"), ("```", "~~~"), frozenset(";&|")
_MOST_SHOWN = 20  # lines of a README's own


def has_known_words(statement: Statement) -> bool:
    """Has this statement the form of today, in which every fact has the words that it has here?"""
    return statement.statement >= _COMPARED


def are_compared(statement: Statement) -> bool:
    """Does this version write the sentences of this statement? Those of others may have other words."""
    return has_known_words(statement) and statement.software.get("sottovoce") == version("sottovoce")


def faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """Sentences that do not follow from the facts."""
    written = {name: value for name, value in release.read_statement().items() if name != CHECKSUM}
    text = written.pop("prose", "")
    yield from _fact_faults(written, statement, _recipe(release))
    if not are_compared(statement):
        yield from _figure_faults("privacy.json", str(text), prose(statement))
        # Words of other versions differ; none of them listed nothing.
        if statement.private and not any(text.strip() for text in statement.not_covered):
            yield "it does not say what is not covered"
        yield from _readme_faults(release, statement)
        return
    if text != prose(statement):
        yield "the prose of privacy.json is not what follows from its facts"
    if (readme := _readme(release)) is not None:
        if not _has_lines(readme, promised := _promised(release, statement)):
            said = set(readme.splitlines())
            lost = [f"it lacks the line {line[:80]!r}" for line in promised.splitlines() if line not in said]
            yield f"{README} promises other than the statement: {(lost or ['its lines are in another order'])[0]}"
        private = statement.private_accuracy
        if private is not None and not _has_lines(readme, "\n".join(how_good_privately(private))):
            yield f"{README} says other of how good the model is than the private accuracy"
        yield from _row_faults(release, statement, readme)
    yield from _readme_faults(release, statement)


def notes(release: RunFolder, statement: Statement) -> Iterator[str]:
    """What a reader must know of sentences that could not be compared. What is on privacy begins with `LOUD`."""
    if not are_compared(statement):
        yield (
            f"{LOUD}: another version wrote the sentences of privacy.json and {README}: only plain figures of ε, δ and "
            "rounds in them were compared; read both"
        )
    elif (readme := _readme(release)) is not None:
        said, wanted = (
            Counter(filter(None, text.splitlines())) for text in (readme, _written(release, statement, readme))
        )
        own = list((said - wanted).elements())
        for line in own[:_MOST_SHOWN]:
            loud = f"{LOUD}: " * speaks_of_privacy(line)
            yield f"{loud}nothing here checks this line of {README}, which is the owner's own: {line[:200]!r}"
        if more := own[_MOST_SHOWN:]:
            yield f"{LOUD}: {README} has {count_of(len(more), 'more line')} of the owner's own; read them"
        if lacks := (wanted - said).total():
            yield f"{README} lacks {count_of(lacks, 'line')} that a release has"


def _fact_faults(written: Json, statement: Statement, recipe: Recipe | None) -> Iterator[str]:
    """Keys and words of facts that a statement of this form has not."""
    facts, form, known = statement.to_json(), statement.statement, has_known_words(statement)
    different = (name for name in {*written, *facts} if written.get(name) != facts.get(name))
    if other := sorted(different if known else _unknown(written, statement)):
        yield f"privacy.json has facts that a statement has not: {', '.join(map(ascii, other))}"
    if not _ACCOUNTANT.fullmatch(statement.accountant):
        yield f"it names an accountant that there is not: {statement.accountant!a:.80}"
    versions = statement.software
    if (known and versions.keys() != set(SOFTWARE)) or not versions.keys() <= set(SOFTWARE):
        yield f"it names other software than {', '.join(SOFTWARE)}"
    if not all(re.fullmatch(_VERSION, found) for found in versions.values()):
        yield f"it names versions that are none: {', '.join(map(ascii, versions.values())):.80}"
    if form >= _SAME_LABELS:
        generator = NOISE_GENERATOR if statement.mechanism.devices is None else SKELLAM_GENERATOR
        if (statement.protects, statement.noise_generator) != (PROTECTS, generator):
            yield "whom it protects, or what its noise is drawn from, is not what a statement says"
        if statement.released != (RELEASED if statement.canaries is None else (*RELEASED, REGISTRY)):
            yield "what it says is released is not what a run releases"
    if known:
        yield from _not_covered_faults(statement, recipe)


def _unknown(written: Any, facts: Any, section: str = "") -> Iterator[str]:
    """Keys that no form has. The first wrote defaults that are left out today. Events are read by their own fields."""
    if isinstance(facts, Facts) and isinstance(written, dict):
        known = facts.by_key()
        for name, value in written.items():
            if name not in known:
                yield section + name
            elif name == "charged":
                yield from (f"{section}{name}.{key}" for one in value for key in one.keys() - {"event", "count"})
            else:
                yield from _unknown(value, known[name], f"{section}{name}.")
    elif isinstance(facts, tuple) and isinstance(written, list):
        for value, fact in zip(written, facts, strict=True):
            yield from _unknown(value, fact, section)


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


def _readme(release: RunFolder) -> str | None:
    file = release.path / README
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _has_lines(readme: str, lines: str) -> bool:
    """Are these lines there, whole and in this order?"""
    return f"\n{lines}\n" in f"\n{readme}\n"


def _promised(release: RunFolder, statement: Statement) -> str:
    return "\n".join(promise(Card.from_json(release.read_card()), statement))


def _row_faults(release: RunFolder, statement: Statement, readme: str) -> Iterator[str]:
    """Rows of how the model was trained, and the command that checks it, where they say other than a release would."""
    wanted = rows(_described(release, statement, readme))
    found = ((name, line) for line in readme.splitlines() for name in wanted if line.startswith(f"| {name} |"))
    if odd := dict.fromkeys(name for name, line in found if line != wanted[name]):
        yield f"{README} says other of how the model was trained: {', '.join(odd)}"
    signer = _signer(release)
    for number, words in _commands(readme):
        if not (signers := _named(words)) or (signer and signers != {signer}):
            wanted = f"--signer {signer}" if signer else "--signer"
            yield f"line {number} of {README} checks the release without `{wanted}`, so anyone may have signed it"
            return


def _commands(readme: str) -> Iterator[tuple[int, list[str]]]:
    """Lines with a command that checks a release, and their words: prose has no option, and is no code."""
    fence = ""  # the one that has begun; only its like ends it
    for number, line in _joined(readme):
        mark = line.lstrip(" >")[:3]
        if mark in _FENCES and fence in ("", mark):
            fence = "" if fence else mark
        if found := _COMMAND.match(line):
            words = _words(found[2])
            if len(words) < 3 or "--help" in words:
                continue
            if fence or _CODE.match(found[1]) or any(len(word) > 2 and word.startswith("--") for word in words):
                yield number, words


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that ends with a backslash goes on in the next."""
    begun, first = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        first = first if begun else number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield first, begun + line
        begun = ""
    if begun:
        yield first, begun


def _words(command: str) -> list[str]:
    """Those of the first command of a line."""
    reader = shlex.shlex(command, posix=True, punctuation_chars="".join(_END_OF_COMMAND))
    reader.whitespace_split = True
    try:
        words = list(reader)
    except ValueError:  # an apostrophe
        words = command.split()
    return list(takewhile(lambda word: not set(word) <= _END_OF_COMMAND, words))


def _named(words: list[str]) -> set[str]:
    """The signers that a command compares with that of a release."""
    after = {word for option, word in pairwise(words) if option == "--signer"}
    return after | {word.removeprefix("--signer=") for word in words if word.startswith("--signer=")}


def _signer(release: RunFolder) -> str | None:
    file = release.path / SIGNER
    return public_fingerprint(file) if file.is_file() else None


def _written(release: RunFolder, statement: Statement, readme: str) -> str:
    """README.md as a release would have it."""
    tokenizer = load_tokenizer(find_tokenizer(release.path))
    last = [line for line in release.record.read() if line["round"] == statement.rounds_done and "evaluation" in line]
    about = replace(
        _described(release, statement, readme),
        prompt=next(iter(prompts_for(tokenizer, listed=not statement.vocabulary.private)), ""),
        evaluation=last[-1]["evaluation"] if last else None,
        baselines=Baselines.of(release),
    )
    return model_card(about)


def _described(release: RunFolder, statement: Statement, readme: str) -> Described:
    """What README.md tells, but for accuracy. Licence, language and the name of the folder are the owner's choice."""
    front = dict(_FRONT.findall(readme))
    command = next((words for _, words in _commands(readme)), [])
    card, recipe = Card.from_json(release.read_card()), _recipe(release)
    initial = None if statement.start is None or recipe is None else recipe.model.initial
    base = None if initial in (None, bases.NO_BASE) else bases.find(initial)
    return Described(
        name=next((word for word in command[2:] if not word.startswith("-") and word not in _named(command)), ""),
        card=card,
        statement=statement,
        model=card.model or {},
        license=front.get("license", "other"),
        signer=_signer(release) or next(iter(_named(command)), ""),
        language=front.get("language"),
        base_model=None if initial in (None, bases.NO_BASE) else Path(initial).name,
        base=None if base is None else bases.read_base(base),
        onnx=(release.path / ONNX).is_dir(),
    )


def _readme_faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """Figures of README.md that are not those of the facts, whatever version wrote its words."""
    if (readme := _readme(release)) is None:
        return
    private = statement.private_accuracy
    facts = "\n".join([_promised(release, statement), *(how_good_privately(private) if private else ())])
    yield from _figure_faults(README, readme, facts)
    for name, headline in (("ε", epsilon_text(statement.epsilon)), ("δ", plain(statement.delta))):
        wanted = {each.value for each in figures(name, f"{name} = {headline}")}
        if not wanted <= {each.value for each in figures(name, readme)}:
            yield f"{README} does not say {name} = {headline}"
    rounds = (statement.rounds_done, statement.rounds_planned)
    for done, planned, line in planned_rounds(readme):
        if (done, planned) != rounds:
            which = f"line {line} of {README} speaks of {done} of {planned} planned rounds"
            yield f"{which}, and the statement of {rounds[0]} of {rounds[1]}"
            return


def _figure_faults(file: str, text: str, facts: str) -> Iterator[str]:
    """The first ε and the first δ of a text that promise more than those of its facts."""
    for name in ("ε", "δ"):
        known = {each.value for each in figures(name, facts)}
        most = max(known, default=math.inf)
        for value, line in figures(name, text):
            # A larger number promises less, if it speaks of privacy at all: "plus 3 words".
            if value < most and value not in known:
                more = f"is no figure of its facts, and promises more than its largest, {most:g}"
                yield f"line {line} of {file} speaks of {name} {value:g}, which {more}"
                break


def _not_covered(statement: Statement, recipe: Recipe | None = None) -> Iterator[str]:
    """What every statement with these facts and this recipe lists."""
    private = statement.private_accuracy is not None and not statement.exact_before
    listed = not_covered(
        generator=statement.sampling_generator,
        started=statement.start is not None,
        sampler=SAMPLERS[statement.sampling].not_covered,
        federation=statement.federation,
        users_at_once=1 if recipe is None or statement.across_devices else recipe.run.block,
        objective="plain" if recipe is None else recipe.local.objective,
    )
    yield from (text for text in listed if not (private and text == EXACT_ACCURACY))
