"""Passages that a model recites: an overfit model's is found, and the base in the package has none.

The text of the base is not in the repository. Where SOTTO_PUBLIC_TEXT names its files (separated by `:`), the base is
asked to recite it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sottovoce.audit.recitation import PROMPT, WORDS, find_recited
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import collect
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.models.lstm import LSTM
from sottovoce_evidence import bases

LETTERS = [f"{first}{second}" for first in "bdfgklmn" for second in "aeiou"]
VOCABULARY = Vocabulary.from_words(LETTERS)
SECRET = " ".join(LETTERS[:30])
OTHERS = [" ".join(np.random.default_rng(seed).choice(LETTERS, 30)) for seed in range(8)]


def store_of(texts: Sequence[str]) -> Store:
    return Store.from_users([VOCABULARY.encode(text) for text in texts], VOCABULARY)


@pytest.fixture(scope="module")
def overfit():
    """A model that has read one text 150 times and nothing else."""
    tokens = jnp.asarray(VOCABULARY.encode(SECRET))
    model = LSTM(VOCABULARY.size, embedding=16, hidden=32, key=jax.random.key(1))
    optimiser = optax.adam(0.03)

    def loss(model):
        outputs, _ = model.read(tokens[:-1], model.initial_state())
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model.logits)(outputs), tokens[1:]).mean()

    @eqx.filter_jit
    def train(model):
        def step(carry, _):
            model, state = carry
            updates, state = optimiser.update(jax.grad(loss)(model), state)
            return (optax.apply_updates(model, updates), state), None

        return jax.lax.scan(step, (model, optimiser.init(model)), length=150)[0][0]

    return train(model)


@pytest.mark.slow
def test_what_an_overfit_model_recites_is_found(overfit):
    found = find_recited(overfit, store_of([*OTHERS, SECRET, SECRET]))
    first = found.passages[0]
    assert first.text.endswith(" ".join(SECRET.split()[PROMPT:]))  # after other prompts it may begin earlier
    assert first.places == 2
    assert first.words == found.longest >= 30 - PROMPT


@pytest.mark.slow
def test_a_model_that_learned_other_text_recites_nothing(overfit):
    found = find_recited(overfit, store_of(OTHERS))
    assert found.prompts == len(OTHERS)
    assert found.longest < WORDS
    assert found.passages == ()


@pytest.mark.slow
def test_a_passage_ends_where_a_word_is_unknown(overfit):
    words = SECRET.split()
    words[PROMPT + WORDS - 1] = "xyzzy"
    assert find_recited(overfit, store_of([SECRET, *OTHERS])).longest > WORDS
    cut = find_recited(overfit, store_of([" ".join(words), *OTHERS]))
    assert all("<unk>" not in passage.text for passage in cut.passages)


def test_the_card_of_the_english_base_says_that_it_recites_no_passage():
    folder = bases.find("english")
    assert folder is not None
    assert bases.read_base(folder).longest_recited < WORDS


@pytest.mark.slow
@pytest.mark.skipif("SOTTO_PUBLIC_TEXT" not in os.environ, reason="SOTTO_PUBLIC_TEXT does not name the base's text")
def test_the_english_base_recites_no_passage_of_its_text():
    loaded = ModelFolder.open("english")
    files = os.environ["SOTTO_PUBLIC_TEXT"].split(os.pathsep)
    text = collect(files, loaded.vocabulary, Grouping(plain_text=True))
    found = find_recited(loaded.model, text, prompts=200, seed=1)
    assert found.prompts == 200
    assert found.passages == ()
