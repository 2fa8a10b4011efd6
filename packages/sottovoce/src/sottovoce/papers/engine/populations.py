"""The stores that trials read, and how many users each declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sottovoce.commands.stores import prepare_demo
from sottovoce.data.demo import demo_vocabulary
from sottovoce.data.store import STORE_FILE, Store, write_store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.files import made_aside
from sottovoce.papers.engine.partitions import NODES, Splits, as_plain_text, penn_treebank, pool_users
from sottovoce.papers.engine.trial import PUBLIC, Size, Trial
from sottovoce_evidence.errors import SottoError

_SEEDS = {"users": 2018, "other": 2019, "public": 2020}  # of synthetic text


@dataclass(frozen=True)
class Stores:
    """The stores given on the command line. Without users, all text is synthetic.

    Args:
        users: Stores of the same users with the paper's dictionary, twice it and three times it.
        other: Another corpus with the same words, or the folder of the Penn Treebank's text.
        public: Public text with the same words.
        declared_users: The population that private trials declare.
    """

    users: tuple[Path, ...] = ()
    other: Path | None = None
    public: Path | None = None
    declared_users: int = 0


@dataclass(frozen=True)
class Populations:
    """The store of each trial. Synthetic and partitioned stores are made in `folder` when they are first needed."""

    folder: Path
    given: Stores
    size: Size

    @property
    def is_synthetic(self) -> bool:
        return not self.given.users

    def store(self, trial: Trial) -> Path:
        """The store that a trial is trained on."""
        kind = trial.corpus.trained_on
        if kind == "node":
            users = self.size.node_users
            return self._made(f"node-of-{users}", lambda: pool_users(self.base, 1, users))
        if kind == "ptb":
            return self._penn_treebank()
        if self.is_synthetic:
            return self._synthetic(trial.words, _SEEDS[kind])
        if kind == "public":
            if self.given.public is None:
                raise SottoError("pre-training needs public text: name its store with --public")
            return self.given.public
        if kind == "other":
            if self.given.other is None:
                raise SottoError("training on another corpus needs one: name its store with --other")
            return self.given.other
        if trial.words > len(self.given.users):
            raise SottoError(
                f"larger dictionaries need stores of their own: give three folders with --users, prepared from the "
                f"same corpus with 1, 2 and 3 times the words; {len(self.given.users)} given"
            )
        return self.given.users[trial.words - 1]

    @property
    def base(self) -> Path:
        """The store of the users that all trials are compared on."""
        return self.store(Trial("base"))

    def public_text(self, trial: Trial) -> Path | None:
        """The public text that devices or the server read in a trial; None where they read none."""
        return self.store(Trial("public", corpus=PUBLIC)) if trial.corpus.with_public_text else None

    def held_out_public(self) -> Store | None:
        """The public text to evaluate on; None where no public text was given."""
        if not self.is_synthetic and self.given.public is None:
            return None
        public = Store.open(self.store(Trial("public", corpus=PUBLIC)), "test")
        return public.head(self.size.evaluate_users)

    def users(self, trial: Trial) -> int:
        """The number of users of a trial; a protected trial has the declared number."""
        if not trial.is_protected:
            return Store.open(self.store(trial)).users
        if not self.is_synthetic and not self.given.declared_users:
            raise SottoError(
                "a private model declares its population: give --declared-users, a round number known without counting "
                "the users (the exact one is private)"
            )
        return self.given.declared_users or self.size.synthetic_users

    def can_run(self, trial: Trial) -> bool:
        """Are all stores given that a trial needs?"""
        given, corpus = self.given, trial.corpus
        return self.is_synthetic or (
            trial.words <= len(given.users)
            and (given.other is not None or corpus.trained_on not in ("other", "ptb"))
            and (given.public is not None or not (corpus.trained_on == "public" or corpus.with_public_text))
            and (given.declared_users > 0 or not trial.is_protected)
        )

    def _penn_treebank(self) -> Path:
        if self.is_synthetic:
            return self._made(f"nodes-{NODES}", lambda: pool_users(self.base, NODES, self.size.synthetic_users))
        if (text := self.given.other) is None:
            raise SottoError("the benchmark needs its text: name the folder of ptb.train.txt with --other")
        return self._made("ptb", lambda: penn_treebank(text))

    def _synthetic(self, words: int, seed: int) -> Path:
        folder = self.folder / f"words-x{words}-seed{seed}"
        if not (folder / STORE_FILE).exists():
            self.folder.mkdir(exist_ok=True)
            vocabulary = _enlarged(demo_vocabulary(), words)
            tokens = self.size.synthetic_tokens
            prepare_demo(folder, self.size.synthetic_users, seed=seed, vocabulary=vocabulary, tokens=tokens)
        if seed != _SEEDS["public"]:
            return folder
        return self._made(f"{folder.name}-public", lambda: as_plain_text(folder))

    def _made(self, name: str, make: Callable[[], Splits]) -> Path:
        folder = self.folder / name
        if not (folder / STORE_FILE).exists():
            self.folder.mkdir(exist_ok=True)
            with made_aside(folder) as draft:
                write_store(draft, *make())
        return folder


def _enlarged(vocabulary: Vocabulary, multiple: int) -> Vocabulary:
    """A vocabulary of `multiple` times the words; no text has the words that are added."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    unused = (f"zq{a}{b}{c}" for a in letters for b in letters for c in letters)
    wanted = (multiple - 1) * vocabulary.size
    return Vocabulary.from_words([*vocabulary.words, *(word for word, _ in zip(unused, range(wanted), strict=False))])
