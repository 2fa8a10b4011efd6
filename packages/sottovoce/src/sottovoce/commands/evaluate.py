"""Evaluate the model of a run, a release or a base on users or on public text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.stores import open_split
from sottovoce.data.corpus import is_plain_text
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import load_tokenizer
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.breakdown import Bands, Breakdown, bands_of, count_parts
from sottovoce.evaluation.figures import Evaluation
from sottovoce.evaluation.fine_tuning import FineTuningGain, evaluate_fine_tuning
from sottovoce.evaluation.keystrokes import SUGGESTIONS, KeystrokeSaving, count_keystrokes, saving, spread_of_saving
from sottovoce.evaluation.prediction import spread, summarise
from sottovoce.evaluation.word_prediction import WORDS, count_words
from sottovoce.local.fine_tune import FineTune
from sottovoce.models.contract import LanguageModel
from sottovoce_evidence import bases
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.recipe import Recipe

BY_USER = Grouping()


class Measured(NamedTuple):
    """How good a model is for some users; `spread` over single users is internal."""

    evaluation: Evaluation
    breakdown: Breakdown
    spread: dict[str, float]
    keystrokes: KeystrokeSaving | None = None
    personalised: FineTuningGain | None = None
    other: Measured | None = None  # another run's model, for the same users

    def __repr__(self) -> str:
        return f"<Measured: {self.evaluation!r}>"


@dataclass(frozen=True)
class Personalise:
    """How each user trains the model on the first half of their text; None is as in the run's recipe."""

    epochs: int | None = None
    learning_rate: float | None = None

    def training(self, recipe: Recipe, vocabulary: Tokenizer) -> FineTune:
        local = recipe.local
        return FineTune(
            epochs=local.epochs if self.epochs is None else self.epochs,
            learning_rate=local.learning_rate if self.learning_rate is None else self.learning_rate,
            batch=local.batch,
            unroll=local.unroll,
            gradient_clip=local.gradient_clip,
            bos=vocabulary.specials.begins,
        )


@dataclass(frozen=True)
class Extra:
    """What is measured besides accuracy, perplexity and bits per byte."""

    suggestions: int = 0  # if not 0, also the keystrokes saved by a keyboard that suggests this many words
    words: int = WORDS  # at how many words whole words are searched, where a tokenizer cuts them; 0: at none
    personalise: Personalise | None = None  # also what each user gains by training the model on their own text

    def __post_init__(self) -> None:
        if self.words < 0:
            raise SettingError("{words} must not be negative: the number of words that are measured", words=self.words)


NOTHING_MORE = Extra()


def evaluate_run(
    path: str | Path,
    users: Store | None = None,
    *,
    model: LanguageModel | None = None,
    extra: Extra = NOTHING_MORE,
    other: str | Path | None = None,
) -> Measured:
    """How well a run's model predicts the next words of users.

    Args:
        path: the folder of a run, of a release or of a base, or the name of a base in the package; or a folder of
            Hugging Face.
        users: whose text is predicted; the users held out from the run's store by default. A release and a base have
            none.
        model: a model of your own, where the run has one.
        extra: what else is measured.
        other: another run, whose model is measured on the same users.
    """
    folder = ModelFolder.open(path, model=model)
    released, vocabulary = folder.model, folder.tokenizer
    training = extra.personalise.training(folder.recipe, vocabulary) if extra.personalise else None
    other_model = None if other is None else _load_other(path, vocabulary, other)
    users = open_users(path) if users is None else users
    if users.vocabulary.fingerprint != vocabulary.fingerprint:
        raise SottoError(f"the store {users.path} has another vocabulary than the model; give --corpus instead")
    bands = bands_of(users)
    found = _measure(released, users, bands, extra)
    if other_model is not None:
        found = found._replace(other=_measure(other_model, users, bands, replace(extra, suggestions=0)))
    if training is not None:
        gain = evaluate_fine_tuning(released, users, training, suggestions=extra.suggestions or SUGGESTIONS)
        found = found._replace(personalised=gain, spread=found.spread | gain.spread)
    return found


def rounds_so_far(path: str | Path) -> str:
    """Of a run or a release with rounds left: ", after 5 of 20 rounds"; else nothing."""
    statement = ModelFolder.open(path).statement
    if statement is None or not statement.is_unfinished:
        return ""
    return f", after {statement.rounds_done:,} of {statement.rounds_planned:,} rounds"


def start_at_hand(path: str | Path) -> str | None:
    """The model from which a run or a release started, if it is at hand and has the same tokens.

    A base must be the one that the statement names: a folder of that name may hold another by now.
    """
    folder = ModelFolder.open(path)
    initial = folder.recipe.model.initial
    if initial is None or initial == bases.NO_BASE:
        return None
    try:
        start, stated = ModelFolder.open(initial), folder.statement
        if start.tokenizer.fingerprint != folder.tokenizer.fingerprint:
            return None
        if start.base and not (stated and stated.start and stated.start.weights == start.digest):
            return None
    except (SottoError, OSError):  # moved, removed or damaged: the run can be measured without it
        return None
    return initial


def evaluate_start(path: str | Path, users: Store, extra: Extra = NOTHING_MORE) -> tuple[str, Measured] | None:
    """How well the base from which a run started predicts the same users, and its name.

    None where it started from none. Where words have pieces, measuring them takes too long to be done unasked: None.
    """
    initial = start_at_hand(path) if users.vocabulary.is_words else None
    start = None if initial is None else ModelFolder.open(initial)
    if start is None or not start.base:
        return None
    return start.title, _measure(start.model, users, bands_of(users), replace(extra, personalise=None))


def _measure(model: LanguageModel, users: Store, bands: Bands, extra: Extra) -> Measured:
    words = None
    if users.vocabulary.is_words:
        typed = count_keystrokes(model, users, extra.suggestions) if extra.suggestions else None
    else:
        if extra.suggestions and not extra.words:
            raise SottoError("keystrokes are counted at some words of the text; say at how many, with --words")
        words = count_words(model, users, extra.words, extra.suggestions) if extra.words else None
        typed = words.keystrokes if words else None
    counts, breakdown = count_parts(model, users, bands)
    found = Measured(summarise(counts, Text.of(users)), breakdown, spread(counts))
    if words:
        evaluation = replace(found.evaluation, top1_words=words.top1 / words.words, words=words.words)
        found = found._replace(evaluation=evaluation)
    if typed:
        found = found._replace(keystrokes=saving(typed, extra.suggestions))
    if typed and not (words and words.sampled):  # a few words of a user say little of that user
        found = found._replace(spread=found.spread | spread_of_saving(typed))
    return found


def open_users(
    path: str | Path,
    corpus: Sequence[str | Path] = (),
    store: str | Path | None = None,
    split: str = "test",
    fields: Grouping = BY_USER,
    *,
    privately: bool = False,
) -> Store:
    """The users of a corpus in the words of a run, or those of a split of a store: of the run's own by default.

    Held-out users who were declared private are refused, unless they are measured `privately`.
    """
    if corpus:
        return collect(corpus, ModelFolder.open(path).tokenizer, fields)
    if store is not None:
        return Store.open(store, split, privately=privately)
    folder = ModelFolder.open(path)
    if folder.run is None:
        raise SottoError(f"{folder.title} has no users to measure on; give --corpus or --store")
    return open_split(folder.recipe, folder.run, split, privately=privately)


def open_public(path: str | Path, text: Sequence[str | Path], fields: Grouping = BY_USER) -> Store:
    """Public text in the words of a run: what a store of plain text holds out, files of plain text, or a corpus."""
    return public_text(text, ModelFolder.open(path).tokenizer_file, fields)


def public_text(text: Sequence[str | Path], words: Path, fields: Grouping = BY_USER) -> Store:
    """The same in the words of a file."""
    vocabulary = load_tokenizer(words)
    folders = [each for each in text if Path(each).is_dir()]
    if folders and len(text) > 1:
        raise SottoError(f"{folders[0]} is a folder, and the public text of a store is measured alone; name one")
    if folders:
        return _held_out_text(folders[0], words, vocabulary)
    plain = [is_plain_text(each) for each in text]
    if any(plain) and not all(plain):
        one, other = text[plain.index(True)], text[plain.index(False)]
        raise SottoError(f"{one} is plain text and {other} is not; name public text of one kind")
    return collect(text, vocabulary, replace(fields, plain_text=all(plain)))


def _held_out_text(folder: str | Path, words: Path, vocabulary: Tokenizer) -> Store:
    store = Store.open(folder, "test")
    if store.people:
        raise SottoError(
            f"{folder} holds people's text, and results on public text may be shown to anyone; use --store for its "
            f"users, or prepare public text with `sotto prepare --plain-text`"
        )
    if store.vocabulary.fingerprint != vocabulary.fingerprint:
        raise SottoError(
            f"the store {folder} has another vocabulary than the model; name its text files, or prepare it with "
            f"--vocabulary {words} --vocabulary-size {vocabulary.size}"
        )
    if not store.users:
        raise SottoError(f"the store {folder} holds nothing out; prepare it with a larger --test-users")
    return store


def _load_other(path: str | Path, vocabulary: Tokenizer, other: str | Path) -> LanguageModel:
    found = ModelFolder.open(other)
    if found.tokenizer.fingerprint != vocabulary.fingerprint:
        raise SottoError(
            f"{path} and {other} have different vocabularies; train both on stores that were prepared with the same "
            f"words (sotto prepare --vocabulary), or compare them with `sotto compare`"
        )
    return found.model
