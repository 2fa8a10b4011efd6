"""Measure the baselines of a run, before its first round."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from sottovoce.commands.bases import read_frequencies
from sottovoce.commands.initial_model import Start
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.demo import demo_texts, demo_vocabulary
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.evaluation.baselines import BaselineEvaluations, Frequencies, Unigram, evaluate_baselines
from sottovoce.evaluation.keystrokes import KeystrokeSaving, count_keystrokes, saving
from sottovoce.evaluation.prediction import evaluate
from sottovoce.runs.baselines import Baselines
from sottovoce_evidence import bases
from sottovoce_evidence.recipe import Recipe

_OTHER_SEED, _OTHER_PEOPLE = 1, 200  # synthetic people who are in no population


def measure_baselines(recipe: Recipe, start: Start, test: Store | None) -> Baselines:
    """The baselines on the held-out users on whom the run is evaluated; without them, only what it starts from.

    Guarantee: no user's text goes into a baseline. Held-out users are measured, and their figures are rounded as those
    of every evaluation are.
    """
    rows = evaluated_users(recipe, test)
    if test is None or not rows:
        return Baselines(start.name)
    frequencies = public_frequencies(test.vocabulary, recipe.model.initial)
    found = Baselines(start.name, evaluate(start.model, test, rows).public if start.facts else None)
    token, constant, unigram = evaluate_baselines(frequencies, test, rows, listed=has_public_order(test))
    return replace(
        found,
        frequencies=frequencies.source if frequencies else None,
        token=test.vocabulary.text_of(token),
        constant=constant.public,
        unigram=unigram.public if unigram else None,
    )


def public_baselines(users: Store, run: str | Path | None = None) -> BaselineEvaluations:
    """The baselines on all of some users. `run`: whose words these are, or the base that has them."""
    frequencies, listed = _frequencies_of(users, run), has_public_order(users, run)
    return evaluate_baselines(frequencies, users, range(users.users), listed=listed)


def unigram_keystrokes(users: Store, run: str | Path | None, suggestions: int) -> KeystrokeSaving | None:
    """The keystrokes that a unigram of public text saves; None where no public text has the words of these users."""
    frequencies = _frequencies_of(users, run)
    if frequencies is None:
        return None
    return saving(count_keystrokes(Unigram.of(frequencies), users, suggestions), suggestions)


def list_keystrokes(users: Store, run: str | Path | None, suggestions: int) -> KeystrokeSaving | None:
    """The keystrokes that a public list of words saves by its order alone; None where there is no such order."""
    if not has_public_order(users, run):
        return None
    return saving(count_keystrokes(Unigram.in_order(users.vocabulary), users, suggestions), suggestions)


def has_public_order(users: Store, run: str | Path | None = None) -> bool:
    """Are the words a list by frequency in which no user's text has a part? Pieces of words are in no such order."""
    if not users.vocabulary.is_words or users.vocabulary_source["source"] == "private":
        return False
    statement = None if run is None else ModelFolder.open(run).statement
    return statement is None or not statement.vocabulary.private  # a corpus does not say it


def _frequencies_of(users: Store, run: str | Path | None) -> Frequencies | None:
    folder = None if run is None else ModelFolder.open(run)
    if folder is None or folder.run:
        return public_frequencies(users.vocabulary, folder.recipe.model.initial if folder else None)
    return public_frequencies(users.vocabulary, str(folder.path))


def evaluated_users(recipe: Recipe, test: Store | None) -> range:
    """The held-out users on whom a run is evaluated."""
    if test is None or not recipe.run.evaluate_every:
        return range(0)
    return range(min(recipe.run.evaluate_users or test.users, test.users))


def public_frequencies(vocabulary: Tokenizer, initial: str | None = None) -> Frequencies | None:
    """How often public text has the tokens of a vocabulary: the text of the base that a run starts from, or another.

    None where no public text with these words is known.
    """
    if vocabulary.fingerprint == demo_vocabulary().fingerprint:
        return Frequencies.of("synthetic messages", _count_demo(vocabulary), vocabulary)
    for name in [*([initial] if initial else []), *bases.shipped()]:
        folder = bases.find(name) or Path(name)
        counted = read_frequencies(folder)
        found = Frequencies.of(f"the text of base {folder.name}", counted, vocabulary) if counted else None
        if found is not None:
            return found
    return None


def _count_demo(vocabulary: Tokenizer) -> Counter[str]:
    texts = (text for user in range(_OTHER_PEOPLE) for text in demo_texts(_OTHER_SEED, user))
    return Counter(vocabulary.text_of(token) for text in texts for token in vocabulary.encode(text))
