"""What is trained of a model, and what is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from family import FAMILY, HalfFrozen, of_family
from sottovoce.models.contract import join, layer_names, parameter_count, split


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
