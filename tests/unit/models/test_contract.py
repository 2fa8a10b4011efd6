"""The contract of every kind of model: reading, logits, and the part that is trained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import first_of
from family import FAMILY, HalfFrozen, of_family, read
from sottovoce.models import registry
from sottovoce.models.contract import join, layer_names, parameter_count, split
from sottovoce.models.transformer import Transformer


@pytest.mark.slow
def test_a_model_of_the_family_is_trained_whole():
    for name in FAMILY:
        model = of_family(name)
        params, frozen = split(model)
        assert frozen is None
        assert jax.tree.structure(params) == jax.tree.structure(model)
        assert join(params, frozen) is params


def test_both_parts_make_the_model_again():
    model = HalfFrozen.make(50)
    params, frozen = split(model)
    assert set(layer_names(frozen)) == {"lstm.embedding", "order"}
    assert {*layer_names(params), *layer_names(frozen)} == set(layer_names(model))
    assert parameter_count(params) + 50 * 4 + 50 == parameter_count(model)
    again = join(params, frozen)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(model)))


def test_without_a_word_of_the_model_floats_are_trained_and_whole_numbers_are_not():
    params, frozen = split({"weight": jnp.zeros(3), "table": jnp.arange(3)})
    assert layer_names(params) == ["['weight']"]
    assert layer_names(frozen) == ["['table']"]


TOKENS = jnp.arange(3, 15)


@pytest.mark.parametrize("cut", first_of([2, 11]))
def test_reading_in_two_parts_is_reading_at_once(any_model, cut):
    whole, end = read(any_model, TOKENS, any_model.initial_state())
    first, state = read(any_model, TOKENS[:cut], any_model.initial_state())
    second, end_of_parts = read(any_model, TOKENS[cut:], state)
    within = 1e-5 if isinstance(any_model, Transformer) else 1e-6  # norms of norms make rounding errors larger
    np.testing.assert_allclose(whole, jnp.concatenate([first, second]), rtol=1e-5, atol=within)
    for one, other in zip(*map(jax.tree.leaves, (end, end_of_parts)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=within)


def test_no_output_sees_its_future(any_model):
    """Neither in use nor in training: a mask is drawn before anything is read."""
    for key in (None, jax.random.key(3)):
        for place in (0, 5, 11):
            changed = TOKENS.at[place].set(40)
            before, after = (read(any_model, words, any_model.initial_state(), key)[0] for words in (TOKENS, changed))
            np.testing.assert_array_equal(before[:place], after[:place])
            assert not np.allclose(before[place], after[place])


def test_a_state_keeps_its_shape(any_model):
    """It is carried through loops whose shapes are fixed, however little is read at a time."""
    for time in (2, 11):
        _, state = read(any_model, TOKENS[:time], any_model.initial_state())
        for before, after in zip(*map(jax.tree.leaves, (any_model.initial_state(), state)), strict=True):
            assert (before.shape, before.dtype) == (after.shape, after.dtype)


def test_every_word_is_scored(any_model):
    outputs, _ = read(any_model, TOKENS, any_model.initial_state())
    assert any_model.logits(outputs).shape == (12, 60)
    assert any_model.logits(outputs[3]).shape == (60,)
    np.testing.assert_allclose(any_model.logits(outputs)[3], any_model.logits(outputs[3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FAMILY)
def test_the_initial_weights_depend_on_the_key_alone(name):
    kind = name.partition(",")[0]
    one, same, other = (
        jax.tree.leaves(registry.build(kind, 20, FAMILY[name], jax.random.key(seed))) for seed in (1, 1, 2)
    )
    for a, b, c in zip(one, same, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == jnp.float32
        assert a.ndim == 1 or not np.allclose(a, c)  # biases start alike


@pytest.mark.parametrize("name", FAMILY)
def test_layers_have_names_that_tell_them_apart(name):
    model = of_family(name)
    names = layer_names(model)
    assert len(set(names)) == len(names) == len(jax.tree.leaves(model))
    assert names[0] == "embedding"
    assert all(part.replace("[", "").replace("]", "").replace(".", "").replace("_", "").isalnum() for part in names)
