"""The fast count of keystrokes is the one of a person typing letter by letter."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import BOS, EOS, UNK
from sottovoce.evaluation.keystrokes import (
    _letters_to_type,
    count_keystrokes,
    letters_to_type,
    saving,
    spread_of_saving,
    typing_of,
)
from table_model import Table

# Words that are beginnings of others, single letters, numbers, apostrophes, other alphabets, a lone first letter.
WORDS = [
    "a", "an", "and", "andes", "ant", "anthem", "at", "i", "in", "into", "inn", "inner", "innermost", "it", "its",
    "it's", "is", "i'm", "you", "your", "yours", "yore", "zebra", "1", "10", "100", "1000", "10000", "éa", "été",
    "étés", "étéx", "ça", "şe", "да", "даже", "дай", "дать", "дают", "ἀν", "日", "日本", "日本語", "日本人", "日本海",
]  # fmt: skip
FAST = jax.jit(_letters_to_type)
MIXED = Vocabulary.from_words(WORDS)
FEW = Vocabulary.from_words(["tea", "ten", "to"])
ONE_LETTER = Vocabulary.from_words(["wa" + "abcdefgh"[i // 8] + "abcdefgh"[i % 8] for i in range(50)])
NO_WORDS = Vocabulary.from_words(())


def random_table(vocabulary: Vocabulary, levels: int, seed: int = 0) -> Table:
    """Whole scores: the fewer levels, the more ties."""
    generator = np.random.default_rng(seed)
    return Table(jnp.asarray(generator.integers(0, levels, (vocabulary.size, vocabulary.size)), jnp.float32))


def typed_by_hand(model: Table, vocabulary: Vocabulary, stream: list[int], suggestions: int) -> tuple[int, int, int]:
    """Marks, letters of known words, and those of them that are typed, one token after another."""
    rows = np.asarray(model.rows)
    marks = letters = typed = 0
    for before, token in zip([BOS, *stream], stream, strict=False):
        if vocabulary.is_word(token):
            letters += len(vocabulary.words[token])
            typed += letters_to_type(token, rows[before], vocabulary, suggestions)
        elif len(vocabulary.words[token]) == 1:
            marks += 1
    return marks, letters, typed


@pytest.mark.parametrize("vocabulary", [MIXED, FEW, ONE_LETTER], ids=["mixed", "few", "one letter"])
@pytest.mark.parametrize("suggestions", [1, 3])
@pytest.mark.parametrize("levels", [1, 3, 10**6])
def test_every_word_takes_as_many_letters_as_by_hand(vocabulary: Vocabulary, suggestions: int, levels: int) -> None:
    words = np.flatnonzero(vocabulary.word_mask)
    typing = typing_of(vocabulary, suggestions)
    for seed in range(3):
        scores = np.asarray(random_table(vocabulary, levels, seed).rows)[: len(words)]
        fast = FAST(scores, jnp.asarray(words), typing)
        pairs = zip(words, scores, strict=True)
        slow = [letters_to_type(int(w), np.asarray(row), vocabulary, suggestions) for w, row in pairs]
        assert np.minimum(fast, [len(vocabulary.words[w]) for w in words]).tolist() == slow


@pytest.mark.parametrize("vocabulary", [MIXED, FEW, NO_WORDS], ids=["mixed", "few", "no words"])
def test_users_type_as_many_letters_as_by_hand(vocabulary: Vocabulary) -> None:
    """Users of several lengths, one without text, with marks, placeholders, unknown words and ends of texts."""
    generator = np.random.default_rng(1)
    users = [generator.integers(0, vocabulary.size, n).tolist() for n in (70, 0, 5, 200, 1)]
    unknown = [generator.integers(1, 20, user.count(UNK)).tolist() for user in users]
    model = random_table(vocabulary, 50)
    store = Store.from_users(users, vocabulary, unknown=unknown)
    counts = count_keystrokes(model, store)
    wanted = [(*typed_by_hand(model, vocabulary, user, 3), sum(u)) for user, u in zip(users, unknown, strict=True)]
    assert np.stack(counts, axis=1).tolist() == [list(row) for row in wanted]
    marks, letters, typed, outside = np.sum(wanted, axis=0).tolist()
    found = saving(counts)
    assert found.characters == marks + letters + outside
    assert found.keystrokes == marks + typed + outside
    assert found.keystroke_saving == pytest.approx((letters - typed) / found.characters)
    assert 0 <= found.keystroke_saving < 1


def test_an_example_worked_out_on_paper() -> None:
    """The words by likelihood, whatever came before: and, at, an, a, ant, in, it, ...; the text: "An ant, a zoo in"."""
    liked = ["and", "at", "an", "a", "ant", "in", "it", "inn", "into"]
    scores = np.zeros(MIXED.size, np.float32)
    scores[[MIXED.words.index(word) for word in liked]] = range(len(liked), 0, -1)
    model = Table(jnp.asarray(np.tile(scores, (MIXED.size, 1))))
    tokens, lengths = MIXED.separate(np.array(MIXED.encode_measured("An ant, a zoo in")))
    found = saving(count_keystrokes(model, Store.from_users([tokens], MIXED, unknown=[lengths])))
    # "an" is offered at once: 0. "ant": after "an" the words shown are "and", "an", "ant": 2 letters. The comma: 1.
    # "a": after no letter not shown, and it has no more letters: 1. "zoo" is outside the vocabulary: 3.
    # "in": after "i" the words shown are "in", "it", "inn": 1.
    assert (found.characters, found.keystrokes) == (2 + 3 + 1 + 1 + 3 + 2, 0 + 2 + 1 + 1 + 3 + 1)
    assert found.keystroke_saving == pytest.approx(4 / 12)
    assert found.keystroke_saving_in_vocabulary == pytest.approx(4 / 8)


@pytest.mark.parametrize("gap", [1, -1])
def test_a_perfect_model_saves_every_letter_and_a_perfectly_wrong_one_the_least(gap: int) -> None:
    words = np.flatnonzero(MIXED.word_mask)
    stream = [BOS, *words.tolist(), EOS]
    rows = np.zeros((MIXED.size, MIXED.size), np.float32)
    rows[stream[:-1], stream[1:]] = gap
    found = saving(count_keystrokes(Table(jnp.asarray(rows)), Store.from_users([stream], MIXED)))
    if gap == 1:
        assert (found.keystroke_saving, found.keystrokes) == (1.0, 0)
    else:  # it is offered last of all, so only where few words begin like it
        begins = [sum(other.startswith(word[:n]) for other in WORDS) for word in WORDS for n in range(len(word))]
        assert found.characters == len("".join(MIXED.words[token] for token in words))
        assert found.keystrokes == sum(count > 3 for count in begins)


@pytest.mark.slow
def test_more_suggestions_never_cost_keystrokes() -> None:
    model, store = random_table(MIXED, 9), Store.from_users([np.arange(MIXED.size).tolist()], MIXED, unknown=[[4]])
    typed = [saving(count_keystrokes(model, store, n), n).keystrokes for n in (1, 3, 50)]
    assert typed == sorted(typed, reverse=True)
    assert len(set(typed)) == 3


@pytest.mark.slow
def test_a_model_gone_to_nan_saves_nothing(store, model) -> None:
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, model)
    assert saving(count_keystrokes(broken, store)).keystroke_saving_in_vocabulary == 0


def test_words_of_unknown_length_leave_the_saving_unknown() -> None:
    model = random_table(MIXED, 9)
    counts = count_keystrokes(model, Store.from_users([[BOS, 45, EOS], [BOS, UNK, EOS]], MIXED))
    found = saving(counts)
    assert found.characters is found.keystrokes is found.keystroke_saving is None
    assert 0 <= found.keystroke_saving_in_vocabulary <= 1
    assert set(map(math.isnan, counts.unknown)) == {True, False}
    assert spread_of_saving(counts).keys() == {f"keystroke_saving_p{n}" for n in (5, 25, 50, 75, 95)}


def test_marks_are_typed_and_placeholders_and_ends_do_not_count() -> None:
    store = Store.from_users([MIXED.encode("<url> , . <user> !"), MIXED.encode("")], MIXED)
    found = saving(count_keystrokes(random_table(MIXED, 9), store))
    assert (found.characters, found.keystrokes, found.keystroke_saving) == (3, 3, 0.0)
    assert spread_of_saving(count_keystrokes(random_table(MIXED, 9), store))["keystroke_saving_p50"] == 0
