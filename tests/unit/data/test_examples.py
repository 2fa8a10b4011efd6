"""Examples of users: excerpts of one length, so many of a user at most, and no token twice."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.data.examples import example_rows, examples_of
from sottovoce.data.store import Store

LENGTH, MOST = 4, 3
LENGTHS = [0, 1, 4, 5, 11, 12, 13, 20]


@pytest.fixture
def people(vocabulary) -> Store:
    return Store.from_users([np.arange(n) % 20 + 30 for n in LENGTHS], vocabulary, tokens_per_user=20)


def test_a_users_examples_are_the_beginning_of_their_text_in_pieces(people):
    examples = examples_of(people, LENGTH, MOST)
    assert len(examples) == len(LENGTHS) * MOST
    assert examples.tokens_per_user == LENGTH
    for user in range(len(LENGTHS)):
        rows = [examples[user * MOST + place] for place in range(MOST)]
        assert np.concatenate(rows).tolist() == people[user][: LENGTH * MOST].tolist(), "each token once, in order"
        assert all(len(row) <= LENGTH for row in rows)


def test_a_user_has_as_many_rows_whatever_they_wrote(people):
    """So nobody has more examples than are paid for, and no row of another moves with how much one wrote."""
    examples, rows = examples_of(people, LENGTH, MOST), np.arange(len(LENGTHS) * MOST)
    lengths = examples.lengths(rows).reshape(-1, MOST)
    assert example_rows(people, LENGTH, MOST).with_text == np.sum(lengths > 0)
    assert lengths.tolist() == [[min(max(n - LENGTH * j, 0), LENGTH) for j in range(MOST)] for n in LENGTHS]
    shorter = examples_of(people.without(5), LENGTH, MOST)
    others = rows[rows // MOST != 5]
    assert np.array_equal(shorter.gather(others).tokens, examples.gather(others).tokens)
    assert not shorter.lengths(rows[rows // MOST == 5]).any()


def test_rows_are_gathered_in_any_order_as_blocks_of_examples(people):
    examples, rows = examples_of(people, LENGTH, MOST), np.array([23, 0, 13, 12, 14])
    block = examples.gather(rows, padded_size=7)
    assert block.tokens.shape == (7, LENGTH)
    for tokens, length, row in zip(block.tokens, block.lengths, rows, strict=False):
        assert tokens[:length].tolist() == examples[int(row)].tolist()
        assert not tokens[length:].any()
    assert not block.lengths[5:].any()
    with pytest.raises(IndexError):
        examples.gather([len(LENGTHS) * MOST])
