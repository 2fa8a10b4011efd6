"""What a person gains who trains a released model further on text of their own."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import UNK
from sottovoce.evaluation.keystrokes import (
    SUGGESTIONS,
    KeystrokeCounts,
    KeystrokeSaving,
    Typing,
    keystrokes_of_targets,
    saving,
    typing_of,
)
from sottovoce.evaluation.prediction import (
    Counts,
    Evaluation,
    blocks_of,
    count_targets,
    sum_over_targets,
    summarise,
)
from sottovoce.local.fine_tune import Personalise
from sottovoce.local.update import User
from sottovoce.models.contract import LanguageModel


@dataclass(frozen=True)
class Personalised:
    """The second half of every user's text, by the model as released and by the one trained on the first half.

    `gained` are shares of the users with text to tell by: more top-1 hits, a lower perplexity, fewer keystrokes.
    """

    before: Evaluation
    after: Evaluation
    keystrokes_before: KeystrokeSaving
    keystrokes_after: KeystrokeSaving
    gained: dict[str, float]
    spread: dict[str, float]  # of the gain in top-1 over single users: internal

    def to_json(self) -> dict[str, Any]:
        """Without the spread."""
        return {
            "before": {**self.before.to_json(), **asdict(self.keystrokes_before)},
            "after": {**self.after.to_json(), **asdict(self.keystrokes_after)},
            "gained": self.gained,
        }


def evaluate_personalised(
    model: LanguageModel, store: Store, personalise: Personalise, seed: int = 0, suggestions: int = SUGGESTIONS
) -> Personalised:
    """Train on the first half of each user's tokens, measure on the rest; both models have read the first half."""
    typing = typing_of(store.vocabulary, suggestions)
    is_word = jnp.asarray(store.vocabulary.word_mask)
    key, parts = jax.random.key(seed), []
    for number, (tokens, lengths, users) in enumerate(blocks_of(store, None)):
        keys = jax.random.split(jax.random.fold_in(key, number), len(tokens))
        sums = _measure_block(
            model, tokens, lengths, keys, is_word, typing, jnp.asarray(suggestions), personalise=personalise
        )
        parts.append(jax.tree.map(lambda column, users=users: np.asarray(column, np.float64)[:, :users], sums))
    both = jax.tree.map(lambda *columns: np.concatenate(columns, axis=1), *parts)
    before, after = (jax.tree.map(lambda column, which=which: column[which], both) for which in (0, 1))
    unknown = np.array([_unknown_letters(store, row) for row in range(store.users)])
    typed = [KeystrokeCounts(*half[1], unknown=unknown) for half in (before, after)]
    return Personalised(
        before=summarise(before[0]), after=summarise(after[0]),
        keystrokes_before=saving(typed[0], suggestions), keystrokes_after=saving(typed[1], suggestions),
        gained=_gained(before[0], after[0], typed[0], typed[1]), spread=_spread(before[0], after[0]),
    )  # fmt: skip


@partial(jax.jit, static_argnames="personalise")
def _measure_block(
    model: LanguageModel, tokens: Array, lengths: Array, keys: Array, is_word: Array, typing: Typing,
    suggestions: Array, *, personalise: Personalise,
) -> Any:  # fmt: skip
    halves = lengths // 2
    # All users of a block share a program; nobody takes more steps than the longest half needs.
    each = -(-jnp.max(halves) // personalise.batch)
    last = -(-each // personalise.unroll)

    def measure(scores: Array, targets: Array, counted: Array) -> Any:
        return (
            count_targets(scores, targets, counted, is_word),
            keystrokes_of_targets(scores, targets, counted, typing, suggestions),
        )

    def one(tokens: Array, length: Array, half: Array, key: Array) -> Any:
        own = personalise(model, User(tokens, half), key, last)
        both = jax.tree.map(lambda released, changed: jnp.stack([released, changed]), model, own)
        return jax.vmap(lambda each: sum_over_targets(each, tokens, length, measure, start=half))(both)

    return jax.vmap(one, out_axes=1)(tokens, lengths, halves, keys)  # [before and after, users]


def _unknown_letters(store: Store, row: int) -> float:
    """Of the second half of a user's tokens."""
    tokens, letters = store[row], store.unknown_letters(row)
    first = int(np.sum(tokens[: len(tokens) // 2] == UNK))
    return math.nan if letters is None else float(letters[first:].sum())


def _gained(before: Counts, after: Counts, typed: KeystrokeCounts, typed_after: KeystrokeCounts) -> dict[str, float]:
    told, wrote = before.targets > 0, typed.letters > 0
    return {
        "top1": float(np.mean((after.top1 > before.top1)[told])),
        "perplexity": float(np.mean((after.loss < before.loss)[told])),
        "keystrokes": float(np.mean((typed_after.typed < typed.typed)[wrote])) if wrote.any() else 0.0,
    }


def _spread(before: Counts, after: Counts) -> dict[str, float]:
    told = before.targets > 0
    gains = (after.top1 - before.top1)[told] / before.targets[told]
    return {f"top1_gain_p{share}": float(np.quantile(gains, share / 100)) for share in (5, 25, 50, 75, 95)}
