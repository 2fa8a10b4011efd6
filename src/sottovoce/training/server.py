"""The server's step: an optax optimiser that takes the averaged update for a descent direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sottovoce.privacy.schedule import CONSTANT, Schedule


class ServerState(NamedTuple):
    """All that a round changes."""

    round: int  # rounds done
    params: Any  # θ: what is trained of the model
    optimiser: Any
    clip_norms: Any = None  # where they adapt: those of the next round
    deployed: Any = None  # where devices have older models: those they may have, newest first
    noise: Any = ()  # what the noise remembers: a secret, and no part of a checkpoint

    def next(self, params: Any, optimiser: Any) -> ServerState:
        """The state after a round. Nothing else sets the number of the round."""
        return self._replace(round=self.round + 1, params=params, optimiser=optimiser)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All that a checkpoint keeps of the state, but the number of the round."""
        return _to_arrays(self._saved)

    def noise_arrays(self) -> dict[str, np.ndarray]:
        """What the noise remembers, to be kept with the secrets."""
        return _to_arrays(self.noise)

    def load(self, round_number: int, arrays: Mapping[str, np.ndarray], noise: Mapping[str, np.ndarray]) -> ServerState:
        """The state that was saved, shaped like this one, which is of a run before its first round."""
        return ServerState(round_number, *_from_arrays(self._saved, arrays), noise=_from_arrays(self.noise, noise))

    @property
    def _saved(self) -> tuple[Any, ...]:
        return self.params, self.optimiser, self.clip_norms, self.deployed


def _to_arrays(tree: Any) -> dict[str, np.ndarray]:
    return {f"{index:04d}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}


def _from_arrays(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    leaves, structure = jax.tree.flatten(like)
    return structure.unflatten([jnp.asarray(arrays[f"{index:04d}"]) for index in range(len(leaves))])


@dataclass(frozen=True)
class Server:
    """θ ← θ + Δ is `optax.sgd(1.0)`; other optimisers only post-process what was noised already.

    A `schedule` of the learning rate scales what the optimiser makes of an update.
    """

    optimiser: optax.GradientTransformation
    schedule: Schedule = CONSTANT

    def start(self, params: Any, clip_norms: Any = None, noise: Any = ()) -> ServerState:
        # `jnp.full` gives a weak type and a step does not: the second round would compile every program anew.
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), params)
        return ServerState(0, params, self.optimiser.init(params), clip_norms, noise=noise)  # pyrefly: ignore

    def factor(self, round_number: int) -> float | None:
        """Of the learning rate in a round; None where it never changes, and a step need not scale."""
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
