"""The transformer of GPT-2 (Radford et al. 2019): LayerNorm, learned positions, GELU, a bias everywhere, a tied output.

Its state is the key-value cache, as in `transformer`. It has learned a fixed number of positions. A longer text is read
in pieces of that length, as it was trained: the first token of a piece has position 0 and sees nothing before it.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sottovoce.models.transformer import Attention, Cache, Heads, State, matrix, per_head, who_is_visible
from sottovoce_evidence.errors import SottoError

_STD = 0.02  # of embeddings and positions


class LayerNorm(eqx.Module):
    """(x - mean) / √(variance + ε), times a weight, plus a bias."""

    weight: Float[Array, " size"]
    bias: Float[Array, " size"]
    eps: float = eqx.field(static=True)

    def __init__(self, size: int, eps: float):
        self.weight, self.bias, self.eps = jnp.ones((size,)), jnp.zeros((size,)), eps

    def __call__(self, inputs: Float[Array, "*any size"]) -> Float[Array, "*any size"]:
        centred = inputs - jnp.mean(inputs, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + self.eps) * self.weight + self.bias


class FeedForward(eqx.Module):
    """To width `hidden`, GELU in its tanh form, and back."""

    up: Float[Array, "hidden embedding"]
    up_bias: Float[Array, " hidden"]
    down: Float[Array, "embedding hidden"]
    down_bias: Float[Array, " embedding"]

    def __init__(self, embedding: int, hidden: int, *, scale: float, key: PRNGKeyArray):
        keys = jax.random.split(key)
        self.up, self.up_bias = matrix(keys[0], hidden, embedding), jnp.zeros((hidden,))
        self.down, self.down_bias = matrix(keys[1], embedding, hidden, scale), jnp.zeros((embedding,))

    def __call__(self, inputs: Float[Array, "time embedding"]) -> Float[Array, "time embedding"]:
        return jax.nn.gelu(inputs @ self.up.T + self.up_bias, approximate=True) @ self.down.T + self.down_bias


class Block(eqx.Module):
    """One layer: attention and a feed-forward network, each added to its input."""

    attention_norm: LayerNorm
    attention: Attention
    feed_forward_norm: LayerNorm
    feed_forward: FeedForward

    def __init__(self, heads: Heads, hidden: int, *, scale: float, eps: float, key: PRNGKeyArray):
        keys = jax.random.split(key)
        self.attention_norm, self.feed_forward_norm = LayerNorm(heads.embedding, eps), LayerNorm(heads.embedding, eps)
        self.attention = Attention(heads, scale=scale, eps=eps, key=keys[0])
        self.feed_forward = FeedForward(heads.embedding, hidden, scale=scale, key=keys[1])

    def __call__(
        self, words: Float[Array, "time embedding"], cache: Cache, visible: Bool[Array, "time place"]
    ) -> tuple[Float[Array, "time embedding"], Cache]:
        heard, cache = self.attention(self.attention_norm(words), cache, visible)
        words = words + heard
        return words + self.feed_forward(self.feed_forward_norm(words)), cache


class GPT2(eqx.Module):
    """Embedding and position, blocks, a norm, softmax over the embedding."""

    embedding: Float[Array, "vocabulary size"]
    positions: Float[Array, "positions size"]
    blocks: tuple[Block, ...]
    norm: LayerNorm
    context: int = eqx.field(static=True)

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 256,
        hidden: int | None = None,
        layers: int = 4,
        heads: int = 4,
        context: int = 128,
        positions: int = 1024,
        norm_eps: float = 1e-5,
        key: PRNGKeyArray,
    ):
        if context >= positions:
            raise SottoError(f"context={context} must be below positions={positions}: there are no more to tell apart")
        sizes = Heads(embedding, heads, heads, per_head(embedding, heads), "attention")
        first, second, *keys = jax.random.split(key, 2 + layers)
        scale, hidden = (2 * layers) ** -0.5, hidden or 4 * embedding
        self.embedding = _STD * jax.random.normal(first, (vocabulary, embedding))
        self.positions = _STD * jax.random.normal(second, (positions, embedding))
        self.blocks = tuple(Block(sizes, hidden, scale=scale, eps=norm_eps, key=each) for each in keys)
        self.norm = LayerNorm(embedding, norm_eps)
        self.context = context

    def initial_state(self) -> State:
        caches = tuple(block.attention.heads.empty_cache(self.context) for block in self.blocks)
        return State(caches, jnp.zeros(()))

    def read(
        self, tokens: Int[Array, " time"], state: State, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], State]:
        time, last, caches = len(tokens), self.positions.shape[0], []
        place = jnp.maximum(state.seen, jnp.float32(0)) + jnp.arange(time + 1, dtype=jnp.float32)
        place = place - last * jnp.floor(place / last)  # of each token in its piece, and of the next one
        visible = who_is_visible(place[:time], self.context)
        words = self.embedding[tokens] + self.positions[place[:time].astype(jnp.int32)]
        for block, cache in zip(self.blocks, state.layers, strict=True):
            words, cache = block(words, cache, visible)
            caches.append(cache)
        return self.norm(words), State(tuple(caches), place[time])

    def logits(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return outputs @ self.embedding.T
