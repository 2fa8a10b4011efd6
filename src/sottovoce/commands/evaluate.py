"""Evaluate a run's model on people or on public text, and load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sottovoce.build.assembly import build_model, load_model
from sottovoce.commands.stores import open_split
from sottovoce.data.corpus import is_plain_text
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.evaluation.breakdown import Breakdown, bands_of, count_parts
from sottovoce.evaluation.fine_tuning import FineTuningGain, evaluate_fine_tuning
from sottovoce.evaluation.keystrokes import SUGGESTIONS, KeystrokeSaving, count_keystrokes, saving, spread_of_saving
from sottovoce.evaluation.prediction import Evaluation, spread, summarise
from sottovoce.local.fine_tune import FineTune
from sottovoce.models.contract import LanguageModel
from sottovoce.recipe import Recipe
from sottovoce.runs.folder import VOCABULARY, RunFolder


class Measured(NamedTuple):
    """How good a model is for some people; `spread` over single users is internal."""

    evaluation: Evaluation
    spread: dict[str, float]
    keystrokes: KeystrokeSaving | None = None
    personalised: FineTuningGain | None = None
    breakdown: Breakdown | None = None
    other: OtherModel | None = None


class OtherModel(NamedTuple):
    """Another run's model, for the same people."""

    evaluation: Evaluation
    breakdown: Breakdown


def evaluate_run(
    path: str | Path,
    *,
    corpus: Sequence[str | Path] = (),
    store: str | Path | Store | None = None,
    split: str = "test",
    user_field: str = "user",
    text_field: str = "text",
    model: LanguageModel | None = None,
    suggestions: int = 0,
    personalise: bool = False,
    local_epochs: int | None = None,
    local_learning_rate: float | None = None,
    beside: str | Path | None = None,
) -> Measured:
    """How well a run's model predicts the people of a corpus or a store.

    With `suggestions`, also how many keystrokes a keyboard saves that shows that many. With `personalise`, also what
    each user gains by training the model on the first half of their text; what is not given is as in the run's recipe.
    `beside` is another run whose model is measured on the same people.
    """
    run = RunFolder.open(path)
    local = Recipe.of(run).local
    released, vocabulary = load_run(run, model)
    training = FineTune(
        epochs=local.epochs if local_epochs is None else local_epochs,
        learning_rate=local.learning_rate if local_learning_rate is None else local_learning_rate,
        batch=local.batch,
        unroll=local.unroll,
        gradient_clip=local.gradient_clip,
        bos=vocabulary.specials.bos,
    )
    other = None if beside is None else _load_other(run, vocabulary, beside)
    if corpus:
        users = collect(corpus, vocabulary, Grouping(user_field, text_field))
    else:
        recipe = Recipe.of(run)
        users = store if isinstance(store, Store) else _open_users(recipe, run, store, split)
        if users.vocabulary.fingerprint != vocabulary.fingerprint:
            raise SottoError(f"the store {users.path} has another vocabulary than the model; give --corpus instead")
    typed = count_keystrokes(released, users, suggestions) if suggestions else None
    bands = bands_of(users)
    counts, breakdown = count_parts(released, users, bands)
    measured = Measured(
        evaluation=summarise(counts),
        spread=spread(counts) | (spread_of_saving(typed) if typed else {}),
        keystrokes=saving(typed, suggestions) if typed else None,
        breakdown=breakdown,
    )
    if other is not None:
        counts, breakdown = count_parts(other, users, bands)
        measured = measured._replace(other=OtherModel(summarise(counts), breakdown))
    if not personalise:
        return measured
    gain = evaluate_fine_tuning(released, users, training, suggestions=suggestions or SUGGESTIONS)
    return measured._replace(personalised=gain, spread=measured.spread | gain.spread)


def _open_users(recipe: Recipe, run: RunFolder, store: str | Path | None, split: str) -> Store:
    return open_split(recipe, run, split) if store is None else Store.open(store, split)


def open_public(
    path: str | Path, text: Sequence[str | Path], *, user_field: str = "user", text_field: str = "text"
) -> Store:
    """Public text in the words of a run: what a store of plain text holds out, files of plain text, or a corpus."""
    run = RunFolder.open(path)
    vocabulary = load_vocabulary(run)
    folders = [each for each in text if Path(each).is_dir()]
    if folders and len(text) > 1:
        raise SottoError(f"{folders[0]} is a folder, and the public text of a store is measured alone; name one")
    if folders:
        return _held_out_text(folders[0], run, vocabulary)
    plain = [is_plain_text(each) for each in text]
    if any(plain) and not all(plain):
        one, other = text[plain.index(True)], text[plain.index(False)]
        raise SottoError(f"{one} is plain text and {other} is not; name public text of one kind")
    return collect(text, vocabulary, Grouping(user_field, text_field, plain_text=all(plain)))


def _held_out_text(folder: str | Path, run: RunFolder, vocabulary: Vocabulary) -> Store:
    store = Store.open(folder, "test")
    if store.people:
        raise SottoError(
            f"{folder} holds people's text, and what is measured as public text may be shown to anyone; measure its "
            f"people with --store, or prepare public text with `sotto prepare --plain-text`"
        )
    if store.vocabulary.fingerprint != vocabulary.fingerprint:
        raise SottoError(
            f"the store {folder} has another vocabulary than the model; name its text files, or prepare it with "
            f"--vocabulary {run.model / 'vocabulary.txt'} --vocabulary-size {vocabulary.size}"
        )
    if not store.users:
        raise SottoError(
            f"the store {folder} holds nothing out; prepare it from more text or with a larger --test-users, or name "
            f"its text files"
        )
    return store


def _load_other(run: RunFolder, vocabulary: Vocabulary, beside: str | Path) -> LanguageModel:
    other, theirs = load_run(beside)
    if theirs.fingerprint != vocabulary.fingerprint:
        raise SottoError(
            f"{run.path} and {beside} have different vocabularies, so that a word of one is no target of the other; "
            f"train both on stores prepared with the same words (sotto prepare --vocabulary)"
        )
    return other


def load_run(path: str | Path | RunFolder, model: LanguageModel | None = None) -> tuple[LanguageModel, Vocabulary]:
    """The model a run ended with, and its vocabulary. A run of your own model needs one to fill."""
    run = path if isinstance(path, RunFolder) else RunFolder.open(path)
    weights = run.load_weights()
    vocabulary = load_vocabulary(run)
    like = model if model is not None else build_model(Recipe.of(run), vocabulary.size)
    return load_model(like, weights), vocabulary


def load_vocabulary(run: RunFolder) -> Vocabulary:
    return Vocabulary.load(run.model_file(VOCABULARY))
