from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import first_of
from family import read
from sottovoce.models.contract import parameter_count
from sottovoce.models.lstm import read_layer
from sottovoce.models.stacked_lstm import StackedLSTM

KEY, TOKENS = jax.random.key(4), np.arange(3, 13)


def make(**settings) -> StackedLSTM:
    return StackedLSTM(60, **{"embedding": 12, "hidden": 16, "dropout": 0.5, **settings}, key=jax.random.key(0))


def test_the_model_of_popov_and_others_has_its_size():
    """Two layers of 650 and 30,000 words; a layer has four gates on 650 + 650 inputs, each with a bias."""
    shapes = jax.eval_shape(lambda key: StackedLSTM(30_000, key=key), jax.random.key(0))
    assert parameter_count(shapes) == 2 * 30_000 * 650 + 30_000 + 2 * 4 * (650 * 1300 + 650) == 45_795_200


@pytest.mark.slow
def test_without_dropout_it_is_one_layer_after_another():
    model = make(layers=3)
    words = np.asarray(model.embedding)[TOKENS]
    for layer, state in zip(model.layers, model.initial_state(), strict=True):
        gates = (layer.input_gate, layer.forget_gate, layer.cell_gate, layer.output_gate)
        words, _ = jax.jit(read_layer)(gates, words, state)
    outputs, _ = read(model, TOKENS, model.initial_state())
    np.testing.assert_array_equal(outputs, words)
    np.testing.assert_allclose(model.logits(outputs), words @ model.output.T + model.output_bias, rtol=1e-5)


def test_a_tied_table_is_the_embedding_as_it_is_with_a_bias():
    """Held at a length of 1 without a bias, nothing but the frequency of words was learned."""
    model = make(hidden=12, tied=True)
    assert model.output is None
    object.__setattr__(model, "output_bias", jnp.arange(60.0))
    outputs, _ = read(model, TOKENS, model.initial_state())
    np.testing.assert_allclose(model.logits(outputs), outputs @ model.embedding.T + jnp.arange(60.0), rtol=1e-5)
    object.__setattr__(model, "embedding", 3 * model.embedding)
    assert not np.allclose(read(model, TOKENS, model.initial_state())[0], outputs)
    shapes = jax.eval_shape(lambda key: StackedLSTM(10_033, embedding=1500, tied=True, key=key), jax.random.key(0))
    assert parameter_count(shapes) == 10_033 * 1501 + 2 * 4 * (1500 * 3000 + 1500)


def test_there_is_no_dropout_in_use_and_none_at_zero():
    model = make()
    used = read(model, TOKENS, model.initial_state())[0]
    np.testing.assert_array_equal(used, read(model, TOKENS, model.initial_state())[0])
    assert np.all(used != 0)
    none = make(dropout=0.0)
    np.testing.assert_array_equal(read(none, TOKENS, none.initial_state(), KEY)[0], used)


@pytest.mark.slow
@pytest.mark.parametrize("variational", first_of([False, True]))
def test_half_of_what_leaves_the_last_layer_is_zero_in_training(variational):
    model = make(variational=variational, hidden=400, layers=1)
    dropped = np.asarray(read(model, TOKENS, model.initial_state(), KEY)[0] == 0)
    assert 0.4 < dropped.mean() < 0.6
    # Zaremba: a mask for every moment. Gal: one for all moments of the unroll.
    assert (len({tuple(row) for row in dropped}) == 1) == variational


@pytest.mark.slow
def test_only_variational_dropout_is_on_what_a_layer_says_to_itself():
    """With the layer's inputs taken away, the state after a while depends on the key only by the recurrent mask."""
    for variational in (False, True):
        model = make(variational=variational, layers=1)
        object.__setattr__(model, "embedding", jnp.zeros_like(model.embedding))
        begun = jax.tree.map(jnp.ones_like, model.initial_state())  # from zero, with biases of zero, nothing would move
        ends = [read(model, TOKENS, begun, key)[1][0][1] for key in (KEY, jax.random.key(5))]
        assert np.allclose(*ends) != variational


def test_what_is_kept_grows_so_that_means_stay():
    model = make()
    masks = np.asarray(jax.jit(jax.vmap(lambda key: model._mask(key, 0, (50,))))(jax.random.split(KEY, 200)))
    assert set(np.unique(masks)) == {0.0, 2.0}
    assert float(masks.mean()) == pytest.approx(1, abs=0.05)


def test_lanes_places_and_keys_have_masks_of_their_own():
    model = make(hidden=12)
    masks = [model._mask(key, place, (40,)) for key in jax.random.split(KEY, 2) for place in range(5)]
    assert len({tuple(np.asarray(mask)) for mask in masks}) == 10
