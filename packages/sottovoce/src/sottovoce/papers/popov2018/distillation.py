"""Knowledge distillation on the server (Popov et al. 2018, section 2.3), which the paper calls transfer learning.

Users train as in Algorithm 1. The server does not average their parameters: it trains its own model towards the average
of their predictions (equation 4), on public text or on text that it writes itself. There is no known bound on what one
user can change, and so no guarantee.

    sottovoce.train(recipe, "run", strategy=Distillation(tokens=4000, epochs=6))  # with privacy.mode = "none"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.local.objective import Batch
from sottovoce.local.update import User, UserResult, local_steps
from sottovoce.models.contract import LanguageModel, State, join, split
from sottovoce.models.generate import write_stream
from sottovoce.models.head import soft_cross_entropy
from sottovoce.training.round import train_one_by_one
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import Strategy, Work
from sottovoce.training.types import Algorithm, CohortSum, Payment, Task
from sottovoce.training.variants.central import Lesson, descend, in_lanes
from sottovoce_evidence.errors import SottoError


@dataclass(frozen=True)
class Distillation(Strategy):
    """The server reads `cycles` texts of `tokens` tokens in a round, each `epochs` times.

    A text is `generated` by the model as it is when its cycle begins, or an excerpt of the public text that the users
    rehearse (`local.public`).
    """

    layout: ClassVar[str | None] = "one user after another"

    tokens: int
    epochs: int = 1
    cycles: int = 1
    generated: bool = True

    def play(
        self, algorithm: Algorithm, work: Work, state: ServerState, payment: Payment
    ) -> tuple[ServerState, DistillationRound]:
        """One round. Without any returned model the server's model stays as it is."""
        mechanism, number = algorithm.mechanism, state.round + 1
        clip_norms = mechanism.clip_norms(number, state.clip_norms)
        cohort = mechanism.sampler.sample(work.store, payment.keys.sampling, number)
        task = Task(state.params, cohort, clip_norms, local_key(payment.keys.local))
        returned, known = collect(algorithm, task, work.store)
        # No noise is drawn: its secret makes the server's own randomness.
        secret = payment.charge(mechanism.event(number))
        state, losses, not_finite = distil(algorithm, self, state, work.store, returned, secret)
        return state, DistillationRound(known, losses, not_finite)

    def text(self, model: LanguageModel, store: Store, lanes: int, cycle: int, secret: bytes) -> User:
        each = -(-self.tokens // lanes)
        if self.generated:
            key = jax.random.fold_in(local_key(secret), cycle)
            tokens = write_stream(model, store.vocabulary.specials, lanes, each, key)
        else:
            if store.public is None:
                raise SottoError("distillation on public text needs local.public; use objective='rehearsal'")
            tokens = store.public.excerpts(np.array([cycle]), lanes * each, secret)[0]
        return User(tokens, np.int32(len(tokens)))  # pyrefly: ignore


class ClientModel(NamedTuple):
    """The model that a user returned: its weight w_k and its update."""

    weight: float
    update: Any


class DistillationRound(NamedTuple):
    """Figures of a round: private, for diagnostics."""

    cohort: CohortSum
    losses: list[Array]  # of every pass of the server: the mean cross-entropy with the returned models
    not_finite: list[Array]  # of every pass: steps that were skipped

    @property
    def users(self) -> int:
        return self.cohort.users

    def diagnostics(self) -> dict[str, Any]:
        losses = [float(loss) for loss in self.losses]
        return {
            **self.cohort.diagnostics(),
            "server_losses": [loss if np.isfinite(loss) else None for loss in losses],
            "server_not_finite": sum(map(int, self.not_finite)),
        }


def collect(algorithm: Algorithm, task: Task, store: Store) -> tuple[list[ClientModel], CohortSum]:
    """The models that a cohort returns, in the memory of the host, and figures of its users."""
    returned: list[ClientModel] = []
    results: list[UserResult] = []
    for weight, result in train_one_by_one(algorithm, task, store):
        if weight > 0:
            returned.append(ClientModel(float(weight), jax.tree.map(np.asarray, result.update)))
        results.append(result._replace(update=None))
    weights = np.float64(sum(each.weight for each in returned))
    return returned, CohortSum(None, weights, None, results, [np.array([place]) for place in range(len(task.cohort))])


def distil(
    algorithm: Algorithm,
    distillation: Distillation,
    state: ServerState,
    store: Store,
    returned: list[ClientModel],
    secret: bytes,
) -> tuple[ServerState, list[Array], list[Array]]:
    """Train the server's model towards the average prediction of the returned ones, as one round.

    A step is the gradient on one unroll of all lanes, applied by the server's optimiser.
    """
    local, server = algorithm.user_update, algorithm.server
    params, optimiser = state.params, state.optimiser
    factor = server.factor(state.round + 1)
    losses: list[Array] = []
    not_finite: list[Array] = []
    for cycle in range(distillation.cycles if returned else 0):
        text = distillation.text(algorithm.model(params), store, local.batch, cycle, secret)
        batches = in_lanes(text, local.batch, local.unroll, local.bos)
        # The returned models do not change: their predictions are computed once for all passes over a text.
        batches = batches._replace(targets=mean_predictions(algorithm.model(state.params), returned, batches))
        steps = int(local_steps(text.length, local.batch, local.unroll))
        for epoch in range(distillation.epochs):
            key = jax.random.fold_in(jax.random.fold_in(local_key(secret), distillation.cycles + cycle), epoch)
            lesson = Lesson(batches, steps, key, factor=factor, frozen=algorithm.frozen)
            params, optimiser, loss, failed = descend(soft_targets, server, params, optimiser, lesson)
            losses.append(loss)
            not_finite.append(failed)
    return state.next(params, optimiser), losses, not_finite


def soft_targets(
    model: LanguageModel, received: LanguageModel, batch: Batch, state: State, key: PRNGKeyArray
) -> tuple[Float[Array, "lanes unroll"], State]:
    """Equation 1: cross-entropy with the distributions that a batch has as its targets."""
    del received
    outputs, state = jax.vmap(model.read)(batch.inputs, state, jax.random.split(key, len(batch.inputs)))
    return soft_cross_entropy(model.logits(outputs), batch.targets), state


def mean_predictions(
    received: LanguageModel, returned: list[ClientModel], batches: Batch
) -> Float[Array, "steps lanes unroll vocabulary"]:
    """Equation 4: the average prediction of the returned models, weighted by w_k. One is on the device at a time."""
    total, mean = sum(each.weight for each in returned), None
    for weight, update in returned:
        mean = _add_predictions(mean, received, update, weight / total, batches.inputs)
    assert mean is not None
    return mean


@partial(jax.jit, donate_argnums=0)
def _add_predictions(
    mean: Array | None, received: LanguageModel, update: Any, share: Any, inputs: Array
) -> Float[Array, "steps lanes unroll vocabulary"]:
    params, frozen = split(received)
    model = join(jax.tree.map(jnp.add, params, update), frozen)

    def step(states: State, read: tuple[Array, Array | None]) -> tuple[State, Array]:
        tokens, mean = read
        outputs, states = jax.vmap(model.read)(tokens, states)
        chances = share * jax.nn.softmax(model.logits(outputs))
        return states, chances if mean is None else mean + chances

    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (inputs.shape[1], *leaf.shape)), model.initial_state())
    return jax.lax.scan(step, start, (inputs, mean))[1]
