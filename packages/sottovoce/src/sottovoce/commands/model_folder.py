"""A folder that holds a model: of a run, a release or a base, or in the layout of Hugging Face. One way to open it.

Whoever takes a model's folder from a user calls `ModelFolder.open`, and asks it instead of looking into the folder:
`train --from`, `evaluate`, `export`, `keyboard`, `compare`, `audit`. No jax is imported until weights become a model,
so that pages and figures are made without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.data.subwords import TOKENIZER
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import find_tokenizer, load_tokenizer
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.card import Card
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import HUGGING_FACE, RECIPE, RunFolder, kind_of, load_arrays
from sottovoce_evidence import bases
from sottovoce_evidence.bases import PUBLIC, Base
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import sha256_of
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import Statement

if TYPE_CHECKING:
    from sottovoce.data.store import Store
    from sottovoce.evaluation.prediction import Evaluation
    from sottovoce.evaluation.suggestions import Suggestion
    from sottovoce.models.contract import LanguageModel

_NO_MODEL = {  # by kind, why it holds no model, and what to do
    "file": "it is a file; give the folder that it lies in",
    "empty": "the folder is empty; `sotto train` makes a run",
    "store": "it is a store, on which `sotto train` makes a run",
    "other": "it is no run, release or base, nor a folder of Hugging Face; check the path",
}


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """A model, its tokenizer, and what its folder says of it.

        folder = ModelFolder.open("runs/first")
        folder.suggest("see you")  # the likeliest next words
        folder.model, folder.tokenizer, folder.weights  # as trained, and by name
        folder.card, folder.statement, folder.recipe  # None, None and the model alone where there is none

    Each is read when it is asked for, and once.

    Attributes:
        path: the folder.
        kind: "run", "release", "base" or "hugging_face".
        own: a model of your own to fill with the weights, where the run had one.
    """

    path: Path
    kind: str
    own: LanguageModel | None = None

    @staticmethod
    def open(path: str | Path, *, model: LanguageModel | None = None) -> ModelFolder:
        """Open the folder of a run, a release, a base or Hugging Face, or the base in the package of this name.

        The files must be those that its card names. Whether the folder is the owner's, `sotto verify` tells.

        Args:
            path: the folder, or a name such as "english". The folder of a run or a release of that name comes first.
            model: a model of your own to fill, where the run had one.
        """
        folder = Path(path)
        kind = kind_of(folder)
        if kind not in ("run", "release") and (shipped := bases.find(str(path))):
            folder, kind = shipped, "base"
        if kind == "missing":
            known = ", ".join(bases.shipped())
            raise SottoError(
                f"{str(path)!r} holds no model: there is no such folder; name a run, a release, a folder of Hugging "
                f"Face or a base in the package: {known}"
            )
        if kind in _NO_MODEL:
            raise SottoError(f"{str(path)!r} holds no model: {_NO_MODEL[kind]}")
        if kind == "release" and not (folder / RECIPE).is_file():
            missing = f"{str(path)!r} is a release without {RECIPE}, which names the model's sizes"
            raise SottoError(f"{missing}: give the folder of its run, or release it again")
        return ModelFolder(folder, kind, model)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}>"

    @cached_property
    def name(self) -> str:
        return self.base.name if self.base else self.path.resolve().name

    @property
    def title(self) -> str:
        """What it is and what it is called: "run first", "base english"."""
        return f"{'folder' if self.kind == HUGGING_FACE else self.kind} {self.name}"

    @cached_property
    def run(self) -> RunFolder | None:
        """The files of a run or a release."""
        if self.kind == "release":
            return RunFolder.of_release(self.path)
        return RunFolder(self.path) if self.kind == "run" else None

    @cached_property
    def base(self) -> Base | None:
        """The card of a base, whose files must be those that it names."""
        if self.kind != "base":
            return None
        card = bases.read_base(self.path)
        for name, sha256 in card.files.items():
            file = self.path / name
            if file.is_file() and sha256_of(file) != sha256:
                raise DamagedRun(f"{file} is not the file that {bases.CARD} names: it was changed; put it back")
        return card

    @cached_property
    def card(self) -> Card | Base | None:
        """What the folder says of its model; None for one of Hugging Face, which says nothing that is of use here."""
        return Card.from_json(self.run.read_card()) if self.run else self.base

    @cached_property
    def statement(self) -> Statement | None:
        """What is promised to the people it was trained on; None for a base and a folder of Hugging Face."""
        return read_statement(self.run) if self.run else None

    @property
    def is_public(self) -> bool:
        """Does its card say that nothing of people is in it?"""
        private = self.statement is not None and self.statement.private
        return not private and self.card is not None and self.card.trained_on == PUBLIC

    @property
    def has_guarantee(self) -> bool:
        """Do the people it was trained on have a guarantee? Who knows the seed of a seeded run can undo its noise."""
        found = self.statement
        return found is not None and found.has_guarantee and not found.is_seeded

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of a run or a release; of others, their model with the usual settings."""
        if self.run:
            return Recipe.of(self.run)
        if self.base:
            return Recipe().replace(model={"kind": self.base.kind, **self.base.model})
        from sottovoce.models import registry
        from sottovoce.models.hugging_face import read_config

        described = read_config(self.path)
        context = min(registry.defaults(described.kind)["context"], described.longest - 1)
        return Recipe().replace(model={"kind": described.kind, **described.settings, "context": context})

    @cached_property
    def tokenizer_file(self) -> Path:
        if self.run:
            return self.run.tokenizer_file()
        assert self.kind == HUGGING_FACE or self.base  # whose files are those of its card
        return find_tokenizer(self.path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if self.kind == HUGGING_FACE and not self.tokenizer_file.is_file():
            raise SottoError(
                f"{self.path} has no {TOKENIZER}: its tokens are not known; put the one of that model there"
            )
        return load_tokenizer(self.tokenizer_file)

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The arrays of the model by name. Those of a base are float16 on disk and float32 here."""
        if self.run:
            return self.run.load_weights()
        if self.base:
            return base_weights(self.path)
        from sottovoce.build.assembly import build_model
        from sottovoce.models.hugging_face import load_rows

        return load_rows(self.path, build_model(self.recipe, self.tokenizer.size), self.tokenizer)

    @cached_property
    def digest(self) -> str:
        """A hash of the weights."""
        return digest(self.weights)

    @cached_property
    def model(self) -> LanguageModel:
        """The model as it was trained, with its adapters if it has any."""
        from sottovoce.build.assembly import build_model, load_model

        like = self.own if self.own is not None else build_model(self.recipe, self.tokenizer.size)
        return load_model(like, self.weights)

    @cached_property
    def merged(self) -> LanguageModel:
        """The model to use: its adapters are merged into the matrices that they adapt."""
        from sottovoce.models.lora import merge

        return merge(self.model)

    def suggest(self, text: str, count: int = 3, typed: str = "", context: str | None = None) -> list[Suggestion]:
        """The likeliest next words after a text, with their probabilities.

        Args:
            text: what was written so far.
            count: how many words.
            typed: the first letters of the next word.
            context: what is known of the writer: one of `tokenizer.contexts`.
        """
        from sottovoce.evaluation.suggestions import suggest

        return suggest(self.merged, self.tokenizer, text, count, typed, context)

    def evaluate(self, users: Store | str | Path, split: str = "test") -> Evaluation:
        """How well it predicts the next words of the users of a store, or of a split of the store in a folder."""
        from sottovoce.data.store import Store
        from sottovoce.evaluation.prediction import evaluate

        store = users if isinstance(users, Store) else Store.open(users, split)
        if store.vocabulary.fingerprint != self.tokenizer.fingerprint:
            raise SottoError(f"the store {store.path} has another vocabulary than the model; prepare another")
        return evaluate(self.merged, store)


def base_weights(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a base, or of one that is being made: float16 on disk and float32 in training."""
    arrays = load_arrays(folder / bases.WEIGHTS, "get the base again")
    return {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in arrays.items()}
