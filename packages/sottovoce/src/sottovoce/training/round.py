"""Algorithm 1 of McMahan et al. 2018: one round, in the order and the words of the paper."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.local.update import UserResult, UserUpdate, clip_update
from sottovoce.privacy.estimators import user_weight
from sottovoce.privacy.fixed_point import quantise
from sottovoce.privacy.mechanism import Estimate
from sottovoce.training.server import ServerState
from sottovoce.training.types import (
    Algorithm,
    CohortSum,
    CohortTotals,
    Payment,
    RoundObserver,
    RoundTrace,
    SumUpdates,
    Task,
)
from sottovoce.training.users import users_of


def play_round(
    algorithm: Algorithm,
    state: ServerState,
    store: Store,
    payment: Payment,
    sum_updates: SumUpdates,
    observe: RoundObserver | None = None,
) -> tuple[ServerState, CohortSum]:
    """One round. An empty cohort has the same noise and the same charge."""
    number, keys = state.round + 1, payment.keys
    clip_norms = algorithm.mechanism.clip_norms(number, state.clip_norms)  # S, public
    cohort = algorithm.mechanism.sampler.sample(store, keys.sampling, number)  # C^t, secret
    task = Task(state.params, cohort, clip_norms, local_key(keys.local))
    summed = sum_updates(algorithm, task, store)  # Σ w_k Δ_k
    after, noised = release(algorithm, state, summed, clip_norms, payment)
    if observe is not None:
        observe(RoundTrace(number, task, summed, noised))
    return after, summed


def release(
    algorithm: Algorithm, state: ServerState, summed: CohortTotals, clip_norms: np.ndarray, payment: Payment
) -> tuple[ServerState, Estimate]:
    """The half of a round after the sum: estimate, pay, add noise, step."""
    mechanism, number = algorithm.mechanism, state.round + 1
    estimate = mechanism.estimate(summed.total, summed.weight, summed.bits)  # f̃ = Σ w_k Δ_k / qW
    noise_key = payment.charge(mechanism.event(number))  # on disk before anything of the round is shown
    noised, noise = mechanism.add_noise(estimate, state.noise, number, clip_norms, noise_key)  # + N(0, z²𝕊²)
    norms = mechanism.next_clip_norms(state.clip_norms, noised)
    return algorithm.server.step(state._replace(noise=noise, clip_norms=norms), noised.update), noised  # θ ← θ + Δ


def sum_one_by_one(algorithm: Algorithm, task: Task, store: Store) -> CohortSum:
    """Σ w_k Δ_k, one user after another: the version to read. `cohort_sum.SumInBlocks` is the one to run."""
    grid = algorithm.mechanism.grid(task.clip_norms)
    total: Any = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), task.params)
    weight, bits = 0.0, np.zeros(len(task.clip_norms))
    results: list[UserResult] = []
    for share, result in train_one_by_one(algorithm, task, store):
        sent = jax.tree.map(lambda part, share=share: np.asarray(share * part), result.update)
        if grid is not None:  # without a clip there is none; whole multiples of it are added exactly by float64
            sent = jax.tree.map(lambda part: quantise(part, grid) * grid, sent)
        total = jax.tree.map(np.add, total, sent)
        weight += float(share)
        bits += (share > 0) * (0.5 - np.asarray(result.clipped))
        results.append(result._replace(update=None))
    places = [np.array([place]) for place in range(len(task.cohort))]
    return CohortSum(total, np.float64(weight), bits, results, places)


def train_one_by_one(algorithm: Algorithm, task: Task, store: Store) -> Iterator[tuple[np.ndarray, UserResult]]:
    """w_k, and what the device of user k sends. An update that is not finite has weight 0."""
    update, model = algorithm.user_update, algorithm.model(task.params)
    for row, user in users_of(update, store, task.cohort, task.key):
        share = user_weight(user.length, algorithm.weight_cap)  # w_k
        steps = update.steps(int(user.length))
        result = _update(update, model, user, jax.random.fold_in(task.key, row), jnp.asarray(task.clip_norms), steps)
        yield np.asarray(result.sound * share), result


@partial(jax.jit, static_argnums=0)
def _update(update: UserUpdate, model: Any, user: Any, key: Any, clip_norms: Any, steps: int) -> UserResult:
    trained = update.train(model, user, key, clip_norms, steps)  # Δ_k = local SGD(θ) − θ
    return clip_update(update, trained, clip_norms)  # ‖Δ_k‖ ≤ S
