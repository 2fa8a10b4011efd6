"""The model of GPT-2: norms, learned positions, and longer texts. Its logits: `test_hugging_face`."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from family import read
from sottovoce.models.contract import layer_names
from sottovoce.models.transformer import Norm, Transformer, gpt2

SIZES = {"embedding": 8, "layers": 2, "heads": 2, "context": 4, "positions": 6}
TOKENS = np.array([5, 17, 3, 3, 40, 8, 21, 9, 30, 12, 13, 44, 2, 7, 19])


def make(**settings) -> Transformer:
    return gpt2(60, **{**SIZES, **settings}, key=jax.random.key(1))


def test_every_product_has_a_bias():
    names = layer_names(make())
    assert names[:2] == ["embedding", "positions"]
    matrices = [name for name in names if "blocks[0]" in name and "norm" not in name and not name.endswith("bias")]
    assert len(matrices) == 6
    assert {f"{name}_bias" for name in matrices} <= set(names)


def test_a_norm_has_mean_0_and_variance_1_before_its_weight_and_bias():
    rows = np.random.default_rng(0).normal(3, 5, size=(4, 64)).astype(np.float32)
    normed = np.asarray(Norm(64, 1e-5, centred=True)(rows))
    np.testing.assert_allclose(normed.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(normed.var(axis=1), 1, rtol=1e-4)


@pytest.mark.parametrize("step", [15, 4])
def test_a_long_text_is_read_in_pieces_as_long_as_the_positions(step):
    """Each piece is read as a text of its own, however the text is cut into calls."""
    model = make()
    pieces = [read(model, TOKENS[start : start + 6], model.initial_state())[0] for start in (0, 6, 12)]
    state, parts = model.initial_state(), []
    for start in range(0, len(TOKENS), step):
        part, state = read(model, TOKENS[start : start + step], state)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts), np.concatenate(pieces), rtol=1e-4, atol=1e-5)
    assert float(state.seen) == 3
