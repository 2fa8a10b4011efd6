"""Which words a user brings depends on that user alone, and they are few."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from sottovoce.data.grouping import Grouping
from sottovoce.data.private_vocabulary import count_users
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

Records = list[tuple[str, str]]
NOTHING = Vocabulary.from_words(())
EVERYBODY = Grouping(test_users=0, every_record_is_a_user=True)


def counts(
    folder: Path, rows: Records, words_per_user: int, grouping: Grouping = EVERYBODY, known: Vocabulary = NOTHING
) -> Counter:
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"user": user, "text": text}) + "\n" for user, text in rows))
    return Counter(count_users(folder / "work", [corpus], grouping, words_per_user, known).by_word)


def test_a_user_brings_each_word_once_and_only_words(tmp_path: Path) -> None:
    rows = [("ann", "Tea, tea; <url> don’t 42 <tea> _ é"), ("ann", "tea"), ("bob", "TEA! 🍵 <phone>")]
    assert counts(tmp_path, rows, 99) == {"tea": 2, "don't": 1, "42": 1, "é": 1}


def test_known_words_are_not_brought(tmp_path: Path) -> None:
    rows = [("ann", "tea the tea of"), ("bob", "the milk")]
    assert counts(tmp_path, rows, 1, known=Vocabulary.from_words(["the", "of"])) == {"tea": 1, "milk": 1}


def test_words_are_cut_by_the_rules_of_the_language(tmp_path: Path) -> None:
    thai, rows = Vocabulary.from_words((), language="th"), [("ann", "ฉันรักภาษาไทย")]
    assert counts(tmp_path, rows, 9, known=thai) == {"ฉัน": 1, "รัก": 1, "ภาษา": 1, "ไทย": 1}


def test_a_user_in_many_records_brings_no_more(tmp_path: Path) -> None:
    rows = [("ann", f"one{letter} two{letter}") for letter in "abcdefgh"]
    found = counts(tmp_path, rows, 5)
    assert (len(found), found.total()) == (5, 5)


def test_only_the_text_that_will_be_in_the_store_counts(tmp_path: Path) -> None:
    """Begin and end are tokens: "a b c" has five, as `prepare` counts them."""
    rows = [("five", "a b c"), ("four", "d e"), ("more", "f g h i j k")]
    cut = Grouping(min_tokens=5, tokens_per_user=6, test_users=0)
    assert set(counts(tmp_path, rows, 99, cut)) == set("abcfghij")


def test_held_out_users_bring_nothing(tmp_path: Path) -> None:
    half = Grouping(test_users=0.5, every_record_is_a_user=True)
    rows = [(f"user {number}", f"word{chr(97 + number // 26)}{chr(97 + number % 26)}") for number in range(200)]
    kept = {text for user, text in rows if not half.holds_out(half.name(user))}
    assert 60 < len(kept) < 140
    assert set(counts(tmp_path, rows, 9, half)) == kept


@examples(25)
@given(data=st.data(), words_per_user=st.integers(1, 4), share=st.sampled_from([0.0, 0.5]))
def test_one_user_more_changes_few_counts_by_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, words_per_user: int, share: float
) -> None:
    text = st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join)
    rows = data.draw(st.lists(st.tuples(st.sampled_from(["ann", "bob", "cyd", "dan"]), text), min_size=1, max_size=8))
    newcomer = [("eve", line) for line in data.draw(st.lists(text, min_size=1, max_size=3))]
    rows.append(("ann", "a"))  # empty text alone is refused
    mixed = rows + newcomer
    random.Random(data.draw(st.integers(0, 9))).shuffle(mixed)
    order = [row for row in mixed if row[0] != "eve"]  # the text of the others is the same text
    grouping = Grouping(tokens_per_user=10, test_users=share)
    before = counts(tmp_path_factory.mktemp("a"), order, words_per_user, grouping)
    after = counts(tmp_path_factory.mktemp("b"), mixed, words_per_user, grouping)
    assert all(after[word] >= count for word, count in before.items())
    change = after - before
    assert set(change.values()) <= {1}
    assert len(change) <= (0 if grouping.holds_out(grouping.name("eve")) else words_per_user)


def test_words_are_picked_evenly(tmp_path: Path) -> None:
    """400 users who share ten words and bring five: about half of them each, whatever the word's place."""
    rows = [(f"user {number}", "a b c d e f g h i j a a a") for number in range(400)]
    found = counts(tmp_path, rows, 5)
    assert found.total() == 2000
    assert all(150 < found[word] < 250 for word in "abcdefghij")


def test_an_empty_corpus_or_no_word_a_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SottoError, match="no record"):
        counts(tmp_path, [], 5)
    with pytest.raises(SottoError, match="words_per_user=0"):
        counts(tmp_path, [("ann", "a")], 0)
