"""Baselines of public text that any model must beat: a unigram, and a keyboard that always suggests the same.

The unigram predicts each token, at every place, as often as it occurs in public text. The constant suggestions are
taken from the ten most frequent tokens of public text, in the order that suits the evaluated users best: a model that
is no better has learned nothing. Where no public text has the words, the ten are the end of a text, common marks and
the first words of a public list. No other user's text goes into any of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.figures import Evaluation
from sottovoce.evaluation.prediction import Counts, summarise, token_counts

_CANDIDATES = 10
_MARKS = ".,?!。、।،؟"  # frequent in any text of the scripts that have them
_LEAST_SHARED = 0.5  # of a vocabulary's words: with fewer, it is of another language, or of other text


@dataclass(frozen=True, eq=False)
class Frequencies:
    """How often public text has each token of a vocabulary."""

    source: str
    counts: np.ndarray

    @classmethod
    def of(cls, source: str, counted: Mapping[str, int], vocabulary: Tokenizer) -> Frequencies | None:
        """The counts of these tokens for a vocabulary; None where too few of its words were counted.

        What the vocabulary does not have is unknown. Tokens that are not words have no counts.
        """
        if not isinstance(vocabulary, Vocabulary):
            return None
        words = vocabulary.words[vocabulary.frame_size :]
        if sum(word in counted for word in words) < _LEAST_SHARED * len(words):
            return None
        counts = np.array([counted.get(word, 0) for word in vocabulary.words], np.int64)
        unknown = vocabulary.specials.unk
        if unknown is not None:
            counts[unknown] += sum(counted.values()) - counts.sum()
        return cls(source, counts)


class Unigram(eqx.Module):
    """The same probabilities at every place, as a model."""

    logarithms: Float[Array, " vocabulary"]

    @classmethod
    def of(cls, frequencies: Frequencies) -> Unigram:
        """A token that public text does not have counts as if it were there once."""
        return cls(jnp.log(jnp.maximum(jnp.asarray(frequencies.counts, jnp.float32), 1.0)))

    @classmethod
    def in_order(cls, vocabulary: Tokenizer) -> Unigram:
        """The order of a list alone: each token is likelier than the next."""
        return cls(-jnp.arange(vocabulary.size, dtype=jnp.float32))

    def initial_state(self) -> Array:
        return jnp.zeros(())

    def read(self, tokens: Array, state: Array, key: Array | None = None) -> tuple[Array, Array]:
        return jnp.zeros((len(tokens), 0)), state

    def logits(self, outputs: Array) -> Array:
        return jnp.broadcast_to(self.logarithms, (*outputs.shape[:-1], len(self.logarithms)))


class BaselineEvaluations(NamedTuple):
    """The baselines on some users; `token` is what the constant keyboard suggests first."""

    token: int
    constant: Evaluation
    unigram: Evaluation | None = None  # None where no public text has the words


def common_tokens(vocabulary: Tokenizer, *, listed: bool) -> np.ndarray:
    """Tokens that are frequent in any text, where none was counted; with words if these are `listed` by frequency."""
    marks = [tokens[0] for mark in _MARKS if len(tokens := vocabulary.encode(mark)[1:-1]) == 1]
    words = np.flatnonzero(vocabulary.word_mask).tolist() if listed else []
    found = dict.fromkeys((vocabulary.specials.eos, *marks, *words))
    return np.array([token for token in found if token != vocabulary.specials.unk][:_CANDIDATES])


def evaluate_baselines(
    frequencies: Frequencies | None, store: Store, rows: Sequence[int], *, listed: bool = False
) -> BaselineEvaluations:
    """As `evaluate` does for a model. A token that public text does not have counts as if it were there once.

    Without frequencies there is no unigram; `listed`: the words of the vocabulary are in a public order.
    """
    vocabulary = store.vocabulary
    begins, unk = [*vocabulary.specials.begins], vocabulary.specials.unk
    targets, text = token_counts(store, rows), Text.of(store, rows)
    targets[begins] = 0
    known = targets.copy()
    if unk is not None:
        known[unk] = 0

    def measured(first: np.ndarray, loss: float, loss_known: float) -> Evaluation:
        sums = Counts(
            targets=targets.sum(),
            known=known.sum(),
            words=targets[vocabulary.starts_word].sum(),
            top1=known[first[:1]].sum(),
            top3=known[first[:3]].sum(),
            top5=known[first[:5]].sum(),
            top1_words=(known * vocabulary.starts_word)[first[:1]].sum(),
            loss=loss,
            loss_known=loss_known,
        )
        found = summarise(Counts(*(np.array([float(value)]) for value in sums)), text)
        return replace(found, users=len(rows))

    def constant(candidates: np.ndarray) -> BaselineEvaluations:
        best = candidates[np.argsort(-known[candidates], kind="stable")]
        certain = measured(best, math.inf, math.inf)  # of one token, and infinitely wrong at others
        return BaselineEvaluations(int(best[0]), certain)

    if frequencies is None:
        return constant(common_tokens(vocabulary, listed=listed))
    weight = np.maximum(frequencies.counts, 1.0)
    weight[begins] = 0
    loss = -np.log(np.maximum(weight, 1.0) / weight.sum())
    order = np.argsort(-frequencies.counts, kind="stable")
    order = order[~np.isin(order, begins) & (order != (-1 if unk is None else unk))]
    unigram = measured(order, float(targets @ loss), float(known @ loss))
    return constant(order[:_CANDIDATES])._replace(unigram=unigram)
