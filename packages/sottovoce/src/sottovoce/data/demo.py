"""A synthetic population that writes messages: no real text, any number of users, and structure that can be learned.

People share a grammar (`demo.toml`) and differ in habits: their topics, the choices they prefer, how they greet,
hesitate and end a message. All words come from the grammar, so the vocabulary is public.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from random import Random
from string import Formatter
from typing import TypeVar

from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import tokenise
from sottovoce.files import rename_synced
from sottovoce_evidence.errors import SottoError

Choice = TypeVar("Choice")

GRAMMAR = tomllib.loads((resources.files("sottovoce") / "data" / "demo.toml").read_text(encoding="utf-8"))
SLOTS: dict[str, list[str]] = GRAMMAR["slots"]
TOPICS: dict[str, list[str]] = GRAMMAR["topics"]


class _Person:
    """One user's habits. Looking up a slot draws one of its choices, mostly one that this person prefers."""

    def __init__(self, rng: Random) -> None:
        self.draw = rng.random
        self.loved: dict[str, tuple[str, str]] = {}
        topics = list(TOPICS.values())
        rng.shuffle(topics)
        # Three of four messages are about three favourite subjects.
        self.topics = [topics[0]] * 12 + [topics[1]] * 8 + [topics[2]] * 6 + topics[3:]
        self.greeting, self.filler = self.pick(GRAMMAR["greetings"]), self.pick(GRAMMAR["fillers"])
        self.ending, self.goodbye = self.pick(GRAMMAR["endings"]), self.pick(GRAMMAR["goodbyes"])
        self.stop = self.pick(GRAMMAR["stops"])
        self.greets, self.fills, self.ends, self.leaves = (self.draw() * 0.5 for _ in range(4))
        self.capitals = self.draw() < 0.5

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(self.draw() * len(choices))]

    def __getitem__(self, slot: str) -> str:
        choices = SLOTS[slot]
        if slot not in self.loved:
            self.loved[slot] = (self.pick(choices), self.pick(choices))
        chance = self.draw()
        if chance < 0.75:
            return self.loved[slot][chance > 0.5]
        return self.pick(choices)

    def message(self) -> str:
        answer = self.draw() < 0.15
        parts = [self.pick(GRAMMAR["answers"] if answer else self.pick(self.topics)).format_map(self)]
        if self.draw() < self.fills:
            parts.insert(0, f"{self.filler} ,")
        if self.draw() < self.greets:
            parts.insert(0, f"{self.greeting} ,")
        if not parts[-1].endswith("?"):
            if self.draw() < self.ends and self.ending:
                parts.append(f", {self.ending}")
            parts.append(self.stop)
        if self.draw() < self.leaves:
            parts.append(f"{self.goodbye} {self.stop}")
        text = " ".join(parts).replace(" ,", ",").replace(" .", ".").replace(" !", "!").replace(" ?", "?").strip()
        return text[0].upper() + text[1:] if self.capitals else text


def demo_texts(seed: int, user: int, tokens: tuple[int, int] = (120, 240)) -> list[str]:
    """The messages of one user, with a number of tokens drawn from the range (BOS and EOS counted).

    They depend on the seed and the user's number alone, so a larger population extends a smaller one.
    """
    rng = Random(f"sottovoce demo {seed} {user}")
    person = _Person(rng)
    wanted = rng.randint(*tokens)
    texts: list[str] = []
    while wanted > 0:
        texts.append(person.message())
        wanted -= len(tokenise(texts[-1])) + 2
    return texts


def write_demo(path: str | Path, users: int, seed: int, tokens: tuple[int, int] = (120, 240)) -> None:
    """Write a synthetic population as JSON lines with the fields `user` and `text`."""
    path = Path(path)
    if users < 1:
        raise SottoError(f"users={users} must be at least 1; it is the size of the population")
    if not 1 <= tokens[0] <= tokens[1]:
        raise SottoError(f"tokens={tokens} must be a range such as (120, 240); it is the text of one user")
    if path.suffix != ".jsonl":
        raise SottoError(f"{path} must end in .jsonl, the format of the demo corpus")
    if path.exists():
        raise SottoError(f"{path} exists already and is not overwritten; name a new file")
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for user in range(users):
                name = f"person-{user:07d}"
                for text in demo_texts(seed, user, tokens):
                    file.write(json.dumps({"user": name, "text": text}) + "\n")
        rename_synced(partial, path)
    except OSError as error:
        raise SottoError(f"cannot write {path} ({error.strerror}); check free space and permissions") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def demo_vocabulary() -> Vocabulary:
    """Every word that the grammar can produce, in the order of the alphabet."""
    lists = (choices for choices in GRAMMAR.values() if isinstance(choices, list))
    phrases = (phrase for choices in (*lists, *SLOTS.values(), *TOPICS.values()) for phrase in choices)
    words = {word for phrase in phrases for fixed, *_ in Formatter().parse(phrase) for word in tokenise(fixed)}
    return Vocabulary.from_words(sorted(words))
