"""Next-token prediction measured privately: bounded counts of each user, and the figures of their noisy sums."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sottovoce.data.store import Store
from sottovoce.evaluation.prediction import TokenKinds, blocks_of, sum_block
from sottovoce.evaluation.ranks import rank_of
from sottovoce.models.contract import LanguageModel
from sottovoce.models.head import cross_entropy
from sottovoce.privacy.bounded_sums import LOSS_STEPS, BoundedSums, NoisySums
from sottovoce_evidence.private_accuracy import WIDTH, PrivateAccuracy, Terms, loss_bound, spread

_ABOVE_NOISE = 10  # standard deviations that the number of targets must be above 0


class BoundedCounts(NamedTuple):
    """Of each user: targets by rank (1, 2 to 3, 4 to 5, others), and the loss over its bound."""

    ranks: np.ndarray
    loss: np.ndarray


def count_bounded(model: LanguageModel, store: Store, tokens_per_user: int) -> BoundedCounts:
    """The counts of every user over the first `tokens_per_user` tokens.

    Guarantee: what is counted of a user depends on that user's text and on the model alone. Users are read one at a
    time, so that no last bit depends on whom they are computed with.
    """
    facts = (TokenKinds.of(store.vocabulary), jnp.float32(loss_bound(store.vocabulary.size)))
    begins, ranks, losses = jnp.asarray(store.vocabulary.specials.begins), [], []
    for tokens, lengths, _ in blocks_of(store, None, 1):
        sums = sum_block(_count, model, begins, tokens, jnp.minimum(lengths, tokens_per_user), facts)
        ranks.append(np.asarray(sums[0], np.float64))
        losses.append(np.asarray(sums[1], np.float64))
    return BoundedCounts(np.concatenate(ranks), np.concatenate(losses))


def _count(
    logits: Float[Array, "time vocabulary"],
    targets: Int[Array, " time"],
    counted: Array,
    facts: tuple[TokenKinds, Array],
) -> tuple[Array, Array]:
    kinds, bound = facts
    rank = jnp.where(kinds.unknown[targets], logits.shape[-1], rank_of(logits, targets))
    group = jnp.searchsorted(jnp.array([1, 3, 5]), rank, side="right")
    ranks = jnp.sum(counted[:, None] * (group[:, None] == jnp.arange(4)), axis=0)
    loss = cross_entropy(logits, targets) / bound
    return ranks, jnp.sum(counted * jnp.where(loss < 1, jnp.maximum(loss, 0), 1))  # NaN counts as the bound


def accuracy_of(sums: NoisySums, mechanism: BoundedSums, terms: Terms) -> PrivateAccuracy:
    """The figures of noisy sums, with intervals that the noise is part of."""
    std = {name: part.noise_std(mechanism.noise_multiplier) for name, part in mechanism.parts.items()}
    targets = sum(sums.ranks)
    found = {"users": max(1, sums.users), "targets": max(0, targets)}
    # The number of targets is a sum of as many noisy counts as there are ranks.
    if targets <= _ABOVE_NOISE * std["ranks"] * math.sqrt(len(sums.ranks)):
        return PrivateAccuracy(terms=terms, **found)
    top = [_share(sum(sums.ranks[:best]) / targets) for best in (1, 2, 3)]
    noise = [std["ranks"] * spread(share, best, len(sums.ranks)) / targets for best, share in enumerate(top, 1)]
    sampled = math.sqrt(_squares_at_most(sums.squares, top[0], std["squares"])) / targets
    loss = max(0.0, sums.loss / LOSS_STEPS / targets)
    off = WIDTH * math.hypot(std["loss"] / LOSS_STEPS, 2 * std["ranks"] * loss) / targets
    low, middle, high = (math.exp(terms.loss_bound * _share(each)) for each in (loss - off, loss, loss + off))
    return PrivateAccuracy(
        terms=terms,
        **found,
        top1=top[0],
        top1_noise=WIDTH * noise[0],
        top1_within=WIDTH * math.hypot(noise[0], sampled),
        top3=top[1],
        top3_noise=WIDTH * noise[1],
        top5=top[2],
        top5_noise=WIDTH * noise[2],
        perplexity=middle,
        perplexity_low=low,
        perplexity_high=high,
    )


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _squares_at_most(squares: tuple[int, ...], share: float, std: float) -> float:
    """An upper bound (97.5 %) of Σ (h - share·n)² over users, from noisy sums of h², h·m and m², where n = h + m."""
    factors = ((1 - share) ** 2, -2 * share * (1 - share), share**2)
    found = sum(factor * square for factor, square in zip(factors, squares, strict=True))
    return max(0.0, found) + WIDTH * std * math.hypot(*factors)
