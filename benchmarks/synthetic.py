"""The synthetic population as a store of any size: the grammar of `demo.py`, drawn for many users at once.

    python benchmarks/synthetic.py 763430 --tokens-per-user 400 --test-users 0.01 --out store

To try a recipe at its real size: the same seed gives the same people, and a larger population begins with the smaller
one. Runs on such a store are practices.

A phrase of the grammar is encoded once. A message is then a list of numbers of phrases, and the messages of thousands
of users are drawn and put together by array operations: a hundred times as fast as writing text and reading it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np

from sottovoce.cores import cores
from sottovoce.data.demo import GRAMMAR, SLOTS, TOPICS
from sottovoce.data.prepare import PREPARATION_FILE, PreparationSummary, new_store
from sottovoce.data.rows import BATCH_TOKENS, RecordBatch, SplitWriter
from sottovoce.data.store import DECLARED, FORMAT, VocabularySource, write_facts
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary

SEED = 2018
# People who are drawn together are a record batch: the most people, and the most tokens.
_CHUNK, _CHUNK_TOKENS = 4096, BATCH_TOKENS // 2
_SLOT = re.compile(r"\{(\w+)\}")
_FAVOURITES = (12, 8, 6)  # of 26 messages and one for each other topic, how many are about the first three


@dataclass(frozen=True)
class Population:
    """How many synthetic people write how much. Everybody writes `tokens_per_user` tokens, and not one more.

    Guarantee: what a person writes follows from the seed, the vocabulary, `tokens_per_user` and the person's number
    alone, so a larger population begins with the smaller one.
    """

    users: int
    tokens_per_user: int = 400
    test_users: float = 0.1  # share of all people that is held out; they are not among `users`
    seed: int = SEED

    @property
    def held_out(self) -> int:
        return round(self.users * self.test_users / (1 - self.test_users))


def write_population(
    population: Population, out: str | Path, vocabulary: Vocabulary, source: VocabularySource = DECLARED
) -> PreparationSummary:
    """Write the store of a synthetic population to the new folder `out`. The store says that its people are synthetic.

    A token takes two bytes on disk, or four where the vocabulary is larger than 65,536, and a person 36 more.
    """
    writer = _Writer(_Phrases(vocabulary), population)
    with new_store(Path(out)) as folder:
        train = writer.write(folder / "train.arrow", "train", population.users)
        test = writer.write(folder / "test.arrow", "test", population.held_out)
        save_tokenizer(vocabulary, folder)
        facts = {
            "format": FORMAT,
            "tokens_per_user": population.tokens_per_user,
            "vocabulary_size": vocabulary.size,
            "vocabulary": dict(source),
            "splits": {
                "train": {"users": train.users, "tokens": train.tokens},
                "test": {"users": test.users, "tokens": test.tokens},
            },
            "people": True,
            "practice": True,
            "synthetic": {"users": population.users, "seed": population.seed},
        }
        write_facts(folder, facts)
        summary = _summary(train, test)
        with open(os.open(folder / PREPARATION_FILE, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(summary.to_json(), indent=2) + "\n")
    return summary


@dataclass(frozen=True)
class _Split:
    """What was written of one split."""

    users: int
    tokens: int
    unknown: int


def _summary(train: _Split, test: _Split) -> PreparationSummary:
    users, tokens = train.users + test.users, train.tokens + test.tokens
    return PreparationSummary(
        records=users,
        users_seen=users,
        users_kept=users,
        users_dropped=0,
        users_cut=0,
        tokens_seen=tokens,
        tokens_kept=tokens,
        tokens_cut=0,
        unknown_rate=(train.unknown + test.unknown) / tokens,
        train_users=train.users,
        train_tokens=train.tokens,
        test_users=test.users,
        test_tokens=test.tokens,
    )


class _Phrases:
    """The grammar in numbers: all phrases one after another, and which phrases a message is made of.

    Phrase 0 is empty. A slot of a template is a negative number.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._bos, self._eos = (vocabulary.specials.bos,), (vocabulary.specials.eos,)
        slots = list(SLOTS)
        self.slots = _Lists([[self._number(choice) for choice in SLOTS[slot]] for slot in slots])
        answers = GRAMMAR["answers"]
        topics = [*TOPICS.values(), answers]
        self.topics = _Lists([list(range(len(topic))) for topic in topics])
        self.first_template = np.cumsum([0, *map(len, topics)])
        templates = [self._parts(template, slots) for topic in topics for template in topic]
        self.templates = _padded(templates)
        self.asks = np.array([template.endswith("?") for topic in topics for template in topic])
        stops = GRAMMAR["stops"]
        self.openings = np.array([self._opening(text) for text in ("", *GRAMMAR["greetings"])])
        self.fillers = np.array([self._number(f"{text} ,") for text in GRAMMAR["fillers"]])
        self.endings = np.array([self._number(f", {text}") if text else 0 for text in GRAMMAR["endings"]])
        self.stops = np.array([self._number(stop) for stop in stops])
        closings = [[self._closing(f"{goodbye} {stop}") for stop in stops] for goodbye in GRAMMAR["goodbyes"]]
        self.closings, self.end = np.array(closings), self._closing("")
        self.length = np.array([len(phrase) for phrase in self._numbers])
        self.start = np.cumsum(self.length) - self.length
        self.ids = np.array([token for phrase in self._numbers for token in phrase], np.int32)

    def _number(self, text: str, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> int:
        ids = tuple(self.vocabulary.encode_measured(text)[1:-1])
        return self._numbers.setdefault((*before, *ids, *after), len(self._numbers))

    def _opening(self, greeting: str) -> int:
        return self._number(f"{greeting} ," if greeting else "", before=self._bos)

    def _closing(self, goodbye: str) -> int:
        return self._number(goodbye, after=self._eos)

    def _parts(self, template: str, slots: list[str]) -> list[int]:
        pieces = _SLOT.split(template)  # text and names of slots by turns
        parts = [~slots.index(piece) if place % 2 else self._number(piece) for place, piece in enumerate(pieces)]
        return [part for part in parts if part]

    def joined(self, phrases: np.ndarray) -> np.ndarray:
        """The ids of phrases, one after another."""
        lengths = self.length[phrases]
        ends = np.cumsum(lengths)
        return self.ids[np.arange(ends[-1]) + np.repeat(self.start[phrases] - ends + lengths, lengths)]


class _Lists:
    """Lists of numbers, to draw from many of them at once."""

    def __init__(self, lists: list[list[int]]) -> None:
        self.counts = np.array([len(each) for each in lists], np.float32)
        self._firsts = np.cumsum([0, *map(len, lists)])[:-1]
        self._values = np.array([value for each in lists for value in each])

    def pick(self, which: np.ndarray, chances: np.ndarray) -> np.ndarray:
        """From list `which`, the value at a chance in [0, 1)."""
        return self._values[self._firsts[which] + (chances * self.counts[which]).astype(np.int64)]


def _padded(rows: list[list[int]]) -> np.ndarray:
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded


class _People:
    """Some people and their habits, as in `demo._Person`."""

    def __init__(self, phrases: _Phrases, count: int, rng: np.random.Generator) -> None:
        self._phrases, self._count, self._rng = phrases, count, rng
        self._topics = np.argsort(self._draw(len(TOPICS)), axis=1, kind="stable")
        slots = np.arange(len(SLOTS))[:, None]
        self._loved = phrases.slots.pick(slots, self._draw(len(SLOTS), 2))
        self._greeting = 1 + self._habit(len(phrases.openings) - 1)
        self._filler = phrases.fillers[self._habit(len(phrases.fillers))]
        self._ending = phrases.endings[self._habit(len(phrases.endings))]
        stop = self._habit(len(phrases.stops))
        self._stop, self._goodbye = phrases.stops[stop], phrases.closings[self._habit(len(phrases.closings)), stop]
        self._greets, self._fills, self._ends, self._leaves = self._draw(4).T / 2
        others = np.arange(len(_FAVOURITES), len(TOPICS))
        self._ranks = np.concatenate([np.repeat(np.arange(len(_FAVOURITES)), _FAVOURITES), others])

    def _draw(self, *shape: int) -> np.ndarray:
        """For each person, chances in [0, 1)."""
        return self._rng.random((self._count, *shape), np.float32)

    def _habit(self, choices: int) -> np.ndarray:
        return (self._draw() * choices).astype(np.int64)

    def messages(self, count: int) -> np.ndarray:
        """`count` messages of each person, as numbers of phrases [people, count, phrases of a message]."""
        phrases, everybody = self._phrases, np.arange(self._count)[:, None]
        rank = self._ranks[(self._draw(count) * len(self._ranks)).astype(np.int64)]
        topic = np.where(self._draw(count) < 0.15, len(TOPICS), self._topics[everybody, rank])
        template = phrases.first_template[topic] + phrases.topics.pick(topic, self._draw(count))
        body = phrases.templates[template]
        person, message, part = np.nonzero(body < 0)
        body[person, message, part] = self._fill(person, ~body[person, message, part])
        asks, yes = phrases.asks[template], self._happens
        opening = phrases.openings[np.where(yes(self._greets, count), self._greeting[:, None], 0)]
        filler = np.where(yes(self._fills, count), self._filler[:, None], 0)
        ending = np.where(yes(self._ends, count) & ~asks, self._ending[:, None], 0)
        stop = np.where(asks, 0, self._stop[:, None])
        closing = np.where(yes(self._leaves, count), self._goodbye[:, None], phrases.end)
        return np.concatenate(
            [np.stack([opening, filler], axis=2), body, np.stack([ending, stop, closing], axis=2)], axis=2
        )

    def _happens(self, chance: np.ndarray, count: int) -> np.ndarray:
        return self._draw(count) < chance[:, None]

    def _fill(self, person: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Mostly what a person prefers; one time in four, any choice of the slot."""
        chance = self._rng.random(len(person), np.float32)
        loved = self._loved[person, slot, (chance > 0.5).astype(np.int64)]
        return np.where(chance < 0.75, loved, self._phrases.slots.pick(slot, np.maximum(chance * 4 - 3, 0)))


@dataclass(frozen=True)
class _Writer:
    phrases: _Phrases
    population: Population

    @property
    def _at_once(self) -> int:
        return min(_CHUNK, max(_CHUNK_TOKENS // self.population.tokens_per_user, 1))

    def write(self, path: Path, split: str, users: int) -> _Split:
        unknown = 0
        firsts = range(0, users, self._at_once)
        with SplitWriter(path, self.phrases.vocabulary.size) as writer:
            for first, (tokens, letters) in zip(firsts, _in_order(partial(self._drawn, split), firsts), strict=True):
                count = min(self._at_once, users - first)
                width = self.population.tokens_per_user
                names = "".join(_name(split, number) for number in range(first, first + count))
                ends = letters.offsets[: count + 1]
                kept = RecordBatch(letters.values[: ends[-1]], ends)
                dense = RecordBatch(tokens[:count].ravel(), np.arange(count + 1) * width, kept)
                writer.add_block(np.frombuffer(bytes.fromhex(names), np.uint8).reshape(count, 16), dense)
                unknown += int(ends[-1])
        return _Split(users, users * self.population.tokens_per_user, unknown)

    def _drawn(self, split: str, first: int) -> tuple[np.ndarray, RecordBatch]:
        """The tokens of a chunk of people, always all of it, and the letters of their unknown words."""
        population, width = self.population, self.population.tokens_per_user
        people = _People(self.phrases, self._at_once, _generator(f"{split} {population.seed} {width} {first}"))
        messages = people.messages(width // 12 + 2)
        while (lengths := self.phrases.length[messages].sum(axis=(1, 2))).min() < width:
            messages = np.concatenate([messages, people.messages(width // 48 + 1)], axis=1)
        starts = np.cumsum(lengths) - lengths
        joined = self.phrases.joined(messages[messages > 0])
        measured = joined[starts[:, None] + np.arange(width)]
        tokens, letters = self.phrases.vocabulary.separate(measured)
        counts = np.sum(measured >= self.phrases.vocabulary.size, axis=1)
        return tokens, RecordBatch(letters, np.cumsum([0, *counts]))


def _in_order(
    draw: Callable[[int], tuple[np.ndarray, RecordBatch]], firsts: range
) -> Iterator[tuple[np.ndarray, RecordBatch]]:
    """Chunks in order, drawn by as many threads as there are cores; few wait at a time."""
    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        coming = iter(firsts)
        waiting = [pool.submit(draw, first) for first in islice(coming, threads + 1)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(draw, first) for first in islice(coming, 1)]


def _generator(of: str) -> np.random.Generator:
    key = int.from_bytes(blake2b(f"sottovoce synthetic {of}".encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def _name(split: str, number: int) -> str:
    return blake2b(f"{split} {number}".encode(), digest_size=16).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("users", type=int, help="people to train on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens-per-user", type=int, default=400)
    parser.add_argument("--test-users", type=float, default=0.1, help="share of all people that is held out")
    parser.add_argument("--vocabulary-size", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args()
    population = Population(asked.users, asked.tokens_per_user, asked.test_users, asked.seed)
    summary = write_population(population, asked.out, Vocabulary.public(asked.vocabulary_size))
    print(json.dumps(summary.to_json()))


if __name__ == "__main__":
    main()
