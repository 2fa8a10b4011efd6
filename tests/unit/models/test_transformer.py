"""The transformer against its equations, its window, and what its sizes must be."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from family import read
from sottovoce.models.contract import layer_names
from sottovoce.models.transformer import Transformer, frequencies, rotate

SIZES = {"embedding": 6, "hidden": 9, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 4, "context": 20}
TOKENS = np.array([5, 17, 3, 3, 40, 8, 21, 9])


def make(**settings) -> Transformer:
    """A model whose norms and biases are not as they begin: a wrong place of one would show."""
    generator = np.random.default_rng(3)
    fresh = Transformer(60, **{**SIZES, **settings}, key=jax.random.key(1))
    return jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.3 * generator.normal(size=leaf.shape)), fresh)


def by_hand(model: Transformer, tokens: np.ndarray, rope_base: float = 10_000.0) -> np.ndarray:
    """The outputs of the whole text at once: absolute positions, repeated heads, one token and one head at a time."""

    def norm(part, row):
        return row / np.sqrt(np.mean(row**2) + part.eps) * part.weight

    def turned(head, place):
        pairs = np.arange(len(head) // 2)
        turn = np.exp(1j * place * rope_base ** (-2 * pairs / len(head)))
        turned = (head[: len(pairs)] + 1j * head[len(pairs) :]) * turn
        return np.concatenate([turned.real, turned.imag])

    def head_of(attention, name, row, number, size):
        product = getattr(attention, name)[number * size : (number + 1) * size] @ row
        bias, of_heads = getattr(attention, f"{name}_bias"), getattr(attention, f"{name}_norm", None)
        product = product if bias is None else product + bias[number * size : (number + 1) * size]
        return product if of_heads is None else norm(of_heads, product)

    rows = [model.embedding[token].astype(np.float64) for token in tokens]
    for block in model.blocks:
        attention, heard = block.attention, []
        size, shared = attention.heads.size, attention.heads.heads // attention.heads.kv_heads
        normed = [norm(block.attention_norm, row) for row in rows]
        for now, row in enumerate(normed):
            parts = []
            for head in range(attention.heads.heads):
                query = turned(head_of(attention, "query", row, head, size), now)
                keys = [
                    turned(head_of(attention, "key", normed[place], head // shared, size), place)
                    for place in range(now + 1)
                ]
                values = [head_of(attention, "value", normed[place], head // shared, size) for place in range(now + 1)]
                weights = np.exp([query @ key / np.sqrt(size) for key in keys])
                parts.append(weights / weights.sum() @ np.array(values))
            out = attention.output @ np.concatenate(parts)
            heard.append(out if attention.output_bias is None else out + attention.output_bias)
        rows = [row + more for row, more in zip(rows, heard, strict=True)]
        net, normed = block.feed_forward, [norm(block.feed_forward_norm, row) for row in rows]
        gates = [net.gate @ row for row in normed]
        wide = [gate / (1 + np.exp(-gate)) * (net.up @ row) for gate, row in zip(gates, normed, strict=True)]
        rows = [row + net.down @ more for row, more in zip(rows, wide, strict=True)]
    return np.array([norm(model.norm, row) for row in rows])


@pytest.mark.parametrize(
    "settings",
    [{}, {"biases": "qkv", "tied": False}, {"biases": "attention", "qk_norm": True, "rope_base": 500.0}],
    ids=["Llama", "Qwen2", "Qwen3 and biases"],
)
def test_reading_matches_the_equations(settings):
    model = make(**settings)
    right = by_hand(model, TOKENS, settings.get("rope_base", 10_000.0))
    outputs, _ = read(model, TOKENS, model.initial_state())
    np.testing.assert_allclose(outputs, right, rtol=1e-4, atol=1e-5)
    table = model.embedding if model.output is None else model.output
    np.testing.assert_allclose(model.logits(outputs), right @ table.T, rtol=1e-4, atol=1e-4)


def test_what_is_trained_has_these_names():
    block = ["attention_norm.weight", *(f"attention.{name}" for name in ("query", "key", "value", "output"))]
    block += ["feed_forward_norm.weight", *(f"feed_forward.{name}" for name in ("gate", "up", "down"))]
    model, blocks = make(), [f"blocks[{number}].{name}" for number in (0, 1) for name in block]
    assert layer_names(model) == ["embedding", *blocks, "norm.weight"]
    assert model.blocks[0].attention.query.shape == (16, 6)
    assert model.blocks[0].attention.key.shape == (8, 6)


@pytest.mark.parametrize("context", [1, 3])
def test_a_token_sees_the_context_and_no_further(context):
    """Through one layer. A change is seen as far as the context reaches, whether the text is read at once or not."""
    model = make(layers=1, context=context)
    other = np.where(TOKENS == 17, 40, TOKENS)
    for step in (8, 2):
        outputs = []
        for text in (TOKENS, other):
            state, parts = model.initial_state(), []
            for start in range(0, len(text), step):
                part, state = read(model, text[start : start + step], state)
                parts.append(part)
            outputs.append(np.concatenate(parts))
        changed = np.flatnonzero(np.any(np.abs(outputs[0] - outputs[1]) > 1e-5, axis=1))
        assert changed.tolist() == list(range(1, 2 + context))


def test_token_by_token_is_one_call():
    model = make(context=3)
    whole, end = read(model, TOKENS, model.initial_state())
    state, parts = model.initial_state(), []
    for token in TOKENS:
        part, state = read(model, token[None], state)
        parts.append(part[0])
    np.testing.assert_allclose(whole, parts, rtol=1e-5, atol=1e-5)
    for one, other in zip(*map(jax.tree.leaves, (end, state)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert float(end.seen) == 3
    assert {leaf.dtype for leaf in jax.tree.leaves(end)} == {np.dtype(np.float32)}


def test_a_rotation_is_that_of_the_formula_and_depends_on_the_difference_alone():
    generator = np.random.default_rng(0)
    query, key = (generator.normal(size=(1, 1, 6)).astype(np.float32) for _ in range(2))
    step = frequencies(6, 100.0)
    np.testing.assert_allclose(step, [1, 100 ** (-1 / 3), 100 ** (-2 / 3)])
    angles = np.outer([7], step)
    cos, sin = np.diag(np.cos(angles[0])), np.diag(np.sin(angles[0]))
    turn = np.block([[cos, -sin], [sin, cos]])
    np.testing.assert_allclose(rotate(query, angles)[0, 0], turn @ query[0, 0], rtol=1e-5, atol=1e-6)
    products = [np.sum(rotate(query, np.outer([p + 4], step)) * rotate(key, np.outer([p], step))) for p in (0, 9, 900)]
    np.testing.assert_allclose(products, products[0], rtol=1e-4)


def test_scaled_frequencies_slow_down_long_waves_and_keep_short_ones():
    """As `transformers` computes them: checked by the figures of `test_hugging_face` too."""
    plain, scaled = frequencies(32, 10_000.0), frequencies(32, 10_000.0, (8.0, 1.0, 4.0, 64.0))
    waves = 2 * np.pi / plain
    np.testing.assert_array_equal(scaled[waves < 64 / 4], plain[waves < 64 / 4])
    np.testing.assert_allclose(scaled[waves > 64], plain[waves > 64] / 8)
    between = (waves > 16) & (waves < 64)
    assert between.any()
    assert np.all((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8))
