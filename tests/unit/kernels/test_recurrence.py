"""The recurrence of LSTM layers for a block of users against the scan of the model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.kernels import lstm_cuda, lstm_users, recurrence
from sottovoce.kernels.recurrence import Block, LSTMRecurrence, in_jax
from sottovoce.models.lstm import new_gates, plain_recurrence, read_layer, reading_with

USERS, LANES, TIME, SIZE, HIDDEN = 3, 2, 4, 5, 6


@pytest.mark.parametrize("way", ["own weights", "the same weights", "kernels", "kernels, the same weights"])
def test_a_layer_reads_and_has_the_gradient_of_the_scan(way, monkeypatch):
    """For users with weights of their own, and for users who all have the same."""
    alike, fast_way, within = "the same weights" in way, in_jax(jnp.float32), 2e-6
    if "kernels" in way:  # their plain twins, which take the same arrays; the weight is in float16
        monkeypatch.setattr(lstm_cuda, "_read", lstm_users._read)
        monkeypatch.setattr(lstm_cuda, "_read_back", lstm_users._read_back)
        block = Block(recurrence._read_on_hopper, recurrence._read_back_on_hopper)
        fast_way, within = LSTMRecurrence(jnp.float32, block, (TIME, 4 * HIDDEN)), 2e-3
    keys = jax.random.split(jax.random.key(0), USERS * 4).reshape(USERS, 4)
    gates = new_gates(SIZE, HIDDEN, keys[0]) if alike else jax.vmap(lambda keys: new_gates(SIZE, HIDDEN, keys))(keys)
    normal = np.random.default_rng(0).standard_normal
    inputs = jnp.asarray(normal((USERS, LANES, TIME, SIZE)), jnp.float32)
    state = tuple(jnp.asarray(normal((USERS, LANES, HIDDEN)), jnp.float32) for _ in range(2))
    above = jnp.asarray(normal((USERS, LANES, TIME, HIDDEN)), jnp.float32)

    def read(recurrence):
        def lanes(gates, inputs, state):
            return jax.vmap(lambda inputs, state: read_layer(gates, inputs, state))(inputs, state)

        def users(gates, inputs):
            with reading_with(recurrence):
                return jax.vmap(lanes, in_axes=(None if alike else 0, 0, 0))(gates, inputs, state)

        hidden, back, after = jax.vjp(users, gates, inputs, has_aux=True)
        return hidden, after, back(above)

    fast, slow = jax.jit(lambda: read(fast_way))(), jax.jit(lambda: read(plain_recurrence))()
    for one, other in zip(jax.tree.leaves(fast), jax.tree.leaves(slow), strict=True):
        np.testing.assert_allclose(one, other, atol=within)
    assert np.abs(jax.tree.leaves(slow)[-1]).max() > 0.01


def test_the_weights_of_a_layer_may_not_differ_by_lane():
    words, state = jnp.zeros((LANES, TIME, 4 * HIDDEN)), jnp.zeros((LANES, HIDDEN))
    weights = jnp.zeros((LANES, 4 * HIDDEN, HIDDEN))
    with pytest.raises(NotImplementedError, match="by user, not by lane"):
        jax.vmap(lambda weight, *given: in_jax(jnp.float32)(weight, None, given[0], (given[1], given[1]))[0])(
            weights, words, state
        )


def test_other_weights_and_dropout_of_the_state_read_as_the_model_does(monkeypatch):
    monkeypatch.setattr(recurrence, "plain_recurrence", lambda *given: "the scan")
    weight, words, zeros = jnp.zeros((4 * HIDDEN, HIDDEN)), jnp.zeros((TIME, 4 * HIDDEN)), jnp.zeros(HIDDEN)
    assert in_jax(jnp.float32)(weight, jnp.ones(HIDDEN), words, (zeros, zeros)) == "the scan"
    assert in_jax(jnp.bfloat16)(weight, None, words, (zeros, zeros)) == "the scan"


def test_a_machine_without_a_gpu_reads_in_jax():
    assert recurrence.find_recurrence(8, 10) is in_jax()
    assert in_jax().written is in_jax().others
