"""How many parameters a recipe's model has."""

from __future__ import annotations

import pytest

from sottovoce.commands.parameters import USUAL_VOCABULARY, count_parameters
from sottovoce.data.demo import demo_vocabulary
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

RECIPE = Recipe().replace(model={"kind": "lstm", "embedding": 6, "hidden": 8})


def plain(words: int) -> int:
    return words * 6 + 4 * (8 * 14 + 8) + 6 * 8 + 6


def test_an_adapter_is_counted_beside_the_model():
    words = USUAL_VOCABULARY
    assert count_parameters(RECIPE) == (plain(words), plain(words), 0)
    adapted = RECIPE.replace(model={"adapter_rank": 2, "adapter_trains": ["projection_bias"]})
    trained, scale = 2 * (6 + 8) + 6, 1
    assert count_parameters(adapted) == (plain(words), trained, plain(words) - 6 + scale)


def test_the_vocabulary_is_that_of_the_store():
    assert count_parameters(RECIPE.replace(data={"store": "demo:50"})).whole == plain(demo_vocabulary().size)


def test_what_cannot_be_adapted_is_refused():
    with pytest.raises(SottoError, match="matrices that can have an adapter: projection"):
        count_parameters(RECIPE.replace(model={"adapter_rank": 2, "adapter_matrices": ["embedding"]}))
    with pytest.raises(SottoError, match="adapter_rank is not set"):
        count_parameters(RECIPE.replace(model={"adapter_scale": 2.0}))
