"""How many predictions are among the most frequent words (McMahan et al. 2018, Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.data.store import Store
from sottovoce.evaluation.prediction import sum_by_user, token_counts
from sottovoce.models.contract import LanguageModel
from sottovoce_evidence.errors import SottoError

PREDICTIONS = 10
HEADS = (10, 50, 100)


@dataclass(frozen=True)
class HeadWords:
    """For each size n of the head: the share of targets at which 0, 1, ... 10 of the ten likeliest words are in it."""

    histograms: dict[int, tuple[float, ...]]

    @property
    def means(self) -> dict[int, float]:
        """Of ten predictions, how many are head words on average."""
        return {n: sum(count * share for count, share in enumerate(row)) for n, row in self.histograms.items()}

    def to_json(self) -> dict[str, Any]:
        return {str(n): list(row) for n, row in self.histograms.items()}


def head_words(model: LanguageModel, store: Store, rows: Sequence[int] | None = None) -> HeadWords:
    """Predictions at every target of some held-out users. Head words are the most frequent of their own words.

    Words alone are compared, on both sides: punctuation and the end of a text are neither predictions nor head words.
    """
    if not store.vocabulary.is_words:
        raise SottoError("head words are counted where each word is one token, and here words are cut into pieces")
    chosen = range(store.users) if rows is None else rows
    masks = jnp.asarray(store.vocabulary.word_mask), jnp.asarray(_heads(store, chosen))
    total = sum_by_user(_count_heads, model, store, masks, chosen).sum(axis=0)
    shares = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    return HeadWords({n: tuple(float(share) for share in row) for n, row in zip(HEADS, shares, strict=True)})


def _heads(store: Store, rows: Sequence[int]) -> np.ndarray:
    """For each size of the head, which tokens are in it."""
    is_word = store.vocabulary.word_mask
    order = np.argsort(-np.where(is_word, token_counts(store, rows), -1), kind="stable")
    heads = np.zeros((len(HEADS), len(is_word)), np.int32)
    for place, n in enumerate(HEADS):
        heads[place, order[:n]] = 1
    return heads * is_word


def _count_heads(logits: Array, targets: Array, counted: Array, facts: tuple[Array, Array]) -> Array:
    """For each head, at how many targets 0, 1, ... 10 of the likeliest words are in it: [heads, 11]."""
    del targets
    is_word, in_heads = facts
    _, likeliest = jax.lax.top_k(jnp.where(is_word, logits, -jnp.inf), PREDICTIONS)  # [time, 10]
    heads = jnp.sum(in_heads[:, likeliest], axis=-1)  # [heads, time]
    return jnp.sum(counted[:, None] * jax.nn.one_hot(heads, PREDICTIONS + 1), axis=1)
