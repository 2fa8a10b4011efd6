"""The server's step: an optax optimiser whose gradient is minus the averaged update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sottovoce_evidence.schedule import CONSTANT, Schedule


class ServerState(NamedTuple):
    """All that a round changes."""

    round: int  # rounds done
    params: Any  # θ: the trained part of the model
    optimiser: Any
    clip_norms: Any = None  # of the next round, where they adapt
    kept: Any = None  # what a strategy of its own keeps from round to round; it is in the checkpoints
    noise: Any = ()  # the state of the noise: a secret, not in a checkpoint

    def next(self, params: Any, optimiser: Any) -> ServerState:
        """The state after a round. Nothing else sets the number of the round."""
        return self._replace(round=self.round + 1, params=params, optimiser=optimiser)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The state in a checkpoint, without the number of the round."""
        return _to_arrays(self._saved)

    def noise_arrays(self) -> dict[str, np.ndarray]:
        """The state of the noise, to be kept with the secrets."""
        return _to_arrays(self.noise)

    def load(self, round_number: int, arrays: Mapping[str, np.ndarray]) -> ServerState:
        """The state that was saved, in the structure of this one."""
        return ServerState(round_number, *_from_arrays(self._saved, arrays), noise=self.noise)

    def with_noise(self, arrays: Mapping[str, np.ndarray]) -> ServerState:
        """The same, with the state of the noise that was saved with the secrets."""
        return self._replace(noise=_from_arrays(self.noise, arrays))

    @property
    def _saved(self) -> tuple[Any, ...]:
        return self.params, self.optimiser, self.clip_norms, self.kept


def _to_arrays(tree: Any) -> dict[str, np.ndarray]:
    return {f"{index:04d}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}


def _from_arrays(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    leaves, structure = jax.tree.flatten(like)
    with jax.enable_x64(True):  # the state of the noise has 64 bits; nothing here changes its type
        return structure.unflatten([jnp.asarray(arrays[f"{index:04d}"]) for index in range(len(leaves))])


@dataclass(frozen=True)
class Server:
    """θ ← θ + Δ is `optax.sgd(1.0)`; other optimisers post-process the noised update. `schedule` scales their steps."""

    optimiser: optax.GradientTransformation
    schedule: Schedule = CONSTANT

    def start(self, params: Any, clip_norms: Any = None, noise: Any = ()) -> ServerState:
        # Not of a weak type, as `jnp.full` is: the second round would compile every program again.
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), params)
        return ServerState(0, params, self.optimiser.init(params), clip_norms, noise=noise)  # pyrefly: ignore

    def factor(self, round_number: int) -> float | None:
        """The factor of the learning rate in a round; None where it never changes."""
        return None if self.schedule == CONSTANT else self.schedule(round_number)

    def step(self, state: ServerState, update: Any) -> ServerState:
        """The step that ends a round."""
        return state.next(*_apply(self, state.params, state.optimiser, update, self.factor(state.round + 1)))

    def apply(self, params: Any, optimiser: Any, update: Any, factor: Any = None) -> tuple[Any, Any]:
        """The optimiser's step for an update: new parameters, new state of the optimiser."""
        descent = jax.tree.map(lambda leaf: -leaf, update)
        change, optimiser = self.optimiser.update(descent, optimiser, params)  # pyrefly: ignore
        if factor is not None:
            change = jax.tree.map(lambda leaf: factor * leaf, change)
        return optax.apply_updates(params, change), optimiser  # pyrefly: ignore


@partial(jax.jit, static_argnums=0)
def _apply(server: Server, params: Any, optimiser: Any, update: Any, factor: float | None) -> tuple[Any, Any]:
    return server.apply(params, optimiser, update, factor)
