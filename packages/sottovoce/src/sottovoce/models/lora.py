"""Low-rank adapters (LoRA, Hu et al. 2021): two small trained matrices beside each frozen one.

A matrix can have one if its model uses it as `x @ weight.T` and in no other way: not indexed, concatenated or
normalised. The class of a model names these in `adaptable`, a tuple of patterns such as `blocks*.up`. Without it no
matrix has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.contract import LanguageModel, State, is_inexact, layer_names
from sottovoce.models.head import uniform

# Words of `adapter_trains` for arrays that are called differently in different kinds.
WORDS = {"norms": ("*norm*",), "head": ("output", "output_bias", "head", "head_bias")}
_PREFIX = "base."  # of the names of an adapted model's arrays


class LowRank(eqx.Module):
    """Stands in the place of a matrix W that a model uses as `x @ W.T`: it gives x Wᵀ + s (x Aᵀ) Bᵀ.

    W is the same for all users of a block, so that its product is one product for all of them.
    """

    weight: Float[Array, "outputs inputs"]  # W, frozen
    down: Float[Array, "rank inputs"]  # A
    up: Float[Array, "outputs rank"]  # B
    scale: Float[Array, ""]  # s, frozen

    @staticmethod
    def beside(weight: Float[Array, "outputs inputs"], rank: int, scale: float, key: PRNGKeyArray) -> LowRank:
        """A fresh adapter. B is zero: the model is at first the one without it."""
        outputs, inputs = weight.shape
        down = uniform(key, (rank, inputs), inputs)
        return LowRank(weight, down, jnp.zeros((outputs, rank), down.dtype), jnp.asarray(scale, jnp.float32))

    @property
    def T(self) -> _Transposed:  # noqa: N802 -- as arrays have it
        return _Transposed(self)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def dtype(self) -> Any:
        return self.weight.dtype

    def __matmul__(self, column: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """W x + s B (A x), for one vector."""
        return self.weight @ column + self.scale * (self.up @ (self.down @ column))

    def merged(self) -> Float[Array, "outputs inputs"]:
        """W + s B A: one plain matrix that gives the same."""
        return self.weight + self.scale * jnp.matmul(self.up, self.down, precision="highest")


class _Transposed:
    """What `x @ weight.T` meets on its right."""

    __array_ufunc__ = None  # numpy then leaves the product to `__rmatmul__`, as jax does

    def __init__(self, matrix: LowRank):
        self._matrix = matrix

    def __rmatmul__(self, inputs: Float[Array, "*any inputs"]) -> Float[Array, "*any outputs"]:
        matrix = self._matrix
        return inputs @ matrix.weight.T + matrix.scale * ((inputs @ matrix.down.T) @ matrix.up.T)


class Adapted(eqx.Module):
    """A model with adapters. They and the arrays named in `also` are trained; all else is frozen.

    Guarantee: what is trained, clipped, noised and sent is `down` and `up` of each adapter and the arrays in `also`,
    and nothing else.
    """

    base: LanguageModel
    also: tuple[str, ...] = eqx.field(static=True, default=())  # by their names in `base`

    def trained(self) -> Adapted:
        def of(path: Any, part: Any) -> Any:
            if isinstance(part, LowRank):
                return LowRank(weight=False, down=True, up=True, scale=False)  # pyrefly: ignore
            return _name(path) in self.also

        return Adapted(jax.tree_util.tree_map_with_path(of, self.base, is_leaf=_is_adapter), self.also)

    def initial_state(self) -> State:
        return self.base.initial_state()

    def read(
        self, tokens: Int[Array, " time"], state: State, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time output"], State]:
        return self.base.read(tokens, state, key)

    def logits(self, outputs: Float[Array, "*any output"]) -> Float[Array, "*any vocabulary"]:
        return self.base.logits(outputs)


@dataclass(frozen=True)
class Adapters:
    """Which adapters a model gets.

    `matrices` are patterns of names, such as `*query*`; none: all matrices that can have one, but for the table that
    gives the logits. `trains` are patterns of further arrays to train whole, or "norms" or "head".
    """

    rank: int
    scale: float = 1.0
    matrices: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """The arrays of a model, and what the patterns of some adapters choose among them."""

    model: LanguageModel
    adapters: Adapters

    @cached_property
    def matrices(self) -> dict[str, tuple[int, ...]]:
        """The matrices that get an adapter, with their shapes."""
        if given := self.adapters.matrices:
            return {name: shape for name, shape in self.adaptable.items() if _matches(name, given)}
        return {name: shape for name, shape in self.adaptable.items() if name not in WORDS["head"]} or self.adaptable

    @property
    def patterns(self) -> tuple[str, ...]:
        """`matrices` in short: patterns that choose them."""
        return self.adapters.matrices or tuple(dict.fromkeys(map(starred, self.matrices)))

    @cached_property
    def also(self) -> tuple[str, ...]:
        """The further arrays that are trained."""
        patterns = [pattern for given in self.adapters.trains for pattern in WORDS.get(given, (given,))]
        return tuple(name for name in self._further if _matches(name, patterns))

    @cached_property
    def adaptable(self) -> dict[str, tuple[int, ...]]:
        """All matrices that can have an adapter."""
        leaves, patterns = _leaves(self.model).items(), getattr(self.model, "adaptable", ())
        return {name: leaf.shape for name, leaf in leaves if leaf.ndim == 2 and _matches(name, patterns)}

    @property
    def empty_patterns(self) -> list[str]:
        """Patterns of `matrices` that choose nothing."""
        return [each for each in self.adapters.matrices if not any(_matches(name, (each,)) for name in self.matrices)]

    @property
    def empty_words(self) -> list[str]:
        """Words and patterns of `trains` that choose nothing."""
        found = {each: WORDS.get(each, (each,)) for each in self.adapters.trains}
        return [each for each, patterns in found.items() if not any(_matches(name, patterns) for name in self._further)]

    def named_by(self, pattern: str) -> list[str]:
        """All arrays that a pattern names, in short."""
        return list(dict.fromkeys(starred(name) for name in layer_names(self.model) if _matches(name, (pattern,))))

    @cached_property
    def _further(self) -> list[str]:
        return [name for name in _leaves(self.model) if name not in self.matrices]


def adapt(survey: Survey, key: PRNGKeyArray) -> Adapted:
    """The model of a survey with fresh adapters, which change nothing yet."""
    rank, scale = survey.adapters.rank, survey.adapters.scale
    keys = dict(zip(survey.matrices, jax.random.split(key, len(survey.matrices)), strict=True))
    base = _with(survey.model, survey.matrices, lambda name, leaf: LowRank.beside(leaf, rank, scale, keys[name]))
    return Adapted(base, survey.also)


def merge(model: LanguageModel) -> LanguageModel:
    """The plain model that gives the same logits. One without adapters is given back as it is.

    Post-processing: merged weights follow from the frozen part, which is public, and from released parameters.
    """
    if not isinstance(model, Adapted):
        return model
    return jax.tree.map(lambda part: part.merged() if _is_adapter(part) else part, model.base, is_leaf=_is_adapter)


def put_under(model: LanguageModel, base: LanguageModel) -> LanguageModel:
    """The model with the weights of a plain one under its adapters; a model without adapters becomes the plain one."""
    if not isinstance(model, Adapted):
        return base

    def put(part: Any, weight: Any) -> Any:
        return LowRank(weight, part.down, part.up, part.scale) if _is_adapter(part) else weight

    return Adapted(jax.tree.map(put, model.base, base, is_leaf=_is_adapter), model.also)


def merge_weights(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of a merged model by name, from those of an adapted one; others as they are."""
    if not all(name.startswith(_PREFIX) for name in weights) or not any(name.endswith(".scale") for name in weights):
        return dict(weights)
    named = {name.removeprefix(_PREFIX): array for name, array in weights.items()}
    merged: dict[str, np.ndarray] = {}
    for name, array in named.items():
        matrix, _, part = name.rpartition(".")
        if f"{matrix}.scale" not in named:
            merged[name] = array
        elif part == "weight":
            down, up, scale = (named[f"{matrix}.{each}"] for each in ("down", "up", "scale"))
            merged[matrix] = array + scale * (up @ down)
    return merged


def clip_parts(params: Any) -> dict[str, int]:
    """The parts of per-layer clipping, by name, and their numbers of arrays: an adapter is one part, another array one.

    `down` and `up` are one part since they act as a product: at first `up` is zero, and all of the gradient is on it.
    """
    parts = jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_adapter)
    return {_name(path): len(jax.tree.leaves(part)) for path, part in parts if jax.tree.leaves(part)}


def _leaves(model: Any) -> dict[str, Any]:
    """The arrays of floats of a model, by name."""
    leaves = zip(layer_names(model), jax.tree.leaves(model), strict=True)
    return {name: leaf for name, leaf in leaves if is_inexact(leaf)}


def _with(model: Any, names: Iterable[str], make: Callable[[str, Any], Any]) -> Any:
    """The model with something else in the places of some arrays."""
    names = set(names)

    def put(path: Any, leaf: Any) -> Any:
        return make(_name(path), leaf) if _name(path) in names else leaf

    return jax.tree_util.tree_map_with_path(put, model)


def _is_adapter(part: Any) -> bool:
    return isinstance(part, LowRank)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def starred(name: str) -> str:
    """The same for all layers: a pattern that matches the name in each."""
    return re.sub(r"\[\d+\]", "*", name)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
