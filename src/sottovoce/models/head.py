"""The tied softmax: words are scored by inner product with their own embeddings, held at L2 norm 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sottovoce.errors import SottoError


def unit_rows(embedding: Float[Array, "vocabulary size"]) -> Float[Array, "vocabulary size"]:
    """The embedding with every row at L2 norm 1.

    Normalising in the forward pass keeps the parameters free: a projection after clipping would move an update
    out of the ball of radius S.
    """
    square = jnp.sum(embedding * embedding, axis=-1, keepdims=True)
    return embedding * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def tied_scores(
    outputs: Float[Array, "*any size"], embedding: Float[Array, "vocabulary size"]
) -> Float[Array, "*any vocabulary"]:
    return outputs @ unit_rows(embedding).T


def check_tied(embedding: int, hidden: int) -> None:
    if hidden != embedding:
        raise SottoError(
            f"hidden={hidden} cannot be scored by the embedding, whose size is {embedding}: make them equal, or say "
            f"tied = false"
        )


def cross_entropy(scores: Float[Array, "*any vocabulary"], targets: Int[Array, "*any"]) -> Float[Array, "*any"]:
    """-ln of the probability given to each target."""
    chosen = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - chosen


def soft_cross_entropy(
    scores: Float[Array, "*any vocabulary"], chances: Float[Array, "*any vocabulary"]
) -> Float[Array, "*any"]:
    """As `cross_entropy`, where the target is a distribution over words."""
    return jax.nn.logsumexp(scores, axis=-1) - jnp.sum(chances * scores, axis=-1)
