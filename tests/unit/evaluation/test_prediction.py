from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from family import log_chances
from sottovoce.data.store import Store
from sottovoce.data.words import BOS, EOS, UNK
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.prediction import (
    average_perplexity,
    count_hits,
    evaluate,
    spread,
    summarise,
)  # fmt: skip


class Parrot:
    """Predicts that every word repeats, then the next ids in order."""

    def __init__(self, size: int):
        self.size = size

    def initial_state(self):
        return jnp.zeros(())

    def read(self, tokens, state, key=None):
        return tokens.astype(jnp.float32)[:, None], state

    def logits(self, outputs):
        distance = jnp.mod(jnp.arange(self.size) - outputs, self.size)
        return -distance


jax.tree_util.register_pytree_node(Parrot, lambda p: ((), p.size), lambda size, _: Parrot(size))


def test_accuracy_by_hand(vocabulary):
    word = 50
    stream = [BOS, word, word, word + 2, word + 6, UNK, UNK, EOS, EOS]
    store = Store.from_users([stream], vocabulary, tokens_per_user=20)
    result = evaluate(Parrot(vocabulary.size), store)
    # Targets: w after BOS (wrong), w after w (rank 0), w+2 (rank 2), w+6 (rank 4), UNK (wrong), UNK after UNK (a
    # mistake, though predicted), EOS after UNK (wrong), EOS after EOS (rank 0).
    assert result.targets == 8
    assert result.top1 == pytest.approx(2 / 8)
    assert result.top3 == pytest.approx(3 / 8)
    assert result.top5 == pytest.approx(4 / 8)
    assert result.oov_rate == pytest.approx(2 / 8)
    # Words: four in the vocabulary and two outside; one of them is right.
    assert result.top1_words == pytest.approx(1 / 6)


def test_perplexity_by_hand(any_model, vocabulary):
    model = any_model
    stream = [BOS, 50, UNK, 51, EOS, BOS, 52, EOS]
    store = Store.from_users([stream], vocabulary, tokens_per_user=20)
    chances = np.asarray(log_chances(model, np.array([BOS, *stream[:-1]])))
    losses = [(token, -row[token]) for token, row in zip(stream, chances, strict=True) if token != BOS]
    result = evaluate(model, store)
    assert result.perplexity == pytest.approx(np.exp(np.mean([loss for _, loss in losses])), rel=1e-4)
    known = [loss for token, loss in losses if token != UNK]
    assert result.perplexity_in_vocabulary == pytest.approx(np.exp(np.mean(known)), rel=1e-4)


def test_the_state_runs_on_through_a_users_texts_and_not_into_the_next_user(model, vocabulary):
    first, second = [BOS, 50, 51, EOS], [BOS, 52, EOS]
    together = evaluate(model, Store.from_users([first + second], vocabulary, tokens_per_user=20))
    apart = evaluate(model, Store.from_users([first, second], vocabulary, tokens_per_user=20))
    assert together.targets == apart.targets
    assert together.perplexity != pytest.approx(apart.perplexity, rel=1e-6)
    swapped = evaluate(model, Store.from_users([second, first], vocabulary, tokens_per_user=20))
    assert swapped.perplexity == pytest.approx(apart.perplexity, rel=1e-5)


@pytest.mark.slow
def test_blocks_and_padding_do_not_change_the_result(model, store):
    one, many = (summarise(count_hits(model, store, block=block), Text.of(store)) for block in (1, 5))
    assert one.targets == many.targets
    assert one.perplexity == pytest.approx(many.perplexity, rel=1e-4)
    assert one.top5 == many.top5


def test_users_are_measured_in_the_order_in_which_they_are_asked_for(model, store):
    rows = [7, 2, 11, 4, 9]
    together, alone = count_hits(model, store, rows), [count_hits(model, store, [row]) for row in rows]
    for place, column in enumerate(together):
        np.testing.assert_allclose(column, np.concatenate([one[place] for one in alone]), rtol=1e-5)
    assert len(np.unique(together.targets)) > 1


def test_long_users_are_read_to_their_end(model, vocabulary):
    stream = [BOS, *([50, 51, 52] * 60), EOS]  # several chunks, not a whole number of them
    result = evaluate(model, Store.from_users([stream], vocabulary))
    assert result.targets == len(stream) - 1


def test_a_model_gone_to_nan_is_not_called_perfect(model, store):
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, model)
    result = evaluate(broken, store)
    assert result.top1 == 0
    assert result.to_json()["perplexity"] is None


def test_the_average_perplexity_is_that_of_the_papers_tables():
    """Popov et al. 2018, Tables 1 and 2: all thirteen rows, public text and users' text, as printed."""
    rows = [
        (100.1, 336.0, 192.6), (121.3, 127.9, 124.8), (131.1, 109.7, 119.1), (149.0, 99.7, 119.9),
        (128.4, 162.8, 146.0), (147.0, 121.7, 132.7), (186.5, 101.1, 133.9), (265.1, 93.4, 150.8),
        (109.2, 259.7, 174.4), (112.3, 246.0, 171.6), (108.7, 261.2, 174.6), (102.8, 233.8, 160.3),
        (105.5, 109.3, 107.5),
    ]  # fmt: skip
    for public, users, average in rows:
        assert average_perplexity([(public, 170_000), (users, 200_000)]) == pytest.approx(average, abs=0.06)
    assert average_perplexity([(np.inf, 10), (3.0, 10)]) == np.inf


def test_the_average_of_parts_is_the_perplexity_of_the_whole(model, store):
    parts = [evaluate(model, store, rows) for rows in (range(5), range(5, store.users))]
    whole = evaluate(model, store)
    assert average_perplexity([(part.perplexity, part.targets) for part in parts]) == pytest.approx(whole.perplexity)


def test_spread_over_users(vocabulary):
    store = Store.from_users([[BOS, 50, 50], [BOS, 50, 52]], vocabulary, tokens_per_user=5)
    found = spread(count_hits(Parrot(vocabulary.size), store))
    assert found["top1_p5"] < found["top1_p95"] <= 0.5
