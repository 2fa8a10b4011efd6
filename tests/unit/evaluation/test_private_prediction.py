"""What is counted of a user is bounded and of that user alone, and intervals are as wide as the noise."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.words import BOS, EOS, UNK
from sottovoce.evaluation import private_prediction
from sottovoce.evaluation.prediction import TokenKinds, count_hits
from sottovoce.evaluation.private_prediction import accuracy_of, count_bounded, loss_bound
from sottovoce.privacy.bounded_sums import LOSS_STEPS, BoundedSums, NoisySums
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms

MECHANISM = BoundedSums(1.0, 50)
TERMS = Terms(4.0, 1e-6, 1.0, 50, 10.0)


def test_the_counts_are_those_of_the_exact_evaluation_of_the_first_tokens(model, store):
    found = count_bounded(model, store, 20)
    first = Store.from_users([store[row][:20] for row in range(store.users)], store.vocabulary, store.tokens_per_user)
    exact = count_hits(model, first)
    np.testing.assert_array_equal(found.ranks.sum(axis=1), exact.targets)
    np.testing.assert_array_equal(np.cumsum(found.ranks, axis=1)[:, :3].T, [exact.top1, exact.top3, exact.top5])
    np.testing.assert_allclose(found.loss * loss_bound(store.vocabulary.size), exact.loss, rtol=1e-5)


def test_a_users_counts_do_not_depend_on_the_others(model, store):
    everyone = count_bounded(model, store, 30)
    alone = Store.from_users([store[5]], store.vocabulary, store.tokens_per_user)
    found = count_bounded(model, alone, 30)
    np.testing.assert_array_equal(found.ranks[0], everyone.ranks[5])
    assert found.loss[0] == everyone.loss[5]  # to the last bit


def test_ranks_and_losses_by_hand(vocabulary):
    logits = jnp.zeros((6, vocabulary.size)).at[:, 7].set(50.0).at[:, 8].set(49.0).at[:, 9].set(48.5)
    logits = logits.at[5, 7].set(jnp.nan)
    targets, counted = jnp.array([7, 9, 20, UNK, EOS, 7]), jnp.array([1.0, 1, 1, 1, 0, 1])
    facts = (TokenKinds.of(vocabulary), jnp.float32(loss_bound(vocabulary.size)))
    ranks, loss = jax.jit(private_prediction._count)(logits, targets, counted, facts)
    # The first of all, the third, one far behind with a loss at the bound, UNK, EOS that does not count, and NaN.
    assert ranks.tolist() == [1, 1, 0, 3]
    near = [-math.log(math.exp(top) / (math.exp(50) + math.exp(49) + math.exp(48.5))) for top in (50, 48.5)]
    assert float(loss) == pytest.approx(sum(near) / loss_bound(vocabulary.size) + 3, rel=1e-5)


def test_figures_of_sums_without_luck():
    sums = NoisySums((30_000, 20_000, 10_000, 140_000), 200_000 * LOSS_STEPS // 2, (1_000_000, 0, 30_000_000), 4_000)
    found = accuracy_of(sums, MECHANISM, TERMS)
    assert (found.users, found.targets) == (4_000, 200_000)
    assert (found.top1, found.top3, found.top5) == pytest.approx((0.15, 0.25, 0.3))
    assert found.perplexity == pytest.approx(math.exp(5))
    assert found.perplexity_low < found.perplexity < found.perplexity_high
    std = 50 / math.sqrt(0.5)
    # H - 0.15 N has 0.85 of the noise of the first count, and 0.15 of that of three others.
    assert found.top1_noise == pytest.approx(1.96 * std * math.sqrt(0.85**2 + 3 * 0.15**2) / 200_000)
    squares = 0.85**2 * 1_000_000 + 0.15**2 * 30_000_000
    squares += 1.96 * 2500 / math.sqrt(0.1) * math.hypot(0.85**2, 2 * 0.15 * 0.85, 0.15**2)
    both = math.hypot(found.top1_noise, 1.96 * math.sqrt(squares) / 200_000)
    assert found.top1_within == pytest.approx(both)
    assert PrivateAccuracy.from_json(found.to_json()) == found


def test_noise_that_hides_everything_gives_no_figure():
    found = accuracy_of(NoisySums((300, -20, 500, 600), -5, (0, 0, 0), -7), MECHANISM, TERMS)
    assert found.is_hidden
    assert (found.users, found.targets, found.top1, found.perplexity) == (1, 1380, None, None)


def test_95_of_100_intervals_hold_the_exact_figure():
    """Of the same users, by the noise alone; and of the population, by users drawn anew as well."""
    generator, held, held_of_all = np.random.default_rng(5), 0, 0
    parts = MECHANISM.parts
    for _ in range(400):
        targets = generator.integers(10, 51, 600)
        hits = generator.binomial(targets, generator.beta(6, 24, 600))
        ranks = np.stack([hits, np.zeros(600), np.zeros(600), targets - hits], axis=1)
        exact = MECHANISM.bounded(ranks, targets / 2).sum(axis=0)
        noise = np.concatenate(
            [generator.normal(0, part.noise_std(1.0), exact[part.columns].size) for part in parts.values()]
        )
        noisy = [int(value) for value in np.rint(exact + noise)]
        found = accuracy_of(NoisySums(tuple(noisy[:4]), noisy[4], tuple(noisy[5:8]), noisy[8]), MECHANISM, TERMS)
        held += abs(found.top1 - hits.sum() / targets.sum()) <= found.top1_noise
        held_of_all += abs(found.top1 - 0.2) <= found.top1_within
    assert 365 <= held <= 393  # 380 expected, standard deviation 4.4
    assert held_of_all >= 375  # wider: the spread over users is known with noise, and taken at its upper bound


def test_bos_is_no_target(model, vocabulary):
    store = Store.from_users([[BOS, 9, EOS, BOS, 9, EOS]], vocabulary, 48)
    assert count_bounded(model, store, 4).ranks.sum() == 2
