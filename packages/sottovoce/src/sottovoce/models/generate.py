"""Texts that a model writes, and the probability that a model gives to a text: alone, or after a prefix.

A text is a fixed number of targets, as in evaluation: words, punctuation and EOS, after which another text begins. The
probabilities of all texts of one length sum to 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.data.tokenizer import Specials
from sottovoce.models.contract import LanguageModel, State

LENGTH = 10  # words of a text, as in the paper
_BLOCK = 512  # texts at once: bounds memory at 512 x vocabulary


def sample_texts(
    model: LanguageModel, specials: Specials, count: int, key: PRNGKeyArray, length: int = LENGTH
) -> np.ndarray:
    """Texts [count, length] that the model writes, drawn from its probabilities."""
    blocks = range(-(-count // _BLOCK))
    parts = [_sample_block(model, specials, _BLOCK, length, jax.random.fold_in(key, block)) for block in blocks]
    return np.concatenate([np.asarray(part) for part in parts])[:count]


def write_stream(model: LanguageModel, specials: Specials, runs: int, length: int, key: PRNGKeyArray) -> np.ndarray:
    """Some runs of `length` tokens that the model writes, one after another: a stream as users have it, with BOS."""
    drawn = np.asarray(_sample_block(model, specials, runs, length, key))
    # Every text begins with BOS, which is not drawn.
    begins = [np.append(0, np.flatnonzero(run == specials.eos) + 1) for run in drawn]
    runs_with_bos = (np.insert(run, places, specials.bos) for run, places in zip(drawn, begins, strict=True))
    return np.concatenate([run[:length] for run in runs_with_bos])


def continue_likeliest(model: LanguageModel, specials: Specials, prefixes: np.ndarray, length: int) -> np.ndarray:
    """The likeliest next token after each prefix [count, tokens], and so on: [count, length]. No prefix has BOS."""
    parts = []
    for some, padded in _in_blocks(prefixes.astype(np.int32)):
        parts.append(np.asarray(_continue_block(model, specials, padded, length))[: len(some)])
    return np.concatenate(parts)


def log_probabilities(model: LanguageModel, specials: Specials, texts: np.ndarray) -> np.ndarray:
    """log P(s|θ) of each text, in float64, because small differences are compared."""
    parts = []
    for some, padded in _in_blocks(texts):
        parts.append(np.asarray(_log_probabilities(model, specials, padded), np.float64)[: len(some)].sum(axis=1))
    return np.concatenate(parts)


def _in_blocks(texts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Some texts at a time, and the same padded to one shape, for one program."""
    for start in range(0, len(texts), _BLOCK):
        some = texts[start : start + _BLOCK]
        yield some, np.pad(some, ((0, _BLOCK - len(some)), (0, 0)))


def log_ratios(
    model: LanguageModel, other: LanguageModel, specials: Specials, count: int, key: PRNGKeyArray
) -> np.ndarray:
    """log c(s) = log P(s|model) - log P(s|other) of texts that `model` writes."""
    texts = sample_texts(model, specials, count, key)
    return log_probabilities(model, specials, texts) - log_probabilities(other, specials, texts)


def count_likelier(
    model: LanguageModel,
    specials: Specials,
    prefix: np.ndarray,
    ending: np.ndarray,
    heads: np.ndarray,
    last_tokens: np.ndarray,
) -> int:
    """The number of other endings of a prefix that are no less likely than this one.

    The others are every head of `heads` [count, tokens - 1] followed by every token of `last_tokens`. An ending whose
    probability is NaN counts as likelier.
    """
    read = jnp.asarray(prefix, jnp.int32)
    own = _score_endings(model, specials, read, jnp.asarray(ending[None, :-1], jnp.int32))[0, ending[-1]]
    count = 0
    for some, padded in _in_blocks(heads):
        likely = np.asarray(_score_endings(model, specials, read, padded.astype(np.int32)))[: len(some), last_tokens]
        itself = np.all(some == ending[:-1], axis=1)[:, None] & (last_tokens == ending[-1])
        count += int(np.sum(~(likely < own) & ~itself))
    return count


@partial(jax.jit, static_argnums=1)
def _score_endings(
    model: LanguageModel, specials: Specials, prefix: Int[Array, " tokens"], heads: Int[Array, "heads less"]
) -> Float[Array, "heads vocabulary"]:
    """log P of each head after the prefix, plus that of each token after the head."""
    after = _after(model, specials, prefix)

    def score(head: Array) -> Array:
        (_, chances), parts = jax.lax.scan(
            lambda carry, token: (_read(model, specials, carry[0], token), carry[1][token]), after, head
        )
        return jnp.sum(parts) + chances

    return jax.vmap(score)(heads)


@partial(jax.jit, static_argnums=(1, 3, 4))
def search_beams(
    model: LanguageModel, specials: Specials, prefix: Int[Array, " tokens"], length: int, beams: int, allowed: Array
) -> Int[Array, "beams length"]:
    """The likeliest endings of `length` tokens, the best first, by a beam search.

    `allowed` is True for the tokens that may be in an ending.
    """
    state, chances = _after(model, specials, prefix)
    states, chances = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (beams, *leaf.shape)), (state, chances))
    likely = jnp.full(beams, -jnp.inf).at[0].set(0.0)  # all beams start from one prefix
    written = jnp.zeros((beams, 0), jnp.int32)
    for _ in range(length):
        scores = likely[:, None] + jnp.where(allowed, chances, -jnp.inf)
        likely, best = jax.lax.top_k(scores.ravel(), beams)
        whence, token = best // scores.shape[1], best % scores.shape[1]
        written = jnp.concatenate([written[whence], token[:, None].astype(jnp.int32)], axis=1)
        chosen = jax.tree.map(lambda leaf, w=whence: leaf[w], states)
        states, chances = jax.vmap(partial(_read, model, specials))(chosen, token)
    return written


@partial(jax.jit, static_argnums=(1, 2, 3))
def _sample_block(
    model: LanguageModel, specials: Specials, texts: int, length: int, key: PRNGKeyArray
) -> Int[Array, "texts length"]:
    def write(key: PRNGKeyArray) -> Array:
        def step(carry: tuple[State, Array], key: PRNGKeyArray) -> tuple[tuple[State, Array], Array]:
            state, chances = carry
            token = jax.random.categorical(key, chances)
            return _read(model, specials, state, token), token

        return jax.lax.scan(step, _after(model, specials), jax.random.split(key, length))[1]

    return jax.vmap(write)(jax.random.split(key, texts))


@partial(jax.jit, static_argnums=1)
def _log_probabilities(
    model: LanguageModel, specials: Specials, texts: Int[Array, "texts length"]
) -> Float[Array, "texts length"]:
    def score(text: Array) -> Array:
        def step(carry: tuple[State, Array], token: Array) -> tuple[tuple[State, Array], Array]:
            state, chances = carry
            return _read(model, specials, state, token), chances[token]

        return jax.lax.scan(step, _after(model, specials), text)[1]

    return jax.vmap(score)(texts)


@partial(jax.jit, static_argnums=(1, 3))
def _continue_block(
    model: LanguageModel, specials: Specials, prefixes: Int[Array, "count tokens"], length: int
) -> Int[Array, "count length"]:
    def step(carry: tuple[State, Array], _: None) -> tuple[tuple[State, Array], Array]:
        state, chances = carry
        token = jnp.argmax(chances)
        return _read(model, specials, state, token), token

    def go_on(prefix: Array) -> Array:
        return jax.lax.scan(step, _after(model, specials, prefix), length=length)[1]

    return jax.vmap(go_on)(prefixes)


def _after(model: LanguageModel, specials: Specials, prefix: Array | tuple[()] = ()) -> tuple[State, Array]:
    """The hidden state after BOS and a prefix, and the log-probabilities of the next token."""
    prefix = jnp.asarray(prefix, jnp.int32)
    tokens = jnp.concatenate([jnp.array([specials.bos], jnp.int32), prefix])
    outputs, state = model.read(tokens, model.initial_state())
    return state, _next_token(model, specials, outputs[-1])


def _read(model: LanguageModel, specials: Specials, state: State, token: Array) -> tuple[State, Array]:
    """The hidden state after a token, and the log-probabilities of the next; BOS follows EOS without being drawn."""
    read = model.read(token[None], state)
    begun = model.read(jnp.array([specials.bos]), read[1])
    outputs, state = jax.tree.map(partial(jnp.where, token == specials.eos), begun, read)
    return state, _next_token(model, specials, outputs[-1])


def _next_token(model: LanguageModel, specials: Specials, output: Any) -> Array:
    """Log-probabilities without the tokens that begin a text, which are never a target of training."""
    return jax.nn.log_softmax(model.logits(output).at[jnp.array(specials.begins)].set(-jnp.inf))
