"""Texts that a model writes, and how likely a model finds a text: on its own, or after a beginning.

A text is a fixed number of targets, as in evaluation: words, punctuation and EOS, after which another begins. All
texts of one length have probability 1 together, which texts of any length would not have one by one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.data.vocabulary import BOS, EOS
from sottovoce.models.contract import LanguageModel, State

LENGTH = 10  # words of a text, as in the paper
_BLOCK = 512  # texts at once: bounds memory at 512 x vocabulary


def sample_texts(model: LanguageModel, count: int, key: PRNGKeyArray, length: int = LENGTH) -> np.ndarray:
    """Texts [count, length] that the model writes, drawn from its probabilities as they are."""
    blocks = range(-(-count // _BLOCK))
    parts = [np.asarray(_sample_block(model, _BLOCK, length, jax.random.fold_in(key, block))) for block in blocks]
    return np.concatenate(parts)[:count]


def write_stream(model: LanguageModel, runs: int, length: int, key: PRNGKeyArray) -> np.ndarray:
    """Some runs of `length` tokens that the model writes, one after another: a stream as users have it, BOS and all."""
    return np.concatenate([_with_starts(run)[:length] for run in np.asarray(_sample_block(model, runs, length, key))])


def _with_starts(targets: np.ndarray) -> np.ndarray:
    """With the BOS that every text begins with, which is not drawn."""
    return np.insert(targets, [0, *(np.flatnonzero(targets == EOS) + 1)], BOS)


def log_probabilities(model: LanguageModel, texts: np.ndarray) -> np.ndarray:
    """log P(s|θ) of each text, in float64: what is compared are small differences."""
    parts = []
    for start in range(0, len(texts), _BLOCK):
        some = texts[start : start + _BLOCK]
        padded = np.pad(some, ((0, _BLOCK - len(some)), (0, 0)))  # one shape, one program
        parts.append(np.asarray(_score_block(model, padded), np.float64)[: len(some)].sum(axis=1))
    return np.concatenate(parts)


def log_ratios(model: LanguageModel, other: LanguageModel, count: int, key: PRNGKeyArray) -> np.ndarray:
    """log c(s) = log P(s|model) - log P(s|other) of texts that `model` writes."""
    texts = sample_texts(model, count, key)
    return log_probabilities(model, texts) - log_probabilities(other, texts)


def count_likelier(
    model: LanguageModel, beginning: np.ndarray, ending: np.ndarray, heads: np.ndarray, choices: np.ndarray
) -> int:
    """After a beginning, how many other endings are no less likely than this one?

    The others are every head of `heads` [count, words - 1] followed by every word of `choices`. What a model gone to
    NaN says of them counts as likelier.
    """
    begun = jnp.asarray(beginning, jnp.int32)
    own = _score_endings(model, begun, jnp.asarray(ending[None, :-1], jnp.int32))[0, ending[-1]]
    found = 0
    for start in range(0, len(heads), _BLOCK):
        some = heads[start : start + _BLOCK]
        padded = np.pad(some, ((0, _BLOCK - len(some)), (0, 0))).astype(np.int32)
        likely = np.asarray(_score_endings(model, begun, padded))[: len(some), choices]
        itself = np.all(some == ending[:-1], axis=1)[:, None] & (choices == ending[-1])
        found += int(np.sum(~(likely < own) & ~itself))
    return found


@jax.jit
def _score_endings(
    model: LanguageModel, beginning: Int[Array, " words"], heads: Int[Array, "heads less"]
) -> Float[Array, "heads vocabulary"]:
    """log P of each head after the beginning, and of each word after that."""
    begun = _after(model, beginning)

    def score(head: Array) -> Array:
        (_, chances), parts = jax.lax.scan(
            lambda carry, token: (_read(model, carry[0], token), carry[1][token]), begun, head
        )
        return jnp.sum(parts) + chances

    return jax.vmap(score)(heads)


@partial(jax.jit, static_argnums=(2, 3))
def search_beams(
    model: LanguageModel, beginning: Int[Array, " words"], words: int, beams: int, allowed: Array
) -> Int[Array, "beams words"]:
    """The likeliest endings of so many words, the best first, by a search that keeps `beams` of them after each word.

    `allowed` is True for the words that may be in one.
    """
    state, chances = _after(model, beginning)
    states, chances = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (beams, *leaf.shape)), (state, chances))
    likely = jnp.full(beams, -jnp.inf).at[0].set(0.0)  # there is one beginning
    written = jnp.zeros((beams, 0), jnp.int32)
    for _ in range(words):
        scores = likely[:, None] + jnp.where(allowed, chances, -jnp.inf)
        likely, best = jax.lax.top_k(scores.ravel(), beams)
        whence, token = best // scores.shape[1], best % scores.shape[1]
        written = jnp.concatenate([written[whence], token[:, None].astype(jnp.int32)], axis=1)
        states, chances = jax.vmap(partial(_read, model))(jax.tree.map(lambda leaf, w=whence: leaf[w], states), token)
    return written


def _after(model: LanguageModel, beginning: Array) -> tuple[State, Array]:
    """The state after BOS and some words, and the log-probabilities of the next."""
    outputs, state = model.read(jnp.concatenate([jnp.array([BOS], beginning.dtype), beginning]), model.start())
    return state, _chances(model, outputs[-1])


@partial(jax.jit, static_argnums=(1, 2))
def _sample_block(model: LanguageModel, texts: int, length: int, key: PRNGKeyArray) -> Int[Array, "texts length"]:
    def write(key: PRNGKeyArray) -> Array:
        def step(carry: tuple[State, Array], key: PRNGKeyArray) -> tuple[tuple[State, Array], Array]:
            state, chances = carry
            token = jax.random.categorical(key, chances)
            return _read(model, state, token), token

        return jax.lax.scan(step, _begin(model), jax.random.split(key, length))[1]

    return jax.vmap(write)(jax.random.split(key, texts))


@jax.jit
def _score_block(model: LanguageModel, texts: Int[Array, "texts length"]) -> Float[Array, "texts length"]:
    def score(text: Array) -> Array:
        def step(carry: tuple[State, Array], token: Array) -> tuple[tuple[State, Array], Array]:
            state, chances = carry
            return _read(model, state, token), chances[token]

        return jax.lax.scan(step, _begin(model), text)[1]

    return jax.vmap(score)(texts)


def _begin(model: LanguageModel) -> tuple[State, Array]:
    outputs, state = model.read(jnp.array([BOS]), model.start())
    return state, _chances(model, outputs[-1])


def _read(model: LanguageModel, state: State, token: Array) -> tuple[State, Array]:
    """The state after a token, and the log-probabilities of the next; EOS is followed by BOS, which is not drawn."""
    read = model.read(token[None], state)
    begun = model.read(jnp.array([BOS]), read[1])
    outputs, state = jax.tree.map(partial(jnp.where, token == EOS), begun, read)
    return state, _chances(model, outputs[-1])


def _chances(model: LanguageModel, output: Any) -> Array:
    """BOS is never a target of training, so what a model says of it means nothing."""
    return jax.nn.log_softmax(model.score(output).at[BOS].set(-jnp.inf))
