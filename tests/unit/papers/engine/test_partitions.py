from __future__ import annotations

import numpy as np
import pytest

from sottovoce.data.store import Store, write_store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.data.words import BOS, EOS, UNK
from sottovoce.papers.engine.partitions import NODES, PIECES, as_plain_text, penn_treebank, pool_users
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words(["one", "two", "three"])


def test_a_benchmark_has_its_own_words_and_only_unk_is_unknown(tmp_path):
    lines = [f"the w{number} N 's <unk> $ u.s." for number in range(40)]
    (tmp_path / "ptb.train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "ptb.test.txt").write_text("".join(" w1 the N <unk> never \n" for _ in range(PIECES)))
    train, test = penn_treebank(tmp_path)
    assert (train.users, test.users, train.people) == (NODES, PIECES, False)
    stream = np.concatenate([train[row] for row in range(NODES)])
    words = train.vocabulary.words
    sentence = [words[token] for token in stream[:9]]
    assert sentence == ["<bos>", "the", "w0", "N", "'s", "<unk>", "$", "u.s.", "<eos>"]
    assert np.sum(stream != BOS) == 40 * 8  # words and ends of lines
    assert np.sum(stream == UNK) == np.sum(stream == EOS) == 40
    for row in range(NODES):  # cut between sentences, into parts of about one length
        assert (train[row][0], train[row][-1]) == (BOS, EOS)
        assert abs(len(train[row]) - len(stream) / NODES) <= 9
    assert [words[token] for token in test[0]] == ["<bos>", "w1", "the", "N", "<unk>", "<unk>", "<eos>"]


@pytest.fixture
def people(tmp_path):
    users = [[BOS, 40, EOS], [BOS, 41, UNK, EOS], [BOS, EOS]]
    letters = [[], [7], []]
    folder = tmp_path / "store"
    folder.mkdir()
    write_store(folder, Store.from_users(users, WORDS, 5, letters), Store.from_users(users[1:], WORDS, 6, letters[1:]))
    return folder


def test_a_store_that_is_written_is_a_store_like_any_other(people):
    train, test = Store.open(people), Store.open(people, "test")
    assert (train.users, test.users, train.tokens_per_user, train.people) == (3, 2, 6, True)
    assert train[1].tolist() == [BOS, 41, UNK, EOS]
    assert test.unknown_letters(0).tolist() == [7]
    assert train.vocabulary == WORDS


def test_pooled_text_is_that_of_the_first_users_in_order(people):
    node, test = pool_users(people, 1, 2)
    assert [node[row].tolist() for row in range(node.users)] == [[BOS, 40, EOS, BOS, 41, UNK, EOS]]
    assert node.tokens_per_user == 7
    assert test.users == 2
    with pytest.raises(SottoError, match="people's text"):
        node.as_public()
    nodes, _ = pool_users(people, 3, 9)
    assert [len(nodes[row]) for row in range(3)] == [3, 4, 2]


def test_public_text_may_be_given_to_everybody(people):
    public, _ = as_plain_text(people)
    assert public.as_public().tokens.tolist() == [BOS, 40, EOS, BOS, 41, UNK, EOS, BOS, EOS]


def test_the_first_users_alone_keep_their_text_and_unknown_words(people):
    few = Store.open(people).head(2)
    assert (few.users, few.tokens_per_user) == (2, 6)
    assert few[1].tolist() == [BOS, 41, UNK, EOS]
    assert few.unknown_letters(1).tolist() == [7]
    assert Store.open(people).head(9).users == 3
