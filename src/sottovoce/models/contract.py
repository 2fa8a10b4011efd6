"""The contract of a language model: next-token logits from the tokens read so far."""

from __future__ import annotations

from typing import Any, Protocol

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

State = Any  # a pytree of arrays: the hidden state that one lane carries from one unroll to the next


class LanguageModel(Protocol):
    """A pytree whose array leaves are its parameter vectors (the layers of per-layer clipping).

    There is no batch axis: the caller maps over lanes and users.
    """

    def initial_state(self) -> State:
        """The hidden state before any token is read."""
        ...

    def read(
        self, tokens: Int[Array, " time"], state: State, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time output"], State]:
        """Read tokens one after another: an output for each, and the hidden state after the last.

        Args:
            key: the randomness of training, such as dropout: one for each unroll of each lane. None in inference.
        """
        ...

    def logits(self, outputs: Float[Array, "*any output"]) -> Float[Array, "*any vocabulary"]:
        """Unnormalised log-probabilities of the next token, for each output."""
        ...


def parameter_count(model: LanguageModel) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(model))


def layer_names(model: LanguageModel) -> list[str]:
    """A name for each parameter vector, in the order of the pytree's leaves."""
    return [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree_util.tree_leaves_with_path(model)]
