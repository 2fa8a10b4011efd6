"""From outputs to the loss: tables with a row for each token, the tied softmax, cross-entropy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.errors import SottoError


class Tables(NamedTuple):
    """The names of the arrays of a model that have a row for each token. A model may tell them by `tables()`.

    Such a model also has `read_rows(rows, state, key)`: `read` of tokens whose rows of the table of words are given. A
    program can then compute with the rows that it needs, and need not hold the logits of all tokens at once.
    """

    words: str  # what tokens are read from
    output: str  # what logits are computed with: an inner product with each row
    bias: str | None = None  # of the logits
    unit: bool = False  # does the output table have rows at L2 norm 1?


def multiply(x: Float[Array, "*any inputs"], weight: Any) -> Float[Array, "*any outputs"]:
    """x @ weight.T, in float32; of a weight in bfloat16 the product is of bfloat16 numbers, its sums in float32."""
    if getattr(weight, "dtype", None) == jnp.bfloat16:
        x = x.astype(jnp.bfloat16)
    product = weight @ x if x.ndim == 1 else x @ weight.T
    return product.astype(jnp.float32)


def unit_rows(embedding: Float[Array, "vocabulary size"]) -> Float[Array, "vocabulary size"]:
    """The embedding with every row at L2 norm 1.

    This is part of the forward pass: to project the parameters after clipping would make an update longer than S.
    """
    square = jnp.sum(embedding * embedding, axis=-1, keepdims=True)
    return embedding * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], size: int) -> Array:
    """Fresh weights within 1/√size of 0."""
    return jax.random.uniform(key, shape, minval=-(size**-0.5), maxval=size**-0.5)


def tied_logits(
    outputs: Float[Array, "*any size"], embedding: Float[Array, "vocabulary size"]
) -> Float[Array, "*any vocabulary"]:
    return outputs @ unit_rows(embedding).T


def check_tied(embedding: int, hidden: int) -> None:
    if hidden != embedding:
        raise SottoError(
            f"hidden={hidden} cannot be tied to an embedding of size {embedding}: make them equal, or set tied = false"
        )


def cross_entropy(logits: Float[Array, "*any vocabulary"], targets: Int[Array, "*any"]) -> Float[Array, "*any"]:
    """-ln of the probability given to each target."""
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def soft_cross_entropy(
    logits: Float[Array, "*any vocabulary"], probabilities: Float[Array, "*any vocabulary"]
) -> Float[Array, "*any"]:
    """As `cross_entropy`, where the target is a distribution over tokens."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(probabilities * logits, axis=-1)
