"""Was this user in the round? Real rounds with and without one canary user, and a score of each.

The adversary of the guarantee knows the model, all other users and what the canary would send, and sees what a round
releases; only the random noise is unknown. So the score of a round is the part of the noised update that points in the
direction of the canary's own. All users join: how sampling helps is for the accountant, and tested elsewhere. No
user's text is used: the canary and a few background users are made up. The noise of a round is known too, since the
same code computes what it would have released without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from sottovoce.data.store import PublicText, Store, made_up_names
from sottovoce.data.tokenizer import Tokenizer, last_typed
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel, split
from sottovoce.privacy.rng import philox
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round
from sottovoce.training.server import Server, ServerState
from sottovoce.training.types import Algorithm, CohortTotals, RoundTrace, SumUpdates, Task
from sottovoce_evidence.accounting import Event
from sottovoce_evidence.accounting.events import ADDED
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import SottoError

N_BACKGROUND = 3  # users besides the canary: with a declared qW it does not matter how many there are
ENOUGH = 0.99  # of the clip norm: a canary whose update is as long moves a round as far as any user may
_STEPS = (1, 4, 16)  # local steps of canaries to try, until one update is long enough


class RoundScores(NamedTuple):
    """Of every round: its score, whether the canary was present, and how much of the score is noise."""

    scores: np.ndarray
    present: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True)
class RoundAudit:
    """Two populations that differ in the canary, and the round that is played on one of them."""

    algorithm: Algorithm
    sum_updates: SumUpdates
    start: ServerState
    present: Store
    absent: Store
    direction: LanguageModel  # of the canary's update, of length 1
    relative_norm: float  # the norm of what the canary sends, over the clip norm
    shift: float  # how far the canary moves a score, before noise

    @staticmethod
    def prepare(
        algorithm: Algorithm,
        sum_updates: SumUpdates,
        model: LanguageModel,
        vocabulary: Tokenizer,
        *,
        round_number: int = 1,
        public: PublicText | None = None,
    ) -> RoundAudit:
        """The algorithm as it is, with every user in every cohort and θ + Δ as the server's step.

        Of a few canaries, the first whose update is as long as the clip norm, or else the longest.
        """
        params, _ = split(model)
        algorithm = _all_join(algorithm).with_frozen_of(model)
        start = algorithm.server.start(params, algorithm.mechanism.start())._replace(round=round_number - 1)
        step = algorithm.user_update.batch * algorithm.user_update.unroll
        # As long as it takes for full weight, at least.
        lengths = [max(steps * step, math.ceil(algorithm.weight_cap)) for steps in _STEPS]
        best: RoundAudit | None = None
        for length in lengths:
            present, absent = _populations(algorithm, vocabulary, length, max(lengths), public)
            audit = _with_canary(algorithm, sum_updates, start, present, absent)
            if audit is not None and (best is None or audit.relative_norm > best.relative_norm):
                best = audit
            if best is not None and best.relative_norm >= ENOUGH:
                break
        if best is None:
            raise SottoError("no canary moves this model at all: it has diverged; audit a model that has not")
        return best

    @property
    def largest_shift(self) -> float:
        """How far one user may move a score: the sensitivity, or the canary's shift, should that be larger."""
        return max(self.shift, self.algorithm.mechanism.sensitivity(self.clip_norms))

    @property
    def clip_norms(self) -> np.ndarray:
        return self.algorithm.mechanism.clip_norms(self.start.round + 1, self.start.clip_norms)

    def event(self) -> Event:
        """What one such round is charged."""
        return self.algorithm.mechanism.event(self.start.round + 1)

    @property
    def multiplier(self) -> float:
        """z, as it is charged: 0 where nothing is claimed."""
        return self.event().noise_multiplier

    def play(self, rounds: int, secrets: Secrets, after_round: Callable[[], None] = lambda: None) -> RoundScores:
        """Play `rounds` rounds from the same start, each with noise of its own."""
        present = philox(secrets.lasting_key("presence")).random(rounds) < 0.5
        scores, noise = np.empty(rounds), np.empty(rounds)
        for number, there in enumerate(present):
            store = self.present if there else self.absent
            payment = Unpaid(secrets).begin(number + 1)
            seen: list[RoundTrace] = []
            state, _ = play_round(self.algorithm, self.start, store, payment, self.sum_updates, seen.append)
            score = _along(state.params, self.start.params, self.direction)
            scores[number] = float(score)  # numpy, left to ask for the number, would make an error of Ctrl-C
            noise[number] = scores[number] - _without_noise(self.algorithm, seen[0].summed, self.direction)
            after_round()
        return RoundScores(scores, present, noise)


def _with_canary(
    algorithm: Algorithm, sum_updates: SumUpdates, start: ServerState, present: Store, absent: Store
) -> RoundAudit | None:
    """An audit with the canary that is the last user present; None where its update is zero or not finite."""
    clip_norms = algorithm.mechanism.clip_norms(start.round + 1, start.clip_norms)

    def total(store: Store, rows: np.ndarray) -> CohortTotals:
        return sum_updates(algorithm, Task(start.params, rows, clip_norms, local_key(bytes(8))), store)

    alone = total(present, np.array([N_BACKGROUND])).total
    norm = _norm(alone)
    if not (math.isfinite(norm) and norm > 0):
        return None
    direction = jax.tree.map(lambda leaf: (np.asarray(leaf) / norm).astype(np.float32), alone)
    with_it, without_it = (
        _without_noise(algorithm, total(store, np.arange(store.users)), direction) for store in (present, absent)
    )
    relative_norm, shift = norm / joint_norm(clip_norms), abs(with_it - without_it)
    return RoundAudit(algorithm, sum_updates, start, present, absent, direction, relative_norm, shift)


def _all_join(algorithm: Algorithm) -> Algorithm:
    """Add or remove one where users join by chance; replace one by an empty user where cohorts have a fixed size."""
    sampler = algorithm.mechanism.sampler.of_population(N_BACKGROUND + 1, N_BACKGROUND + 1)
    # The estimator keeps the declared qW, and so the noise its scale.
    mechanism = replace(algorithm.mechanism, sampler=sampler)
    return replace(algorithm, mechanism=mechanism, server=Server(_PLAIN_STEP))


_PLAIN_STEP = optax.sgd(1.0)  # one object: optimisers are compared by identity, and another would compile again


def _populations(
    algorithm: Algorithm, vocabulary: Tokenizer, length: int, capacity: int, public: PublicText | None
) -> tuple[Store, Store]:
    """The background users with the canary, as the last, and without it."""
    generator = np.random.default_rng(0)  # made-up text: any will do
    background = [generator.integers(0, vocabulary.size, size=length) for _ in range(N_BACKGROUND)]
    canary = np.full(length, last_typed(vocabulary))  # one rare word over and over: no text has a longer update
    absent = background if algorithm.mechanism.sampler.relation == ADDED else [*background, np.zeros(0, int)]
    stores = [
        Store.from_users(users, vocabulary, tokens_per_user=capacity, names=made_up_names(len(users)))
        for users in ([*background, canary], absent)
    ]
    present, absent = (replace(store, public=public) for store in stores)
    return present, absent


def _norm(update: Any) -> float:
    return math.sqrt(sum(float(np.sum(np.square(np.asarray(leaf, np.float64)))) for leaf in jax.tree.leaves(update)))


def _without_noise(algorithm: Algorithm, summed: CohortTotals, direction: LanguageModel) -> float:
    """The score that a round would have without noise."""
    exact = algorithm.mechanism.estimate(summed.total, summed.weight, summed.bits).update
    parts = zip(jax.tree.leaves(exact), jax.tree.leaves(direction), strict=True)
    return float(sum(np.sum(np.asarray(leaf, np.float64) * way) for leaf, way in parts))


@jax.jit
def _along(model: LanguageModel, start: LanguageModel, direction: LanguageModel) -> Float[Array, ""]:
    parts = jax.tree.map(lambda new, old, way: jnp.sum((new - old) * way), model, start, direction)
    return sum(jax.tree.leaves(parts), jnp.zeros(()))
