"""A person's own model is FedAvg's local training without a clip, and what is told of it is measured on other text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.store import Store
from sottovoce.data.vocabulary import BOS, EOS
from sottovoce.errors import SottoError
from sottovoce.evaluation.fine_tuning import evaluate_personalised
from sottovoce.local.fine_tune import Personalise
from sottovoce.local.update import FedAvg, User
from sottovoce.models.head import cross_entropy
from sottovoce.privacy.clipping import NoClip

KEY = jax.random.key(0)
HABIT = [BOS, *[50, 51, 52, 53] * 10, EOS]


def test_it_is_the_training_of_fedavg_without_a_clip(model) -> None:
    user = User(jnp.asarray(HABIT), jnp.asarray(len(HABIT)))
    own = Personalise(epochs=2, learning_rate=0.5, batch=2, unroll=5)(model, user, KEY)
    local = FedAvg(NoClip(), False, epochs=2, batch=2, unroll=5, learning_rate=0.5)
    sent = local(model, user, KEY, jnp.array([jnp.inf]), local.steps(len(HABIT))).update
    for mine, received, change in zip(*map(jax.tree.leaves, (own, model, sent)), strict=True):
        assert jnp.array_equal(mine, received + change)
    assert any(jnp.any(leaf != 0) for leaf in jax.tree.leaves(sent))


def test_training_that_runs_away_leaves_the_model_as_it_was(model) -> None:
    user = User(jnp.asarray(HABIT), jnp.asarray(len(HABIT)))
    own = Personalise(learning_rate=1e38, batch=2, unroll=5)(model, user, KEY)
    assert all(map(jnp.array_equal, jax.tree.leaves(own), jax.tree.leaves(model)))


@pytest.mark.parametrize(("setting", "value"), [("epochs", 0), ("learning_rate", 0.0), ("learning_rate", float("nan"))])
def test_settings_have_ranges(setting: str, value: float) -> None:
    with pytest.raises(SottoError, match=setting):
        Personalise(**{setting: value})


def test_the_gain_is_measured_on_the_second_half_by_a_model_trained_on_the_first(model, vocabulary) -> None:
    """Against one user at a time; one without text changes nothing; the habitual gain."""
    users = [HABIT, [], HABIT[:21] + [55] * 21]
    training = Personalise(epochs=3, learning_rate=2.0, batch=2, unroll=5)
    found = evaluate_personalised(model, Store.from_users(users, vocabulary), training)
    trained, losses = jax.jit(training), {"before": [], "after": []}
    for stream in (users[0], users[2]):
        half = len(stream) // 2
        own = trained(model, User(jnp.asarray(stream), jnp.asarray(half)), KEY)
        for name, each in (("before", model), ("after", own)):
            outputs, _ = each.read(jnp.asarray([BOS, *stream[:-1]]), each.start())
            losses[name].append(np.asarray(cross_entropy(each.score(outputs), jnp.asarray(stream)))[half:])
    for name, told in (("before", found.before), ("after", found.after)):
        assert told.targets == sum(map(len, losses[name]))
        assert told.perplexity == pytest.approx(np.exp(np.mean(np.concatenate(losses[name]))), rel=1e-3)
    better = [after.sum() < before.sum() for before, after in zip(losses["before"], losses["after"], strict=True)]
    assert found.gained["perplexity"] == np.mean(better)
    assert found.after.top1 > found.before.top1
    assert found.keystrokes_before.characters == found.keystrokes_after.characters == 3 * (20 + 21)
    assert "spread" not in found.to_json()
