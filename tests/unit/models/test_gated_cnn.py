from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from family import log_chances, read
from sottovoce.models.contract import layer_names, parameter_count
from sottovoce.models.gated_cnn import GatedCNN
from sottovoce_evidence.errors import SottoError

SIZES = {"embedding": 6, "hidden": 6, "kernel": 3, "bottleneck": 4}


def make(words: int = 60, **settings) -> GatedCNN:
    return GatedCNN(words, **settings, key=jax.random.key(1))


def test_the_papers_model_has_these_sizes():
    """Section 4.3 of Schultz 2019. A block: two branches of 300·15 + 15, 4·15·15 + 15 and 15·300 + 300."""
    block = 2 * (300 * 15 + 15 + 4 * 15 * 15 + 15 + 15 * 300 + 300)
    for tied, tables in ((True, 1), (False, 2)):
        shapes = jax.eval_shape(lambda key, tied=tied: GatedCNN(10_000, tied=tied, key=key), jax.random.key(0))
        assert parameter_count(shapes) == tables * 3_000_000 + block == (3_020_460 if tied else 6_020_460)
    names = [
        f"blocks[0].{branch}.{part}"
        for branch in ("value", "gate")
        for part in ("down", "down_bias", "across", "across_bias", "up", "up_bias")
    ]
    assert layer_names(shapes) == ["embedding", *names, "output"]


@pytest.mark.parametrize("hidden", [6, 9], ids=["a residual as it is", "a residual projected"])
def test_reading_matches_the_convolutions_of_the_paper(hidden):
    """The same equations with plain numpy: pad on the left, convolve, gate, add."""
    sizes = {**SIZES, "hidden": hidden}
    generator = np.random.default_rng(2)
    # Biases start at zero: others would show a padding in the wrong place.
    model = jax.tree.map(
        lambda x: np.asarray(x) + np.float32(0.3 * generator.normal(size=x.shape)), make(layers=2, **sizes)
    )
    tokens = np.array([5, 17, 3, 3, 40, 8])

    def branch(part, rows):
        narrow = np.array([part.down @ row + part.down_bias for row in rows])
        padded = np.concatenate([np.zeros((2, 4)), narrow])
        wide = [sum(part.across[k] @ padded[t + k] for k in range(3)) + part.across_bias for t in range(len(rows))]
        return np.array([part.up @ row + part.up_bias for row in wide])

    rows = np.asarray(model.embedding)[tokens]
    for block in model.blocks:
        residual = rows if block.residual is None else rows @ np.asarray(block.residual).T
        rows = residual + branch(block.value, rows) / (1 + np.exp(-branch(block.gate, rows)))
    outputs, _ = read(model, jnp.asarray(tokens), model.initial_state())
    np.testing.assert_allclose(outputs, rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.logits(outputs), rows @ np.asarray(model.output).T, rtol=1e-4, atol=1e-5)


def test_a_word_is_remembered_for_as_long_as_the_kernels_reach():
    model = make(layers=2, **SIZES)
    tokens = np.arange(3, 15)
    other = np.where(tokens == 7, 40, tokens)
    before, after = (np.asarray(read(model, words, model.initial_state())[0]) for words in (tokens, other))
    assert np.flatnonzero(np.any(before != after, axis=1)).tolist() == [4, 5, 6, 7, 8]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("layers", [1, pytest.param(24, marks=pytest.mark.slow)])
def test_a_deep_stack_starts_like_a_shallow_one(layers, tied):
    """Outputs are of the size of the embeddings, and chances are spread evenly over the words."""
    model = make(200, embedding=32, layers=layers, tied=tied)
    tokens = np.arange(3, 200)
    outputs = np.asarray(read(model, tokens, model.initial_state())[0])
    size = np.sqrt(np.mean(outputs**2) / np.mean(np.asarray(model.embedding) ** 2))
    assert 0.9 < size < 1.6
    chances = np.asarray(log_chances(model, tokens))
    loss = -np.mean(chances[np.arange(len(tokens)), tokens[::-1]])
    assert loss == pytest.approx(np.log(200), rel=0.1)

    @jax.jit
    @jax.grad
    def slopes(model):
        return -jnp.mean(jax.nn.log_softmax(model.logits(model.read(tokens, model.initial_state())[0]))[:, 7])

    sizes = [np.linalg.norm(block.value.up) for block in slopes(model).blocks]
    assert min(sizes) > 0.1 * max(sizes)  # no block's gradient vanishes


def test_a_tied_output_needs_outputs_of_the_embeddings_size():
    with pytest.raises(SottoError, match="embedding of size 6"):
        GatedCNN(60, embedding=6, hidden=9, tied=True, key=jax.random.key(0))
