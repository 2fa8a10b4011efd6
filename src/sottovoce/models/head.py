"""The tied softmax: a logit is the inner product with the embedding of the token, held at L2 norm 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.errors import SottoError


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
