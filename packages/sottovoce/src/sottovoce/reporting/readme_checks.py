"""Whether README.md of a release says what its facts say, and which of its lines are the owner's own."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path

from sottovoce.data.prompts import prompts_for
from sottovoce.data.tokenizer_files import find_tokenizer, load_tokenizer
from sottovoce.reporting.model_card import Described, how_good_privately, model_card, promise, rows
from sottovoce.reporting.readme_figures import figures, planned_rounds, speaks_of_privacy
from sottovoce.reporting.statement import LOUD, Statement
from sottovoce.reporting.statement_text import epsilon_text, plain
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce.runs.folder import ONNX, README, RunFolder
from sottovoce_evidence import bases
from sottovoce_evidence.errors import count_of
from sottovoce_evidence.evaluation import last_evaluation
from sottovoce_evidence.files import read_plain
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.signature import SIGNER, public_fingerprint

_FRONT = re.compile(r'^(license|language): "([\w.+-]{1,64})"$', re.MULTILINE | re.ASCII)
# A line that begins with the command, after marks of a list, a quotation, a prompt or code.
_COMMAND = re.compile(r"([\s>$`*+-]{0,9})(sotto[ \t]{1,9}verify\b[^`]{0,999})")
_CODE, _FENCES, _END_OF_COMMAND = re.compile(r" {4}|\t|.*[$`]"), ("```", "~~~"), frozenset(";&|")
_MOST_SHOWN = 20  # lines of a README's own


@dataclass(frozen=True)
class Readme:
    """The README of a release, and what it should say."""

    text: str
    release: RunFolder
    statement: Statement
    recipe: Recipe | None

    @classmethod
    def of(cls, release: RunFolder, statement: Statement, recipe: Recipe | None) -> Readme | None:
        file = release.path / README
        return cls(read_plain(file).decode(), release, statement, recipe) if file.is_file() else None

    def faults(self) -> Iterator[str]:
        """Where it says other than the facts."""
        yield from self._promise_faults()
        yield from self._row_faults()
        yield from self._command_faults()
        private = self.statement.private_accuracy
        facts = "\n".join([self._promised, *(how_good_privately(private) if private else ())])
        yield from figure_faults(README, self.text, facts)
        headlines = (("ε", epsilon_text(self.statement.epsilon)), ("δ", plain(self.statement.delta)))
        for name, headline in headlines:
            wanted = {each.value for each in figures(name, f"{name} = {headline}")}
            if not wanted <= {each.value for each in figures(name, self.text)}:
                yield f"{README} does not say {name} = {headline}"
        rounds = (self.statement.rounds_done, self.statement.rounds_planned)
        for done, planned, line in planned_rounds(self.text):
            if (done, planned) != rounds:
                which = f"line {line} of {README} speaks of {done} of {planned} planned rounds"
                yield f"{which}, and the statement of {rounds[0]} of {rounds[1]}"
                return

    def notes(self) -> Iterator[str]:
        """Lines that a release would not have written, those on privacy with a warning; and how many are missing."""
        said, wanted = (Counter(filter(None, text.splitlines())) for text in (self.text, self._written()))
        own = list((said - wanted).elements())
        for line in own[:_MOST_SHOWN]:
            loud = f"{LOUD}: " * speaks_of_privacy(line)
            yield f"{loud}nothing here checks this line of {README}, which is the owner's own: {line[:200]!r}"
        if more := own[_MOST_SHOWN:]:
            yield f"{LOUD}: {README} has {count_of(len(more), 'more line')} of the owner's own; read them"
        if lacks := (wanted - said).total():
            yield f"{README} lacks {count_of(lacks, 'line')} that a release has"

    @cached_property
    def _promised(self) -> str:
        return "\n".join(promise(self._card, self.statement))

    @cached_property
    def _card(self) -> Card:
        return Card.from_json(self.release.read_card())

    @cached_property
    def _commands(self) -> list[tuple[int, list[str]]]:
        return list(commands(self.text))

    @property
    def _signer(self) -> str | None:
        file = self.release.path / SIGNER
        return public_fingerprint(file) if file.is_file() else None

    def _has_lines(self, lines: str) -> bool:
        """Are these lines there, whole and in this order?"""
        return f"\n{lines}\n" in f"\n{self.text}\n"

    def _promise_faults(self) -> Iterator[str]:
        if not self._has_lines(self._promised):
            said = set(self.text.splitlines())
            lost = [f"it lacks the line {line[:80]!r}" for line in self._promised.splitlines() if line not in said]
            yield f"{README} promises other than the statement: {(lost or ['its lines are in another order'])[0]}"
        private = self.statement.private_accuracy
        if private is not None and not self._has_lines("\n".join(how_good_privately(private))):
            yield f"{README} says other of how good the model is than the private accuracy"

    def _row_faults(self) -> Iterator[str]:
        wanted = rows(self._described())
        found = ((name, line) for line in self.text.splitlines() for name in wanted if line.startswith(f"| {name} |"))
        if odd := dict.fromkeys(name for name, line in found if line != wanted[name]):
            yield f"{README} says other of how the model was trained: {', '.join(odd)}"

    def _command_faults(self) -> Iterator[str]:
        signer = self._signer
        for number, words in self._commands:
            if not (signers := signers_of(words)) or (signer and signers != {signer}):
                wanted = f"--signer {signer}" if signer else "--signer"
                yield f"line {number} of {README} checks the release without `{wanted}`, so anyone may have signed it"
                return

    def _written(self) -> str:
        """README.md as a release would have it."""
        release, statement = self.release, self.statement
        tokenizer, done = load_tokenizer(find_tokenizer(release.path)), statement.rounds_done
        measured, last = last_evaluation(release.record.read())
        about = replace(
            self._described(),
            prompt=next(iter(prompts_for(tokenizer, listed=not statement.vocabulary.private)), ""),
            evaluation=last if measured == done else None,
            baselines=Baselines.of(release),
        )
        return model_card(about)

    def _described(self) -> Described:
        """What it tells, but for accuracy. Licence, language and the name of the folder are the owner's choice."""
        front = dict(_FRONT.findall(self.text))
        command = next((words for _, words in self._commands), [])
        initial = None if self.statement.start is None or self.recipe is None else self.recipe.model.initial
        base = None if initial in (None, bases.NO_BASE) else bases.find(initial)
        return Described(
            name=next(
                (word for word in command[2:] if not word.startswith("-") and word not in signers_of(command)), ""
            ),
            card=self._card,
            statement=self.statement,
            model=self._card.model or {},
            license=front.get("license", "other"),
            signer=self._signer or next(iter(signers_of(command)), ""),
            language=front.get("language"),
            base_model=None if initial in (None, bases.NO_BASE) else Path(initial).name,
            base=None if base is None else bases.read_base(base),
            onnx=(self.release.path / ONNX).is_dir(),
        )


def figure_faults(file: str, text: str, facts: str) -> Iterator[str]:
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


def commands(readme: str) -> Iterator[tuple[int, list[str]]]:
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


def signers_of(words: list[str]) -> set[str]:
    """The signers that a command compares with that of a release."""
    after = {word for option, word in pairwise(words) if option == "--signer"}
    return after | {word.removeprefix("--signer=") for word in words if word.startswith("--signer=")}
