"""Load the model of a release, a run or a base, with its vocabulary, to use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sottovoce.commands.evaluate import find_base, load_run
from sottovoce.commands.initial_model import find_hugging_face
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.evaluation.prediction import evaluate
from sottovoce.evaluation.suggestions import Suggestion, suggest
from sottovoce.models.contract import LanguageModel, parameter_count
from sottovoce.models.lora import merge
from sottovoce.reporting.statement import Statement, read_statement
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.evaluation import Evaluation


@dataclass(frozen=True, repr=False)
class Loaded:
    """A model with its vocabulary, and its privacy statement.

    None for a base, which is of public text, and for a folder of Hugging Face, of which nothing is known.
    """

    model: LanguageModel
    vocabulary: Tokenizer
    statement: Statement | None = None

    def suggest(self, text: str, count: int = 3, typed: str = "", context: str | None = None) -> list[Suggestion]:
        """The likeliest next words after a text, with their probabilities.

        Args:
            text: what was written so far.
            count: how many words.
            typed: the first letters of the next word.
            context: what is known of the writer: one of `vocabulary.contexts`.
        """
        return suggest(self.model, self.vocabulary, text, count, typed, context)

    def evaluate(self, users: Store | str | Path, split: str = "test") -> Evaluation:
        """How well it predicts the next words of the users of a store, or of a split of the store in a folder."""
        store = users if isinstance(users, Store) else Store.open(users, split)
        if store.vocabulary.fingerprint != self.vocabulary.fingerprint:
            raise SottoError(f"the store {store.path} has another vocabulary than the model; prepare another")
        return evaluate(self.model, store)

    def __repr__(self) -> str:
        size = f"{parameter_count(self.model):,} parameters, {self.vocabulary.size:,} tokens"
        return f"<{type(self.model).__name__}: {size}>"


def load_model(path: str | Path, *, model: LanguageModel | None = None) -> Loaded:
    """Load a model to use it. Adapters are merged into the matrices that they adapt.

    The files must be those that its card names. Whether the folder is the owner's, `sotto verify` tells.

    Args:
        path: the folder of a release, of a run or of a base, or the name of a base in the package; or a folder of
            Hugging Face.
        model: a model of your own to fill, where the run had one.
    """
    loaded, vocabulary = load_run(path, model)
    stated = not find_base(path) and not find_hugging_face(path)
    return Loaded(merge(loaded), vocabulary, read_statement(RunFolder.open_model(path)) if stated else None)
