"""Words and keystrokes of models whose tokens are pieces of words."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.keystrokes import count_keystrokes, saving
from sottovoce.evaluation.pieces import pieces_of, words_of
from sottovoce.evaluation.prediction import count_hits
from sottovoce.evaluation.whole_words import Place, begin, likeliest_words, read_on
from sottovoce.evaluation.word_prediction import count_words, letters_to_type
from table_model import Table
from tokenizer_examples import few_pieces, wordpiece

TOKENIZER = few_pieces()
TEXTS = ["abc abc. abc c ab", "a ab ab c abc ab", "", "ca"]


def random_table(size: int, seed: int = 0, scale: float = 2.0) -> Table:
    rows = np.random.default_rng(seed).normal(0, scale, (size, size))
    return Table(jnp.asarray(rows, jnp.float32))


def learned() -> Table:
    """Chances counted in the texts themselves, with a little noise: some words are predicted, some are not."""
    counts = np.random.default_rng(1).uniform(0, 0.001, (TOKENIZER.size, TOKENIZER.size))
    for text in TEXTS:
        tokens = TOKENIZER.encode(text)
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1.0)
    return Table(jnp.asarray(np.log(counts), jnp.float32))


def place_of(model, tokens: list[int], place: int, after_word: bool) -> Place:
    inputs = jnp.asarray([TOKENIZER.specials.bos, *tokens[:-1]], jnp.int32)
    reader = read_on(model, inputs, begin(model, inputs), place + 1)
    return Place(reader.state, reader.output, after_word)


@pytest.mark.slow
@pytest.mark.parametrize("suggestions", [1, 3])
def test_counts_are_those_of_a_person_typing(suggestions: int) -> None:
    pieces, model = pieces_of(TOKENIZER), learned()
    users = [TOKENIZER.encode(text) for text in TEXTS]
    found = count_words(model, Store.from_users(users, TOKENIZER), suggestions=suggestions)
    hits, typed, words = 0, [], 0
    for tokens in users:
        written = words_of(pieces, tokens)
        places = [place_of(model, tokens, word.place, word.after_word) for word in written]
        for word, place in zip(written, places, strict=True):
            likeliest = likeliest_words(model, pieces, place)
            hits += likeliest.words[0][0] == word.text and likeliest.words[0][1] >= likeliest.other
        pairs = zip(written, places, strict=True)
        typed.append(sum(letters_to_type(model, pieces, place, word.text, suggestions) for word, place in pairs))
        words += len(written)
    assert (found.words, found.top1, found.users, found.sampled) == (words, hits, len(TEXTS), False)
    assert 0 < hits < words
    assert found.keystrokes is not None
    assert found.keystrokes.typed.tolist() == typed
    assert found.keystrokes.letters.tolist() == [sum(map(str.isalpha, text)) for text in TEXTS]
    assert found.keystrokes.marks.tolist() == [1, 0, 0, 0]


@pytest.mark.slow
def test_word_models_have_the_figures_that_they_had(vocabulary: Vocabulary) -> None:
    """Each word one token: the search finds what the pass over all targets finds."""
    generator = np.random.default_rng(2)
    users = [[0, *generator.integers(1, vocabulary.size, n).tolist(), 1] for n in (30, 0, 7)]
    unknown = [[5] * user.count(vocabulary.specials.unk) for user in users]
    store, model = Store.from_users(users, vocabulary, unknown=unknown), random_table(vocabulary.size)
    sums, typed = count_hits(model, store), count_keystrokes(model, store)
    found = count_words(model, store, suggestions=3)
    assert (found.words, found.top1) == (sums.words.sum(), sums.top1_words.sum())
    assert found.keystrokes is not None
    for column, expected in zip(found.keystrokes, typed, strict=True):
        np.testing.assert_array_equal(column, expected)


@pytest.mark.slow
def test_some_words_stand_for_all() -> None:
    users = [TOKENIZER.encode(text) for text in TEXTS]
    store, model = Store.from_users(users, TOKENIZER), learned()
    found = count_words(model, store, words=5, suggestions=3)
    assert found.sampled
    assert found.words == 4  # every third of 12
    assert found.keystrokes is not None
    assert found.keystrokes.letters.sum() == 12 + 11 + 2
    assert 0 <= saving(found.keystrokes).keystroke_saving <= 1
    assert count_words(model, store, words=4, rows=[3]).words == 1


def test_unknown_words_are_mistakes_and_typed_in_full() -> None:
    tokenizer = wordpiece()
    tokens, lengths = tokenizer.separate(np.array(tokenizer.encode_measured("the dogs, the")))
    store = Store.from_users([tokens], tokenizer, unknown=[lengths])
    found = count_words(random_table(tokenizer.size), store, suggestions=1)
    assert found.words == 3
    assert found.top1 <= 2
    assert found.keystrokes is not None
    assert (found.keystrokes.unknown.tolist(), found.keystrokes.letters.tolist()) == ([4], [6])
    assert np.isnan(count_words(random_table(tokenizer.size), Store.from_users([tokens], tokenizer), 9, 1)[4].unknown)


def test_states_that_are_large_are_measured_in_small_blocks() -> None:
    from sottovoce.evaluation.word_prediction import _Sizes, _users_at_once

    class Cached(Table):
        def initial_state(self):
            return jnp.zeros((1024, 1024))  # 4 MiB, times 8 hypotheses

    jax.tree_util.register_pytree_node(Cached, lambda t: ((t.rows,), None), lambda _, rows: Cached(*rows))
    sizes = _Sizes(1, 12, False)
    assert _users_at_once(Cached(jnp.zeros((1, 1))), sizes) == 8
    assert _users_at_once(random_table(3), sizes) == 16
