"""Adapters: what they give, what of a model can have one, what is trained, merging."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from family import log_chances, of_family
from kinds import FAMILY
from sottovoce.models.contract import join, layer_names, parameter_count, split
from sottovoce.models.lora import Adapted, Adapters, LowRank, Survey, adapt, clip_parts, merge, merge_weights, put_under

TOKENS = jnp.array([3, 9, 4, 1, 7])
# What each kind multiplies with, and neither indexes nor concatenates nor normalises.
BRANCHES = [f"blocks[{n}].{part}.{way}" for n in (0, 1) for part in ("value", "gate") for way in ("down", "up")]
ATTENTION = [f"blocks[{n}].attention.{part}" for n in (0, 1) for part in ("query", "key", "value", "output")]
SWIGLU = [f"blocks[{n}].feed_forward.{part}" for n in (0, 1) for part in ("gate", "up", "down")]
ADAPTABLE = {
    "lstm": {"projection"},
    "gru": {"projection"},
    "stacked_lstm": {"output"},
    "stacked_lstm, variational and tied": set(),
    "gated_cnn": {*BRANCHES, "blocks[0].residual", "output"},
    "gated_cnn, tied": set(BRANCHES),
    "transformer": set(ATTENTION + SWIGLU),
    "transformer, as Qwen3": {*ATTENTION, *SWIGLU, "output"},
    "gpt2, in pieces": {*ATTENTION, *(name for name in SWIGLU if not name.endswith("gate"))},
}


def some(name: str):
    """The other kinds are tried in slow tests."""
    return pytest.param(name, marks=() if name in ("lstm", "gated_cnn, tied") else pytest.mark.slow)


def adapted(name: str, **settings) -> Adapted:
    return adapt(Survey(of_family(name), Adapters(2, **settings)), jax.random.key(5))


def moved(model: Adapted) -> Adapted:
    """Adapters that are no longer zero."""
    params, frozen = split(model)
    return join(
        jax.tree.map(lambda leaf: leaf + 0.3 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params), frozen
    )


def test_the_product_is_that_of_the_merged_matrix():
    generator = np.random.default_rng(0)
    weight, down, up = (jnp.asarray(generator.normal(size=size), jnp.float32) for size in ((4, 5), (2, 5), (4, 2)))
    matrix = LowRank(weight, down, up, jnp.float32(0.7))
    inputs = generator.normal(size=(3, 6, 5)).astype(np.float32)
    expected = inputs @ (np.asarray(weight) + 0.7 * np.asarray(up) @ np.asarray(down)).T
    for given in (inputs, jnp.asarray(inputs)):
        np.testing.assert_allclose(given @ matrix.T, expected, atol=1e-5)
    np.testing.assert_allclose(jnp.asarray(inputs) @ matrix.merged().T, expected, atol=1e-5)
    np.testing.assert_allclose(matrix @ jnp.asarray(inputs[0, 0]), expected[0, 0], atol=1e-5)
    assert (matrix.shape, matrix.dtype) == ((4, 5), jnp.float32)


@pytest.mark.parametrize("name", [some(name) for name in FAMILY])
def test_a_model_can_have_adapters_where_it_multiplies_and_nowhere_else(name):
    assert set(Survey(of_family(name), Adapters(1)).adaptable) == ADAPTABLE[name]


@pytest.mark.slow
def test_by_default_the_table_of_the_logits_has_none_where_others_can():
    found = Survey(of_family("gated_cnn"), Adapters(1))
    assert set(found.matrices) == ADAPTABLE["gated_cnn"] - {"output"}
    branches = [f"blocks*.{part}.{way}" for part in ("value", "gate") for way in ("down", "up")]
    assert list(found.patterns) == [*branches, "blocks*.residual"]
    again = Survey(of_family("gated_cnn"), Adapters(1, matrices=found.patterns))
    assert again.matrices == found.matrices
    assert set(Survey(of_family("stacked_lstm"), Adapters(1)).matrices) == {"output"}


def test_patterns_choose_by_name():
    found = Survey(
        of_family("gated_cnn"), Adapters(1, matrices=("blocks[0].value.up", "*residual", "*gates*", "embedding"))
    )
    assert set(found.matrices) == {"blocks[0].value.up", "blocks[0].residual"}
    assert found.empty_patterns == ["*gates*", "embedding"]
    assert found.named_by("embedding") == ["embedding"]


@pytest.mark.parametrize("name", [some(name) for name in FAMILY if ADAPTABLE[name]])
def test_fresh_adapters_change_nothing_and_merged_ones_give_the_same(name):
    plain = of_family(name)
    fresh = adapted(name, scale=0.5)
    np.testing.assert_array_equal(log_chances(fresh, TOKENS), log_chances(plain, TOKENS))
    trained = moved(fresh)
    assert np.abs(np.asarray(log_chances(trained, TOKENS) - log_chances(plain, TOKENS))).max() > 1e-3
    merged = merge(trained)
    assert jax.tree.structure(merged) == jax.tree.structure(plain)
    np.testing.assert_allclose(log_chances(merged, TOKENS), log_chances(trained, TOKENS), atol=2e-5)
    assert merge(plain) is plain


def test_what_is_trained_is_the_adapters_and_what_is_named_besides():
    params, frozen = split(adapted("gated_cnn", matrices=("*up",), trains=("head", "blocks*.value.down_bias")))
    ups = [f"base.blocks[{n}].{part}.up" for n in (0, 1) for part in ("value", "gate")]
    besides = ["base.blocks[0].value.down_bias", "base.blocks[1].value.down_bias", "base.output"]
    assert set(layer_names(params)) == {*besides, *(f"{up}.{leaf}" for up in ups for leaf in ("down", "up"))}
    assert not set(layer_names(params)) & set(layer_names(frozen))
    assert parameter_count(params) + parameter_count(frozen) == parameter_count(adapted("gated_cnn", matrices=("*up",)))
    assert Survey(of_family("lstm"), Adapters(1, trains=("norms", "projection_bias"))).empty_words == ["norms"]


def test_an_adapter_is_one_part_of_per_layer_clipping():
    params = split(adapted("lstm", trains=("projection_bias",)))[0]
    assert clip_parts(params) == {"base.projection": 2, "base.projection_bias": 1}
    assert set(clip_parts(of_family("lstm")).values()) == {1}


def test_the_weights_of_a_plain_model_go_under_the_adapters():
    base, model = of_family("gru"), moved(adapted("gru"))
    other = jax.tree.map(lambda leaf: leaf + 1, base)
    put = put_under(model, other)
    np.testing.assert_array_equal(put.base.projection.weight, base.projection + 1)
    np.testing.assert_array_equal(put.base.projection.down, model.base.projection.down)
    np.testing.assert_array_equal(put.base.embedding, base.embedding + 1)
    assert put_under(base, other) is other


@pytest.mark.slow
def test_weights_by_name_are_merged_as_the_model_is():
    model = moved(adapted("gated_cnn", scale=0.5, trains=("head",)))
    weights = {name: np.asarray(leaf) for name, leaf in zip(layer_names(model), jax.tree.leaves(model), strict=True)}
    merged = merge(model)
    found = merge_weights(weights)
    assert set(found) == set(layer_names(merged))
    for name, leaf in zip(layer_names(merged), jax.tree.leaves(merged), strict=True):
        np.testing.assert_allclose(found[name], leaf, atol=1e-6)
    plain = {"embedding": np.zeros(3), "scale": np.ones(1)}
    assert merge_weights(plain) == plain


def test_frozen_products_are_one_product_for_all_users():
    """Under `vmap` over users with their own adapters, the frozen weight is in no batched product."""
    matrix = LowRank.beside(jnp.ones((7, 5)), 2, 1.0, jax.random.key(0))

    def one(inputs, down, up):
        return inputs @ LowRank(matrix.weight, down, up, matrix.scale).T

    users = jax.make_jaxpr(jax.vmap(one))(jnp.ones((3, 4, 5)), jnp.ones((3, 2, 5)), jnp.ones((3, 7, 2)))
    products = [each for each in users.eqns if each.primitive.name == "dot_general"]
    batched = [bool(each.params["dimension_numbers"][1][0]) for each in products]
    assert batched == [False, True, True]
