"""What fine-tuning gains is measured on text that was not trained on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.words import BOS, EOS
from sottovoce.evaluation.fine_tuning import evaluate_fine_tuning
from sottovoce.local.fine_tune import FineTune
from sottovoce.local.update import User
from sottovoce.models.head import cross_entropy

KEY = jax.random.key(0)
HABIT = [BOS, *[50, 51, 52, 53] * 10, EOS]


def test_the_gain_is_measured_on_the_second_half_by_a_model_trained_on_the_first(model, vocabulary) -> None:
    """Against one user at a time; one without text changes nothing; the habitual gain."""
    users = [HABIT, [], HABIT[:21] + [55] * 21]
    training = FineTune(epochs=3, learning_rate=2.0, batch=2, unroll=5)
    found = evaluate_fine_tuning(model, Store.from_users(users, vocabulary), training)
    trained, losses = jax.jit(training), {"before": [], "after": []}
    for stream in (users[0], users[2]):
        half = len(stream) // 2
        own = trained(model, User(jnp.asarray(stream), jnp.asarray(half)), KEY)
        for name, each in (("before", model), ("after", own)):
            outputs, _ = each.read(jnp.asarray([BOS, *stream[:-1]]), each.initial_state())
            losses[name].append(np.asarray(cross_entropy(each.logits(outputs), jnp.asarray(stream)))[half:])
    for name, told in (("before", found.before), ("after", found.after)):
        assert told.targets == sum(map(len, losses[name]))
        assert told.perplexity == pytest.approx(np.exp(np.mean(np.concatenate(losses[name]))), rel=1e-3)
    better = [after.sum() < before.sum() for before, after in zip(losses["before"], losses["after"], strict=True)]
    assert found.gained["perplexity"] == np.mean(better)
    assert found.after.top1 > found.before.top1
    assert found.keystrokes_before.characters == found.keystrokes_after.characters == 3 * (20 + 21)
    assert "spread" not in found.to_json()
