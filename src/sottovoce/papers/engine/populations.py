"""Whom a reproduction trains on, and how many it says there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sottovoce.commands.stores import prepare_demo
from sottovoce.data.demo import demo_vocabulary
from sottovoce.data.store import STORE_FILE, Store, write_in_arrays
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.files import made_aside
from sottovoce.papers.engine.partitions import NODES, Splits, benchmark, nobodys, pooled
from sottovoce.papers.engine.trial import Trial


@dataclass(frozen=True)
class People:
    """Whom to train on: stores of the same users with the paper's dictionary, twice and three times it; and others.

    Without stores, synthetic users are made in `folder`. `declared` is the population that private trials declare, and
    `node_users` how many people's text is on a single node.
    """

    folder: Path
    stores: tuple[Path, ...] = ()
    other: Path | None = None
    public: Path | None = None
    declared: int = 0
    synthetic: int = 0
    synthetic_tokens: int = 160
    node_users: int = 0

    def store(self, trial: Trial) -> Path:
        if trial.on == "node":
            return self._made(f"node-of-{self.node_users}", lambda: pooled(self._base, 1, self.node_users))
        if trial.on == "ptb":
            if not self.stores:
                return self._made(f"nodes-{NODES}", lambda: pooled(self._base, NODES, self.synthetic))
            if (text := self.other) is None:
                raise SottoError("the benchmark needs its text: name the folder of ptb.train.txt with --other")
            return self._made("ptb", lambda: benchmark(text))
        if not self.stores:
            return self._synthetic(trial.words, 2020 if trial.on == "public" else 2019 if self._others(trial) else 2018)
        if trial.on == "public":
            if self.public is None:
                raise SottoError("pre-training needs public text: name its store with --public")
            return self.public
        if self._others(trial):
            if self.other is None:
                raise SottoError("training on another corpus needs one: name its store with --other")
            return self.other
        if trial.words > len(self.stores):
            raise SottoError(
                f"larger dictionaries need stores of their own: give three folders with --users, prepared from the "
                f"same corpus with 1, 2 and 3 times the words; {len(self.stores)} given"
            )
        return self.stores[trial.words - 1]

    @property
    def _base(self) -> Path:
        return self.store(Trial("base"))

    def public_for(self, trial: Trial) -> Path | None:
        """The public text that goes to devices with the model, or that the server reads; None where neither is."""
        return self.store(Trial("public", on="public")) if "public" in trial.needs else None

    def held_out_public(self) -> Store | None:
        """Public text that nothing is trained on, if any was named."""
        if self.stores and self.public is None:
            return None
        return Store.open(self.store(Trial("public", on="public")), "test")

    def users(self, trial: Trial) -> int:
        """How many there are; how many are declared, where those are promised something."""
        if not trial.is_guarded:
            return Store.open(self.store(trial)).users
        if self.stores and not self.declared:
            raise SottoError(
                "a private model declares its population: give --declared-users, a round number known without counting "
                "the users (the exact one is private)"
            )
        return self.declared or self.synthetic

    def has(self, trial: Trial) -> bool:
        """Is there all that it takes to run this?"""
        return not self.stores or (
            trial.words <= len(self.stores)
            and (self.other is not None or not (self._others(trial) or trial.on == "ptb"))
            and (self.public is not None or not (trial.on == "public" or "public" in trial.needs))
            and (self.declared > 0 or not trial.is_guarded)
        )

    @staticmethod
    def _others(trial: Trial) -> bool:
        return trial.on == "other" or (trial.elsewhere and trial.on != "public")

    def _synthetic(self, words: int, seed: int) -> Path:
        folder = self.folder / f"words-x{words}-seed{seed}"
        if not folder.exists():
            self.folder.mkdir(exist_ok=True)
            vocabulary = _padded(demo_vocabulary(), words)
            prepare_demo(folder, self.synthetic, seed=seed, vocabulary=vocabulary, tokens=self.synthetic_tokens)
        if seed != 2020:
            return folder
        return self._made(f"{folder.name}-public", lambda: nobodys(folder))

    def _made(self, name: str, make: Callable[[], Splits]) -> Path:
        """A store that is made when it is first asked for, of text to train on and text held out."""
        folder = self.folder / name
        if not (folder / STORE_FILE).exists():
            self.folder.mkdir(exist_ok=True)
            with made_aside(folder) as draft:
                write_in_arrays(draft, *make())
        return folder


def _padded(vocabulary: Vocabulary, multiple: int) -> Vocabulary:
    """So many times the words; those added are said by nobody."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    unused = (f"zq{a}{b}{c}" for a in letters for b in letters for c in letters)
    wanted = (multiple - 1) * vocabulary.size
    return Vocabulary.from_words([*vocabulary.words, *(word for word, _ in zip(unused, range(wanted), strict=False))])
