"""From outputs to the loss: tables with a row for each token, the tied softmax, cross-entropy."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce_evidence.errors import SottoError

LN2 = 0.6931471805599453  # scores and levels are in base 2, which is what the hardware has
ALIGNED = 8  # numbers of bfloat16 in 16 bytes


class Tables(NamedTuple):
    """The names of the arrays of a model that have a row for each token. A model may tell them by `tables()`.

    Such a model also has `read_rows(rows, state, key)`: `read` of tokens whose rows of the table of words are given. A
    program can then compute with the rows that it needs, and need not hold the logits of all tokens at once.
    """

    words: str  # what tokens are read from
    output: str  # what logits are computed with: an inner product with each row
    bias: str | None = None  # of the logits
    unit: bool = False  # does the output table have rows at L2 norm 1?


def tables_of(model: Any) -> Tables | None:
    """The tables, if the class that says how the model reads says so by rows too: a subclass may read otherwise."""

    def owner(name: str) -> type | None:
        return next((each for each in type(model).__mro__ if name in vars(each)), None)

    owners = {owner(name) for name in ("read", "read_rows", "logits", "tables")}
    return model.tables() if len(owners) == 1 and None not in owners else None


def rows_of(table: Float[Array, "vocabulary size"], ids: Int[Array, "*any"]) -> Float[Array, "*any size"]:
    """The rows of some tokens.

    A token may come several times, so its row gets several gradients. A GPU adds them up in an order that depends on
    who else is in the block, unless it is told how: by `add_rows`.
    """
    return table[ids] if jax.default_backend() == "cpu" else _rows_of(table, ids)


@jax.custom_vjp
def _rows_of(table: Array, ids: Array) -> Array:
    return table[ids]


def _gradient_of_rows(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    table, ids = kept
    return add_rows(jnp.zeros_like(table), ids.ravel(), gradient.reshape(-1, table.shape[1])), None


_rows_of.defvjp(lambda table, ids: (table[ids], (table, ids)), _gradient_of_rows)


def add_rows(
    rows: Float[Array, "vocabulary size"], ids: Int[Array, " tokens"], change: Float[Array, "tokens size"]
) -> Float[Array, "vocabulary size"]:
    """Adds to the rows of some tokens, of which several may be the same: always in one order."""
    ids, total, _ = added_up(ids, change, len(rows))
    old = rows[jnp.minimum(ids, len(rows) - 1)]
    return rows.at[ids].set(old + total, mode="drop", unique_indices=True)


def added_up(ids: Int[Array, " tokens"], change: Float[Array, "tokens size"], count: int) -> tuple[Array, Array, Array]:
    """The changes of rows by id, those of one id added up at its first place; the id of other places is none: `count`.

    Then no two write to one row: the order of sums is the same every time, which atomic additions do not give.
    """
    same = ids[:, None] == ids
    first = jnp.argmax(same, axis=1) == jnp.arange(len(ids))
    total = jnp.matmul(same.astype(change.dtype), change, precision="highest")
    return jnp.where(first, ids, count), total, first


def aligned(x: Float[Array, "*any size"]) -> Float[Array, "*any aligned"]:
    """Rows of bfloat16 numbers with zeros added, so that each begins at 16 bytes: fast products need it."""
    short = -x.shape[-1] % ALIGNED if x.dtype == jnp.bfloat16 else 0
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)]) if short else x


def multiply(x: Float[Array, "*any inputs"], weight: Any) -> Float[Array, "*any outputs"]:
    """x @ weight.T, in float32; of a weight in bfloat16 the product is of bfloat16 numbers, its sums in float32.

    Such a weight may be `aligned`.
    """
    if getattr(weight, "dtype", None) == jnp.bfloat16:
        x = x.astype(jnp.bfloat16)
        x = aligned(x) if x.shape[-1] < weight.shape[-1] else x
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
    flat = logits.reshape(-1, logits.shape[-1])
    chosen = flat.at[jnp.arange(len(flat)), targets.ravel()].get(mode="clip", unique_indices=True)
    return jax.nn.logsumexp(logits, axis=-1) - chosen.reshape(targets.shape)


def soft_cross_entropy(
    logits: Float[Array, "*any vocabulary"], probabilities: Float[Array, "*any vocabulary"]
) -> Float[Array, "*any"]:
    """As `cross_entropy`, where the target is a distribution over tokens."""
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(probabilities * logits, axis=-1)


def offset_of(outputs: Array) -> Array:
    """What is subtracted from each logit before exp2. Logits are at most ‖output‖: rows of the table have norm 1."""
    length = jnp.sqrt(jnp.sum(jnp.square(outputs.astype(jnp.float32)), axis=-1))
    return jnp.maximum(length - 57.0, 0.0)


# 2^x on [-1/2, 1/2], a fit at Chebyshev's points: within 3e-7 of it, where a float32 is within 6e-8.
_POWERS = (1.0, 0.6931472, 0.24022211, 0.05550341, 0.00967079, 0.00133953)
_WHOLE = 1.5 * 2**23  # added to a number, it leaves the nearest whole one in the low bits
_WHOLE_BITS = 0x4B400000


def exp2(power: Array) -> Array:
    """2 to a power of at most 126, twice as fast as by way of exp."""
    power = jnp.maximum(power, -126.0)
    bits = jax.lax.bitcast_convert_type(power + jnp.float32(_WHOLE), jnp.int32)
    rest = power - (bits - jnp.int32(_WHOLE_BITS)).astype(jnp.float32)
    result = jnp.full_like(rest, _POWERS[-1])
    for factor in reversed(_POWERS[:-1]):
        result = result * rest + factor
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(result, jnp.int32) + (bits << 23), jnp.float32)
