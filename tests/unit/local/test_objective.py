"""What keeps a device from forgetting: rehearsal of public text, and the received model's own predictions."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import first_of
from family import cut, log_chances, send
from sottovoce.data.store import PublicText
from sottovoce.local.objective import Batch, Penalised, WithoutForgetting, initial_state, plain
from sottovoce.local.update import FedAvg, User, fresh_states
from sottovoce.privacy.clipping import FlatClip

LOCAL = {"batch": 4, "unroll": 3, "learning_rate": 1.5}
KEY, NORMS = jax.random.key(0), jnp.asarray([0.4])
PUBLIC = PublicText(np.arange(10, 50, dtype=np.int32), "words", "text")


def a_user(count: int, public: int, capacity: int = 24) -> User:
    tokens = np.zeros(capacity, np.int32)
    tokens[:count] = np.arange(3, 3 + count)
    return User(jnp.asarray(tokens), jnp.asarray(count), jnp.asarray(np.arange(27, 27 + public, dtype=np.int32)))


def leaves(update) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(update)])


@pytest.mark.parametrize("share", [0.25, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.5, 0.75))])
@pytest.mark.parametrize("count", [0, 1, 11, 24])
def test_the_users_text_is_their_share_of_what_is_read(count, share):
    update = FedAvg(FlatClip(1.0), True, user_share=share, **LOCAL)
    public = int(update.rehearsed(24))
    text = jax.jit(update.text)(a_user(count, public))
    more = int(text.length) - count
    assert more == int(count * (1 / share - 1) + 1e-9)
    assert np.asarray(text.tokens)[: count + more].tolist() == [*range(3, 3 + count), *range(27, 27 + more)]
    assert text.tokens.shape[0] == 24 + public, "a user of full length must not crowd the public text out"
    # The host counts steps before anything is on a device: both must come to the same number.
    steps = cut(text, 4, 3, bos=0)
    assert int(np.asarray(steps.mask).sum(axis=(1, 2)).astype(bool).sum()) == update.steps(count)
    assert np.sum(steps.mask) == count + more


def test_every_step_has_text_of_both_kinds():
    update = FedAvg(FlatClip(1.0), True, user_share=0.5, **LOCAL)
    steps = cut(jax.jit(update.text)(a_user(24, 24)), 4, 3, bos=0)
    own = np.asarray(steps.targets) < 3 + 24
    assert own.sum(axis=(1, 2)).tolist() == [6, 6, 6, 6]


@pytest.mark.slow
def test_whoever_rehearses_everything_of_their_own_trains_as_without(model):
    user = a_user(17, 24)
    usual = FedAvg(FlatClip(0.4), True, **LOCAL)
    alone = User(user.tokens, user.length)
    for other in (usual, replace(usual, objective=WithoutForgetting(1.0))):
        one = send(usual, model, alone, KEY, NORMS, usual.steps(17))
        two = send(other, model, alone, KEY, NORMS, other.steps(17))
        np.testing.assert_allclose(leaves(one.update), leaves(two.update), rtol=0, atol=1e-7)


@pytest.mark.slow
def test_the_public_text_changes_what_is_learned(model):
    update = FedAvg(FlatClip(0.4), True, user_share=0.5, **LOCAL)
    user = a_user(17, 24)
    sent = [
        leaves(send(update, model, user._replace(public=public), KEY, NORMS, update.steps(17)).update)
        for public in (user.public, user.public[::-1])
    ]
    assert np.linalg.norm(sent[0] - sent[1]) > 0.01


def test_excerpts_are_runs_of_the_text_others_in_every_round_and_for_every_user():
    rows = np.arange(200)
    one, again, other = (PUBLIC.excerpts(rows, 5, key) for key in (b"round 1", b"round 1", b"round 2"))
    np.testing.assert_array_equal(one, again)
    assert np.all(np.diff(one, axis=1) == 1)
    assert set(one[:, 0]) == set(range(10, 46)), "every place of the text is drawn, the last one too"
    assert np.mean(one[:, 0] == other[:, 0]) < 0.2
    # A user's excerpt is their own, whoever else is in the block.
    np.testing.assert_array_equal(PUBLIC.excerpts(rows[7:9], 5, b"round 1"), one[7:9])


def a_batch(seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    inputs, targets = generator.integers(3, 60, size=(2, 4, 6), dtype=np.int32)
    return Batch(inputs, targets, np.ones((4, 6), np.float32))


def test_the_target_is_the_truth_mixed_with_the_received_prediction(model):
    """Equations 1 and 2, written out."""
    received = jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(1.5), model)
    batch, objective = a_batch(), WithoutForgetting(0.7)
    losses, _ = jax.jit(objective)(model, received, batch, fresh_states(objective, model, 4), KEY)
    for lane in range(4):
        inputs, targets = (np.asarray(part)[lane] for part in (batch.inputs, batch.targets))
        log_p, soft = np.float64(log_chances(model, inputs)), np.exp(np.float64(log_chances(received, inputs)))
        target = 0.7 * np.eye(60)[targets] + 0.3 * soft
        np.testing.assert_allclose(np.asarray(losses)[lane], -np.sum(target * log_p, axis=-1), rtol=1e-5)


def test_a_model_that_only_imitates_itself_stands_still(model):
    objective = WithoutForgetting(0.0)

    @jax.jit
    @jax.grad
    def slope(trained):
        return jnp.sum(objective(trained, model, a_batch(), fresh_states(objective, model, 4), KEY)[0])

    assert np.abs(leaves(slope(model))).max() < 1e-4
    moved = jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(1.2), model)
    assert np.abs(leaves(slope(moved))).max() > 1e-2


@pytest.mark.parametrize("wrap", first_of([lambda objective: objective, lambda objective: Penalised(objective, 0.1)]))
def test_the_received_model_reads_on_where_it_stopped(model, wrap):
    received = jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(1.5), model)
    batch, objective = a_batch(), wrap(WithoutForgetting(0.5))
    losses_of = jax.jit(objective)
    whole, end = losses_of(model, received, batch, fresh_states(objective, model, 4), KEY)
    state, parts = fresh_states(objective, model, 4), []
    for half in (slice(0, 3), slice(3, 6)):
        losses, state = losses_of(model, received, Batch(*(part[:, half] for part in batch)), state, KEY)
        parts.append(losses)
    np.testing.assert_allclose(whole, np.concatenate(parts, axis=1), rtol=1e-5)
    for a, b in zip(*map(jax.tree.leaves, (end, state)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_an_objective_without_memory_begins_with_the_models_state(model):
    assert jax.tree.structure(initial_state(plain, model)) == jax.tree.structure(model.initial_state())
