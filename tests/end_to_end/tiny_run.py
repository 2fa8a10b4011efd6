"""A run so small that it trains in a second: forty people, a few words, six rounds. And ways to break it off."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import sottovoce
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import store_facts, write_facts
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.recipe import Recipe

WORDS = ["red", "green", "blue", "sky", "tree", "house"]


def make_store(
    folder: Path, seed: int = 0, name: str = "store", users: int = 40, without: str | None = None, ids: str = "u"
) -> Path:
    """A store of people whose ids begin with `ids`."""
    generator = np.random.default_rng(seed)
    corpus = folder / "corpus.jsonl"
    with open(corpus, "w") as file:
        for user in range(users):
            text = " ".join(generator.choice(WORDS, size=12))
            if f"{ids}{user}" != without:
                file.write(json.dumps({"user": f"{ids}{user}", "text": text}) + "\n")
    out = folder / name
    prepare([corpus], out, Vocabulary.from_words(WORDS), Grouping(tokens_per_user=16, test_users=0.1))
    return out


def declare(store: Path, held_out: str) -> Path:
    """Declare held-out users anew, as `prepare --held-out` would have done."""
    write_facts(store, {**store_facts(store), "held_out": held_out})
    return store


def make_recipe(store: Path) -> Recipe:
    return Recipe.from_dict({
        "data": {"store": str(store)},
        "model": {"embedding": 4, "hidden": 5},
        "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
        "privacy": {
            "users": 36, "cohort": 9, "clip_norm": 0.3, "noise_multiplier": 1.2, "delta": 1e-3, "accountant": "rdp",
            "secrets": "seeded",
        },
        "run": {"rounds": 6, "evaluate_every": 0, "checkpoint_every": 4, "block": 4},
    })  # fmt: skip


class StopAfter:
    """Stops a run after a round, the way Ctrl-C does."""

    status = 130

    def __init__(self, rounds: int):
        self.left = rounds

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def crash_after(recipe: Recipe, out: Path, rounds: int) -> None:
    """Leave a run as a crash in a round does, after which no checkpoint comes."""
    played = count(1)

    def crash() -> bool:
        if next(played) == rounds:
            raise RuntimeError("crash")
        return False

    with pytest.raises(RuntimeError, match="crash"):
        sottovoce.train(recipe, out, stop=crash)
