"""What the tests of the command line share: thirty people, a few words, a tiny recipe, and how a command is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from sottovoce.cli.main import main
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.files import sealed, sha256_of

WORDS = [
    "boil",
    "brew",
    "cold",
    "cup",
    "hot",
    "kettle",
    "leaf",
    "milk",
    "morning",
    "of",
    "please",
    "pour",
    "steam",
    "sugar",
    "tea",
    "the",
    "warm",
    "water",
]
PEOPLE = 30
MODEL_FILES = ("model/weights.safetensors", "model/vocabulary.txt", "record.jsonl", "recipe.toml")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: its exit status and its two streams."""

    status: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object on standard output, read strictly: no NaN, no second value, no other line."""
        assert self.status == 0, self.err
        assert self.out.count("\n") == 1, self.out
        value = parse_json(self.out)
        assert isinstance(value, dict)
        return value


Sotto = Callable[..., Outcome]
Refused = Callable[..., str]  # the line of the error


def parse_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def files_of(folder: Path) -> dict[str, bytes | None]:
    """Everything under a folder, hidden files too: the bytes of files, None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def results_of(run: Path) -> dict[str, bytes]:
    """What two runs must share to the bit when they are the same run."""
    return {name: (run / name).read_bytes() for name in MODEL_FILES}


def write_corpus(path: Path, people: int = PEOPLE, seed: int = 5) -> Path:
    """Some texts a person, in the order of a chat: everybody's first text, then everybody's second, ..."""
    generator = Random(seed)
    rows = [
        {"user": f"person {number}", "text": " ".join(generator.choices(WORDS, k=6)) + "."}
        for _ in range(4)
        for number in range(people)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def call(*arguments: object) -> int:
    """Run a command in this process; its exit status."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


@dataclass(frozen=True)
class World:
    folder: Path

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus.jsonl"

    @property
    def words(self) -> Path:
        return self.folder / "words.txt"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def recipe(self) -> Path:
        return self.folder / "tea.toml"

    @property
    def run(self) -> Path:
        """A run of the recipe that finished. Copy it before you change it."""
        return self.folder / "finished"

    def prepare(self, out: Path, *more: object) -> tuple[object, ...]:
        return ("prepare", self.corpus, "--out", out, "--vocabulary", self.words, "--tokens-per-user", 40, *more)


RECIPE = """
[data]
store = "{store}"

[model]
embedding = 4
hidden = 5

[local]
batch = 2
unroll = 5
learning_rate = 0.5

[privacy]
users = 20
cohort = 6
clip_norm = 1.0
noise_multiplier = 1.0
delta = 0.01
accountant = "rdp"
secrets = "seeded"

[run]
rounds = 4
seed = 3
evaluate_every = 2
checkpoint_every = 2
block = 4
"""


def newest(run: Path) -> Path:
    return sorted((run / "checkpoints").glob("*.safetensors"))[-1]


def write_checksums(run: Path) -> None:
    """As whoever edits on purpose can: all hashes and checksums fit again."""
    folder = RunFolder(run)
    statement, card = (json.loads(path.read_text()) for path in (folder.statement_file, folder.card_file))
    statement["files"] = {name: sha256_of(folder.model / name) for name in statement["files"]}
    folder.write_json(folder.statement_file, sealed(statement))
    folder.write_json(folder.card_file, sealed(card))
