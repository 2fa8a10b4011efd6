"""A decoder-only transformer: as Llama and Qwen have it (RMSNorm, rotary positions, SwiGLU), or as GPT-2.

The state is the key-value cache: the keys and values of the last `context` tokens in every layer, and how many tokens
were read. A token sees itself and at most `context` tokens before it, however the text is cut into calls of `read`.

A rotary position matters only by its difference from another. Keys are therefore kept as they are and rotated when they
are read, by their place in the cache: a text may be of any length, and no angle grows with it. Learned positions have a
fixed number. A longer text is then read in pieces of that length: the first token of a piece has position 0 and sees
nothing before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sottovoce.models.head import Tables, multiply, rows_of
from sottovoce_evidence.errors import SottoError

BIASES = {"none": (), "qkv": ("query", "key", "value"), "attention": ("query", "key", "value", "output")}
_EMBEDDING_STD = 0.02  # of positions too: logits of a normalised output then begin below 1


class Cache(NamedTuple):
    """What later tokens need of the last `context` tokens, in one layer. Keys are not rotated yet."""

    keys: Float[Array, "context kv_heads size"]
    values: Float[Array, "context kv_heads size"]


class State(NamedTuple):
    """The key-value cache of every layer, and the number of tokens read: all that is in a cache counts at `context`."""

    layers: tuple[Cache, ...]
    seen: Float[Array, ""]


@dataclass(frozen=True)
class Heads:
    """The sizes of attention: `heads` queries for each token, that share `kv_heads` keys and values."""

    embedding: int
    heads: int
    kv_heads: int
    size: int
    biases: str = "none"  # a name of BIASES
    norm: bool = False  # RMSNorm of queries and keys, as in Qwen3

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise SottoError(
                f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}: as many heads must share each key; "
                f"choose kv_heads = 1, or {self.heads}"
            )

    def empty_cache(self, context: int) -> Cache:
        shape = (context, self.kv_heads, self.size)
        return Cache(jnp.zeros(shape), jnp.zeros(shape))


class Norm(eqx.Module):
    """RMSNorm: x / √(mean x² + ε), times a weight. LayerNorm takes the mean of x away first, and adds a bias."""

    weight: Float[Array, " size"]
    bias: Float[Array, " size"] | None  # None: RMSNorm
    eps: float = eqx.field(static=True)

    def __init__(self, size: int, eps: float, *, centred: bool = False):
        self.weight, self.bias, self.eps = jnp.ones((size,)), jnp.zeros((size,)) if centred else None, eps

    def __call__(self, inputs: Float[Array, "*any size"]) -> Float[Array, "*any size"]:
        if self.bias is not None:
            inputs = inputs - jnp.mean(inputs, axis=-1, keepdims=True)
        square = jnp.mean(inputs * inputs, axis=-1, keepdims=True)
        return _add(inputs * jax.lax.rsqrt(square + self.eps) * self.weight, self.bias)


class Attention(eqx.Module):
    """Causal attention with grouped key-value heads. Biases and norms are None where a model has none."""

    query: Float[Array, "heads_size embedding"]
    key: Float[Array, "kv_heads_size embedding"]
    value: Float[Array, "kv_heads_size embedding"]
    output: Float[Array, "embedding heads_size"]
    query_bias: Float[Array, " heads_size"] | None
    key_bias: Float[Array, " kv_heads_size"] | None
    value_bias: Float[Array, " kv_heads_size"] | None
    output_bias: Float[Array, " embedding"] | None
    query_norm: Norm | None
    key_norm: Norm | None
    heads: Heads = eqx.field(static=True)

    def __init__(self, heads: Heads, *, scale: float, eps: float, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        wide, narrow = heads.heads * heads.size, heads.kv_heads * heads.size
        self.query = matrix(keys[0], wide, heads.embedding)
        self.key = matrix(keys[1], narrow, heads.embedding)
        self.value = matrix(keys[2], narrow, heads.embedding)
        self.output = matrix(keys[3], heads.embedding, wide, scale)
        outputs = {"query": wide, "key": narrow, "value": narrow, "output": heads.embedding}
        biases = {name: jnp.zeros((outputs[name],)) for name in BIASES[heads.biases]}
        self.query_bias, self.key_bias = biases.get("query"), biases.get("key")
        self.value_bias, self.output_bias = biases.get("value"), biases.get("output")
        self.query_norm = Norm(heads.size, eps) if heads.norm else None
        self.key_norm = Norm(heads.size, eps) if heads.norm else None
        self.heads = heads

    def __call__(
        self,
        inputs: Float[Array, "time embedding"],
        cache: Cache,
        visible: Bool[Array, "time place"],
        angles: np.ndarray | None = None,
    ) -> tuple[Float[Array, "time embedding"], Cache]:
        """What each token takes from those that are visible to it, and the cache after the last.

        `angles` [place, size / 2] rotate the places of the cache and of the inputs after it; None: no rotation.
        """
        time = len(inputs)
        query = _add(multiply(inputs, self.query), self.query_bias).reshape(time, self.heads.heads, self.heads.size)
        key = _add(multiply(inputs, self.key), self.key_bias).reshape(time, self.heads.kv_heads, self.heads.size)
        value = _add(multiply(inputs, self.value), self.value_bias).reshape(time, self.heads.kv_heads, self.heads.size)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        keys, values = jnp.concatenate([cache.keys, key]), jnp.concatenate([cache.values, value])
        after = Cache(keys[time:], values[time:])
        if angles is not None:
            query, keys = rotate(query, angles[-time:]), rotate(keys, angles)
        return _add(multiply(attend(query, keys, values, visible), self.output), self.output_bias), after


class FeedForward(eqx.Module):
    """To width `hidden` and back: SwiGLU, a gate times a value; or GELU in its tanh form, with biases and no gate."""

    gate: Float[Array, "hidden embedding"] | None
    up: Float[Array, "hidden embedding"]
    up_bias: Float[Array, " hidden"] | None
    down: Float[Array, "embedding hidden"]
    down_bias: Float[Array, " embedding"] | None

    def __init__(self, embedding: int, hidden: int, *, gelu: bool, scale: float, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.gate = None if gelu else matrix(keys[0], hidden, embedding)
        self.up, self.down = matrix(keys[1], hidden, embedding), matrix(keys[2], embedding, hidden, scale)
        self.up_bias = jnp.zeros((hidden,)) if gelu else None
        self.down_bias = jnp.zeros((embedding,)) if gelu else None

    def __call__(self, inputs: Float[Array, "time embedding"]) -> Float[Array, "time embedding"]:
        wide = _add(multiply(inputs, self.up), self.up_bias)
        if self.gate is None:
            wide = jax.nn.gelu(wide, approximate=True)
        else:
            wide = jax.nn.silu(multiply(inputs, self.gate)) * wide
        return _add(multiply(wide, self.down), self.down_bias)


class Block(eqx.Module):
    """One layer: attention and a feed-forward network, each added to its input."""

    attention_norm: Norm
    attention: Attention
    feed_forward_norm: Norm
    feed_forward: FeedForward

    def __call__(
        self,
        words: Float[Array, "time embedding"],
        cache: Cache,
        visible: Bool[Array, "time place"],
        angles: np.ndarray | None,
    ) -> tuple[Float[Array, "time embedding"], Cache]:
        heard, cache = self.attention(self.attention_norm(words), cache, visible, angles)
        words = words + heard
        return words + self.feed_forward(self.feed_forward_norm(words)), cache


class Transformer(eqx.Module):
    """Embedding, blocks, a norm, softmax over the embedding or a table of its own.

    Args:
        positions: None for Llama; for GPT-2 how many positions are learned, with LayerNorm and GELU in every block.

    Every matrix is [out, in] and used as `inputs @ matrix.T`. What is added to a block's input begins with
    1 / (2 layers) of the variance that one branch would add.
    """

    adaptable: ClassVar = (
        "blocks*.attention.query", "blocks*.attention.key", "blocks*.attention.value", "blocks*.attention.output",
        "blocks*.feed_forward.gate", "blocks*.feed_forward.up", "blocks*.feed_forward.down", "output",
    )  # fmt: skip

    embedding: Float[Array, "vocabulary size"]
    positions: Float[Array, "positions size"] | None
    blocks: tuple[Block, ...]
    norm: Norm
    output: Float[Array, "vocabulary size"] | None  # None: tied to the embedding
    context: int = eqx.field(static=True)
    rope_base: float = eqx.field(static=True)
    rope_scaling: tuple[float, ...] = eqx.field(static=True)

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 256,
        hidden: int = 512,
        layers: int = 4,
        heads: int = 4,
        kv_heads: int = 2,
        head_size: int | None = None,
        context: int = 128,
        tied: bool = True,
        biases: str = "none",
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        rope_base: float = 10_000.0,
        rope_scaling: tuple[float, ...] | None = None,
        positions: int | None = None,
        key: PRNGKeyArray,
    ):
        sizes = Heads(embedding, heads, kv_heads, head_size or per_head(embedding, heads), biases, qk_norm)
        if positions is not None and context >= positions:
            raise SottoError(f"context={context} must be below positions={positions}: there are no more to tell apart")
        if positions is None and sizes.size % 2:
            raise SottoError(f"a head of size {sizes.size} cannot be rotated: choose an even embedding / heads")
        scaling = tuple(rope_scaling or ())
        if len(scaling) not in (0, 4):
            numbers = "factor, low and high frequency factor, and the context before"
            raise SottoError(f"rope_scaling={list(scaling)} must be four numbers ({numbers}), or be left out")
        first, last, *keys = jax.random.split(key, 2 + layers)
        scale = (2 * layers) ** -0.5

        def fresh_norm() -> Norm:
            return Norm(embedding, norm_eps, centred=positions is not None)

        def fresh_block(key: PRNGKeyArray) -> Block:
            one, two = jax.random.split(key)
            attention = Attention(sizes, scale=scale, eps=norm_eps, key=one)
            feeding = FeedForward(embedding, hidden, gelu=positions is not None, scale=scale, key=two)
            return Block(fresh_norm(), attention, fresh_norm(), feeding)

        self.embedding = _EMBEDDING_STD * jax.random.normal(first, (vocabulary, embedding))
        self.positions = None
        if positions is not None:
            key = jax.random.fold_in(last, 1)
            self.positions = _EMBEDDING_STD * jax.random.normal(key, (positions, embedding))
        self.blocks, self.norm = tuple(fresh_block(each) for each in keys), fresh_norm()
        self.output = None if tied else _EMBEDDING_STD * jax.random.normal(last, (vocabulary, embedding))
        self.context, self.rope_base, self.rope_scaling = context, rope_base, scaling

    def initial_state(self) -> State:
        caches = tuple(block.attention.heads.empty_cache(self.context) for block in self.blocks)
        return State(caches, jnp.zeros(()))

    def read(
        self, tokens: Int[Array, " time"], state: State, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], State]:
        return self.read_rows(self.embedding[tokens], state, key)

    def read_rows(
        self, rows: Float[Array, "time size"], state: State, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time size"], State]:
        time, caches = len(rows), []
        places = state.seen + jnp.arange(time + 1, dtype=jnp.float32)  # of each token, and of the next one
        if self.positions is None:
            words, size = rows, self.blocks[0].attention.heads.size
            angles = np.outer(np.arange(self.context + time), frequencies(size, self.rope_base, self.rope_scaling))
            seen = jnp.minimum(places[time], jnp.float32(self.context))  # more would make no difference
        else:
            places = places - len(self.positions) * jnp.floor(places / len(self.positions))  # in its piece
            words, angles, seen = rows + rows_of(self.positions, places[:time].astype(jnp.int32)), None, places[time]
        visible = who_is_visible(places[:time], self.context)
        for block, cache in zip(self.blocks, state.layers, strict=True):
            words, cache = block(words, cache, visible, angles)
            caches.append(cache)
        return self.norm(words), State(tuple(caches), seen)

    def logits(self, outputs: Float[Array, "*any size"]) -> Float[Array, "*any vocabulary"]:
        return outputs @ (self.embedding if self.output is None else self.output).T

    def tables(self) -> Tables:
        return Tables("embedding", "embedding" if self.output is None else "output")


def gpt2(
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
) -> Transformer:
    """The transformer of GPT-2 (Radford et al. 2019): LayerNorm, learned positions, GELU, biases, a tied output."""
    return Transformer(
        vocabulary, embedding=embedding, hidden=hidden or 4 * embedding, layers=layers, heads=heads, kv_heads=heads,
        context=context, biases="attention", norm_eps=norm_eps, positions=positions, key=key,
    )  # fmt: skip


def attend(
    query: Float[Array, "time heads size"],
    keys: Float[Array, "place kv_heads size"],
    values: Float[Array, "place kv_heads size"],
    visible: Bool[Array, "time place"],
) -> Float[Array, "time heads_size"]:
    """The mean of the visible values, weighted by the softmax of query · key / √size.

    Heads side by side share a key and a value.
    """
    (time, heads, size), kv_heads = query.shape, keys.shape[1]
    grouped = query.reshape(time, kv_heads, heads // kv_heads, size)
    scores = jnp.einsum("tkgs,pks->kgtp", grouped, keys) * size**-0.5
    weights = jax.nn.softmax(jnp.where(visible[None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("kgtp,pks->tkgs", weights, values).reshape(time, heads * size)


def who_is_visible(places: Float[Array, " time"], context: int) -> Bool[Array, "time place"]:
    """Which places of the cache, and of the tokens after it, each token sees: itself and `context` before it at most.

    `places` is the number of tokens before each one in its text: places of the cache before its beginning are empty.
    """
    time = len(places)
    distance = jnp.float32(context + np.arange(time)[:, None] - np.arange(context + time))
    return (distance >= 0) & (distance <= jnp.clip(places, 0, context)[:, None])


def rotate(heads: Float[Array, "place heads size"], angles: np.ndarray) -> Float[Array, "place heads size"]:
    """Rotary positions (Su et al. 2021): turn each pair (i, i + size / 2) of every head by the angle of its place."""
    cos, sin = (part.astype(np.float32)[:, None] for part in (np.cos(angles), np.sin(angles)))
    first, second = jnp.split(heads, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def frequencies(size: int, base: float, scaling: tuple[float, ...] = ()) -> np.ndarray:
    """The angle between neighbours for each pair of a head, in radians.

    `scaling` is that of Llama 3.1: factor, low and high frequency factor, and the context it was first trained with.
    Waves longer than context / low are slowed down by the factor, those shorter than context / high are kept.
    """
    plain = base ** (-np.arange(0, size, 2) / size)
    if not scaling:
        return plain
    factor, low, high, context = scaling
    kept = np.clip((context * plain / (2 * np.pi) - low) / (high - low), 0, 1)
    return kept * plain + (1 - kept) * plain / factor


def matrix(key: PRNGKeyArray, outputs: int, inputs: int, scale: float = 1.0) -> Float[Array, "outputs inputs"]:
    """A fresh matrix, which keeps the variance of its input, times `scale`²."""
    return jax.random.normal(key, (outputs, inputs)) * scale * inputs**-0.5


def per_head(embedding: int, heads: int) -> int:
    """The size of a head."""
    if embedding % heads:
        raise SottoError(f"embedding={embedding} is not a multiple of heads={heads}; choose other sizes")
    return embedding // heads


def _add(values: Array, bias: Array | None) -> Array:
    return values if bias is None else values + bias
