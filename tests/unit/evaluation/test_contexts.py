"""Begin tokens of contexts in evaluation, generation and suggestions: as BOS, they are read and never predicted."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.audit.recitation import find_recited
from sottovoce.data.store import Store
from sottovoce.data.subwords import Subwords
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.baselines import Frequencies, evaluate_baselines
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.fine_tuning import evaluate_fine_tuning
from sottovoce.evaluation.keystrokes import count_keystrokes
from sottovoce.evaluation.prediction import count_hits, evaluate
from sottovoce.evaluation.private_prediction import count_bounded
from sottovoce.evaluation.suggestions import suggest
from sottovoce.evaluation.word_prediction import count_words
from sottovoce.local.fine_tune import FineTune
from sottovoce.models.generate import log_probabilities, sample_texts
from sottovoce.models.lstm import LSTM
from sottovoce_evidence.errors import SottoError
from table_model import Table

WORDS = Vocabulary.from_words(["red", "tree", "blue", "sky"]).with_contexts(["de", "en"])
BYTES = Subwords.of_bytes().with_contexts(["de"])
TEXTS = ["red tree", "sky", "blue blue blue", "red"]


def people(tokenizer: Tokenizer, begins: tuple[int, ...]) -> Store:
    """Two users whose records begin with these tokens in turn."""
    records = [[begins[at % len(begins)], *tokenizer.encode(text)[1:]] for at, text in enumerate(TEXTS)]
    users = [[*records[0], *records[1]], [*records[2], *records[3]]]
    return Store.from_users(users, tokenizer, unknown=[[], []])


def deaf(tokenizer: Tokenizer) -> Table:
    """It says the same after every token, and finds contexts likeliest."""
    row = jax.random.normal(jax.random.key(3), (tokenizer.size,)).at[jnp.array(tokenizer.specials.contexts)].set(3.0)
    return Table(jnp.broadcast_to(row, (tokenizer.size, tokenizer.size)))


@pytest.mark.parametrize("tokenizer", [WORDS, pytest.param(BYTES, marks=pytest.mark.slow)], ids=["words", "bytes"])
def test_a_model_that_does_not_listen_has_the_same_figures_whatever_texts_begin_with(tokenizer):
    plain = people(tokenizer, (tokenizer.specials.bos,))
    known = people(tokenizer, tokenizer.specials.contexts)
    model = deaf(tokenizer)
    assert evaluate(model, known) == evaluate(model, plain)
    assert count_hits(model, plain).targets.sum() == sum(len(tokenizer.encode(text)) - 1 for text in TEXTS)
    assert Text.of(known) == Text.of(plain)
    for one, other in zip(count_bounded(model, known, 20), count_bounded(model, plain, 20), strict=True):
        np.testing.assert_array_equal(one, other)
    if tokenizer.is_words:
        counted = Frequencies("some text", np.arange(tokenizer.size))
        assert evaluate_baselines(counted, known, range(2)) == evaluate_baselines(counted, plain, range(2))
        assert evaluate_baselines(counted, known, range(2)).token not in tokenizer.specials.begins
        both = (count_keystrokes(model, store, 3) for store in (known, plain))
    else:
        both = (count_words(model, store, 10, 3).keystrokes for store in (known, plain))
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_fine_tuning_never_predicts_a_context():
    known = people(WORDS, WORDS.specials.contexts)
    model = LSTM(WORDS.size, embedding=3, hidden=4, key=jax.random.key(1))
    training = FineTune(batch=1, unroll=4, bos=WORDS.specials.begins)
    found = evaluate_fine_tuning(model, known, training)
    halves = [row[len(row) // 2 :] for row in (known[0], known[1])]
    assert found.before.targets == sum(int(np.sum(~np.isin(half, WORDS.specials.begins))) for half in halves)


def test_a_model_never_writes_what_begins_a_text():
    specials, model = WORDS.specials, deaf(WORDS)
    texts = sample_texts(model, specials, 50, jax.random.key(0), 8)
    assert not np.isin(texts, specials.begins).any()
    every = np.arange(WORDS.size)[:, None]
    chances = np.exp(log_probabilities(model, specials, every))
    assert chances[[*specials.begins]].tolist() == [0.0, 0.0, 0.0]
    assert chances.sum() == pytest.approx(1, abs=1e-5)


def test_texts_of_a_context_begin_with_it_and_are_as_if_read_so():
    last = WORDS.size - 1
    specials = WORDS.specials._replace(bos=last, contexts=tuple({*WORDS.specials.begins} - {last}))
    rows = np.zeros((WORDS.size, WORDS.size))
    red = WORDS.words.index("red")
    rows[WORDS.size - 1, red] = 20.0  # it writes "red" after this context alone
    model = Table(jnp.asarray(rows, jnp.float32))
    assert (sample_texts(model, specials, 20, jax.random.key(0), 1) == red).all()
    plain = sample_texts(model, WORDS.specials, 100, jax.random.key(0), 1)
    assert not (plain == red).all()
    assert not np.isin(plain, specials.begins).any()


@pytest.mark.parametrize("tokenizer", [WORDS, BYTES], ids=["words", "bytes"])
def test_suggestions_listen_to_the_context_and_never_offer_one(tokenizer):
    model = LSTM(tokenizer.size, embedding=6, hidden=8, key=jax.random.key(5))
    model = jax.tree.map(lambda leaf: 4 * leaf, model)
    found = {value: suggest(model, tokenizer, "red", 3, context=value) for value in (None, *tokenizer.contexts)}
    assert suggest(model, tokenizer, "red", 3) == found[None]
    assert len({str(each) for each in found.values()}) == len(found)
    assert not any("context" in word for each in found.values() for word, _ in each)
    with pytest.raises(SottoError, match="the model knows de"):
        suggest(model, tokenizer, "red", context="fr")


def test_a_recited_passage_begins_after_a_context_as_after_bos():
    line = [WORDS.words.index(word) for word in ["red", "tree", "blue", "sky"] * 5]
    rows = np.zeros((WORDS.size, WORDS.size))
    for one, other in pairwise(line):
        rows[one, other] = 9.0
    text = Store.from_users([[WORDS.size - 2, *line, 1]], WORDS)
    assert find_recited(Table(jnp.asarray(rows, jnp.float32)), text, prompts=3).longest > 4
