"""What a user gains who fine-tunes a released model on their own text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.data.store import Store
from sottovoce.evaluation import keystrokes, prediction
from sottovoce.evaluation.bits_per_byte import Text, UserText
from sottovoce.evaluation.figures import Evaluation
from sottovoce.evaluation.keystrokes import SUGGESTIONS, KeystrokeCounts, KeystrokeSaving, Typing
from sottovoce.evaluation.prediction import Counts, TokenKinds
from sottovoce.evaluation.ranks import ranks_of
from sottovoce.local.fine_tune import FineTune
from sottovoce.local.update import User, local_steps
from sottovoce.models.contract import LanguageModel, join, split


@dataclass(frozen=True)
class FineTuningGain:
    """The second half of every user's text, by the model as released and by the one trained on the first half.

    `gained` has shares of the users who have text to measure: more top-1 hits, a lower perplexity, fewer keystrokes.
    Keystrokes are measured where each word is one token.
    """

    before: Evaluation
    after: Evaluation
    keystrokes_before: KeystrokeSaving | None
    keystrokes_after: KeystrokeSaving | None
    gained: dict[str, float]
    spread: dict[str, float]  # of the gain in top-1 over single users: internal

    def to_json(self) -> dict[str, Any]:
        """Without the spread."""
        return {
            "before": {**self.before.to_json(), **(self.keystrokes_before.to_json() if self.keystrokes_before else {})},
            "after": {**self.after.to_json(), **(self.keystrokes_after.to_json() if self.keystrokes_after else {})},
            "gained": self.gained,
        }


def evaluate_fine_tuning(
    model: LanguageModel, store: Store, fine_tune: FineTune, seed: int = 0, suggestions: int = SUGGESTIONS
) -> FineTuningGain:
    """Train on the first half of each user's tokens, measure on the rest; both models have read the first half."""
    tokenizer = store.vocabulary
    typing = keystrokes.typing_of(tokenizer, suggestions) if tokenizer.is_words else None
    facts, begins = (TokenKinds.of(tokenizer), typing), jnp.asarray(tokenizer.specials.begins)
    key, parts = jax.random.key(seed), []
    for number, (tokens, lengths, users) in enumerate(prediction.blocks_of(store, None)):
        keys = jax.random.split(jax.random.fold_in(key, number), len(tokens))
        sums = _measure_block(fine_tune, model, begins, (tokens, lengths, keys), facts)
        parts.append(jax.tree.map(lambda column, users=users: np.asarray(column, np.float64)[:, :users], sums))
    both = jax.tree.map(lambda *columns: np.concatenate(columns, axis=1), *parts)
    (before, typed_before), (after, typed_after) = (
        jax.tree.map(lambda column, which=which: column[which], both) for which in (0, 1)
    )
    halves = [_second_half(store, row) for row in range(store.users)]
    text = Text.of_users(tokenizer, halves)
    gained, typed = _gained(before, after), []
    if typing is not None:
        unknown = np.array([math.nan if letters is None else float(letters.sum()) for _, letters in halves])
        typed = [KeystrokeCounts(*each, unknown=unknown) for each in (typed_before, typed_after)]
        gained |= _gained_keystrokes(*typed)
    saved = [keystrokes.saving(each, suggestions) for each in typed] or [None, None]
    return FineTuningGain(
        before=prediction.summarise(before, text),
        after=prediction.summarise(after, text),
        keystrokes_before=saved[0],
        keystrokes_after=saved[1],
        gained=gained,
        spread=_spread(before, after),
    )


@partial(jax.jit, static_argnums=0)
def _measure_block(
    fine_tune: FineTune,
    model: LanguageModel,
    begins: Array,
    users: tuple[Array, Array, Array],
    facts: tuple[TokenKinds, Typing | None],
) -> Any:
    """The sums of both models [before and after, users]; `users` are their tokens, lengths and keys."""
    (tokens, lengths, keys), (kinds, typing) = users, facts
    halves = lengths // 2
    # All users of a block share a program; it takes as many steps as the longest half needs.
    last = local_steps(jnp.max(halves), fine_tune.batch, fine_tune.unroll)

    def measure(logits: Array, targets: Array, counted: Array) -> Any:
        typed = None if typing is None else keystrokes.keystrokes_of_targets(logits, targets, counted, typing)
        return prediction.count_targets(ranks_of(logits, targets), targets, counted, kinds), typed

    def one(tokens: Array, length: Array, half: Array, key: Array) -> Any:
        params, frozen = split(model)
        own, _ = split(fine_tune(model, User(tokens, half), key, last))
        both = jax.tree.map(lambda released, changed: jnp.stack([released, changed]), params, own)
        return jax.vmap(
            lambda each: prediction.sum_over_targets(join(each, frozen), begins, tokens, length, measure, half)
        )(both)

    return jax.vmap(one, out_axes=1)(tokens, lengths, halves, keys)


def _second_half(store: Store, row: int) -> UserText:
    tokens, letters = store[row], store.unknown_letters(row)
    half = len(tokens) // 2
    first = int(np.sum(tokens[:half] == store.vocabulary.specials.unk))
    return tokens[half:], None if letters is None else letters[first:]


def _gained(before: Counts, after: Counts) -> dict[str, float]:
    measured = before.targets > 0
    return {
        "top1": float(np.mean((after.top1 > before.top1)[measured])),
        "perplexity": float(np.mean((after.loss < before.loss)[measured])),
    }


def _gained_keystrokes(before: KeystrokeCounts, after: KeystrokeCounts) -> dict[str, float]:
    wrote = before.letters > 0
    return {"keystrokes": float(np.mean((after.typed < before.typed)[wrote])) if wrote.any() else 0.0}


def _spread(before: Counts, after: Counts) -> dict[str, float]:
    measured = before.targets > 0
    return prediction.quantiles("top1_gain", (after.top1 - before.top1)[measured] / before.targets[measured])
