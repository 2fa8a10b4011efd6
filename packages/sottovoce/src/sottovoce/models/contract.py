"""The contract of a language model: next-token logits from the tokens read so far."""

from __future__ import annotations

from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

State = Any  # a pytree of arrays: the hidden state that one lane carries from one unroll to the next


class LanguageModel(Protocol):
    """A pytree of arrays. Each trained array is a parameter vector (a layer of per-layer clipping).

    There is no batch axis: the caller maps over lanes and users. A method `trained()` may give a pytree of bool (or a
    prefix of one), True where an array is trained. By default all arrays of floats are.
    """

    def initial_state(self) -> State:
        """The hidden state before any token is read."""
        ...

    def read(
        self, tokens: Int[Array, " time"], state: State, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time output"], State]:
        """An output for each token, and the hidden state after the last. `key` is for dropout; None in inference."""
        ...

    def logits(self, outputs: Float[Array, "*any output"]) -> Float[Array, "*any vocabulary"]:
        """Unnormalised log-probabilities of the next token, for each output."""
        ...


def split(model: Any) -> tuple[Any, Any]:
    """`params`, which are trained, clipped, noised and sent, and `frozen`, the rest of the model or None.

    Both have the structure of the model, with None in the places of the other.
    """
    trained = getattr(model, "trained", None)
    params, frozen = eqx.partition(model, is_inexact if trained is None else trained())
    return params, frozen if jax.tree.leaves(frozen) else None


def join(params: Any, frozen: Any) -> Any:
    """The model of the two parts of `split`."""
    return params if frozen is None else eqx.combine(params, frozen)


def is_inexact(leaf: Any) -> bool:
    """Is it an array of floats?"""
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def logits_of(model: LanguageModel, tokens: Int[Array, " time"], key: PRNGKeyArray) -> Float[Array, "time vocabulary"]:
    """The logits after each token, read from the beginning; read once as in training too, to trace all of a model."""
    model.read(tokens, model.initial_state(), key)
    return model.logits(model.read(tokens, model.initial_state())[0])


def parameter_count(model: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(model))


def layer_names(model: Any) -> list[str]:
    """A name for each array of a model or of a part of it, in the order of the pytree's leaves."""
    return [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_leaves_with_path(model)]
