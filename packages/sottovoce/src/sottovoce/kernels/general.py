"""Any update of any model, as it is written: the general program, and the same with products of bfloat16 numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, PRNGKeyArray

from sottovoce.local.update import User, UserResult, UserUpdate
from sottovoce.models.contract import LanguageModel


def train_each(
    update: UserUpdate, model: LanguageModel, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
) -> UserResult:
    """What each user of a block sends. `clip_norms` is [users, parts].

    A CPU computes one user after the other: that is as fast, and each has their own number of steps. A GPU computes
    all at once, unless a sum could then follow who else is in the block.
    """
    each = (users, keys, clip_norms)
    in_turn = jax.default_backend() == "cpu"
    if not in_turn:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), each)
        in_turn = _adds_in_any_order(
            jax.make_jaxpr(lambda user, key, norms: update(model, user, key, norms, 1))(*shapes).jaxpr
        )
    if in_turn:

        def one(each: tuple[User, PRNGKeyArray, Array]) -> UserResult:
            user, key, norms = each
            return update(model, user, key, norms, update.steps(user.length))

        return jax.lax.map(one, each)
    return jax.vmap(update, in_axes=(None, 0, 0, 0, None))(model, users, keys, clip_norms, last)


_SUMS = {"scatter-add", "scatter-sub", "scatter-mul", "select_and_scatter_add"}


def _adds_in_any_order(program: Any) -> bool:
    """Has a program a sum into places that may be the same? For all users together, others would decide its order."""
    return any(
        equation.primitive.name in _SUMS and not equation.params.get("unique_indices", False)
        for equation in _equations(program)
    )


def _equations(program: Any) -> Iterator[Any]:
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


class Narrow(NamedTuple):
    """`train_each` with narrow products. The last clip has no products, so it is as exact as ever."""

    precision: str = "BF16_BF16_F32"
    name: str = "the general program, products of bfloat16"

    def train(
        self, update: UserUpdate, model: LanguageModel, users: User, keys: PRNGKeyArray, clip_norms: Array, last: Any
    ) -> UserResult:
        """What each user of a block sends. `clip_norms` is [users, parts]."""
        with jax.default_matmul_precision(self.precision):
            return train_each(update, model, users, keys, clip_norms, last)

    def put_together(self, update: Any) -> Any:
        return update
