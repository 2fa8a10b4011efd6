"""The kinds of models that a recipe can name, and their settings."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from sottovoce.models import registry
from sottovoce.models.contract import parameter_count
from sottovoce_evidence.recipe import ADAPTER_KEYS, Model


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("lstm", 1_346_144),
        ("gru", 1_255_776),
        ("stacked_lstm", 19_775_200),
        ("gated_cnn", 6_020_460),
        ("transformer", 4_921_600),
        ("gpt2", 5_981_696),
    ],
)
def test_the_family_has_the_sizes_that_the_documents_give(kind, count):
    shapes = jax.eval_shape(lambda key: registry.build(kind, 10_000, {}, key), jax.random.key(0))
    assert parameter_count(shapes) == count


def test_a_recipe_can_set_what_the_kinds_have_and_nothing_else():
    fields = {item.name: item for item in dataclasses.fields(Model)}
    assert fields.pop("kind").metadata["limits"].choices == tuple(registry.KINDS)
    assert set(fields) - {"initial", "initial_is_public", *ADAPTER_KEYS} == {
        name for kind in registry.KINDS for name in registry.defaults(kind)
    }
