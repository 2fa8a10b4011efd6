"""Was this user in the round? Real rounds with and without one canary user, and scores of how much it looks like it.

The adversary of the guarantee knows the model, everybody else and what the canary would send, and sees what a round
releases; the coins of the noise are all they lack. So the score of a round is the part of the noised update that
points where the canary's own does. Everybody joins: how chances below 1 help is for the accountant, and tested
elsewhere. Nobody's text is used: the canary and the few who stand around it are made up. What was added to a round is
known too, since the same code says what it would have released without noise.
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

from sottovoce.accounting import Event
from sottovoce.accounting.events import ADDED
from sottovoce.data.store import PublicText, Store, made_up_names
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel, split
from sottovoce.privacy.clipping import joint_norm
from sottovoce.privacy.rng import philox
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round
from sottovoce.training.server import Server, ServerState
from sottovoce.training.types import Algorithm, CohortTotals, RoundTrace, SumUpdates, Task

STAND_INS = 3  # users beside the canary: with a declared qW it does not matter how many there are
REACH = 0.99  # of the clip norm: a canary whose update is as long is as loud as anybody may be
_STEPS = (1, 4, 16)  # local steps of canaries to try, until one is loud
_RELEASE = "rounds of an audit"  # names their keys


class Played(NamedTuple):
    """Of every round: its score, whether the canary was there, and how much of the score is noise."""

    scores: np.ndarray
    present: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True)
class Stage:
    """Two populations that differ in the canary, and the round that is played on one of them."""

    algorithm: Algorithm
    sum_updates: SumUpdates
    start: ServerState
    present: Store
    absent: Store
    direction: LanguageModel  # of the canary's update, of length 1
    reach: float  # the length of what the canary sends, over the clip norm
    shift: float  # how far the canary moves a score, before noise

    @property
    def loudest(self) -> float:
        """How far one user may move a score: what the noise is scaled by, or the canary, should it move it further."""
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

    def play(self, rounds: int, secrets: Secrets, after_round: Callable[[], None] = lambda: None) -> Played:
        """So many rounds, all of them first ones, each with noise of its own."""
        present = philox(secrets.keys(1, "presence").sampling).random(rounds) < 0.5
        scores, noise = np.empty(rounds), np.empty(rounds)
        for number, there in enumerate(present):
            secrets = secrets.at(number + 1)
            store = self.present if there else self.absent
            payment = Unpaid(secrets, _RELEASE).begin(number + 1)
            seen: list[RoundTrace] = []
            state, _ = play_round(self.algorithm, self.start, store, payment, self.sum_updates, seen.append)
            score = _along(state.params, self.start.params, self.direction)
            scores[number] = float(score)  # numpy, left to ask for the number, would make an error of Ctrl-C
            noise[number] = scores[number] - _without_noise(self.algorithm, seen[0].summed, self.direction)
            after_round()
        return Played(scores, present, noise)


def set_stage(
    algorithm: Algorithm, sum_updates: SumUpdates, model: LanguageModel, vocabulary: Vocabulary, *,
    round_number: int = 1, public: PublicText | None = None,
) -> Stage:  # fmt: skip
    """The algorithm as it is, with everybody in every cohort and θ + Δ as the server's step, and a loud canary."""
    params, _ = split(model)
    algorithm = _everybody_joins(algorithm).with_frozen_of(model)
    mechanism = algorithm.mechanism
    start = algorithm.server.start(params, mechanism.start())._replace(round=round_number - 1)
    clip_norms = mechanism.clip_norms(round_number, start.clip_norms)
    step = algorithm.user_update.batch * algorithm.user_update.unroll
    # As long as it takes for full weight, at least.
    lengths = [max(steps * step, math.ceil(algorithm.weight_cap)) for steps in _STEPS]
    best: Stage | None = None
    for length in lengths:
        present, absent, canary = _populations(algorithm, vocabulary, length, max(lengths), public)
        task = Task(start.params, np.array([canary]), clip_norms, local_key(bytes(8)))
        alone = sum_updates(algorithm, task, present)
        sent = float(_length(alone.total))
        if not (math.isfinite(sent) and sent > 0):
            continue
        direction = jax.tree.map(lambda leaf, sent=sent: (np.asarray(leaf) / sent).astype(np.float32), alone.total)
        with_it, without_it = (
            _without_noise(
                algorithm,
                sum_updates(algorithm, task._replace(cohort=np.arange(store.users)), store),
                direction,
            )
            for store in (present, absent)
        )
        shift, reach = abs(with_it - without_it), sent / joint_norm(clip_norms)
        stage = Stage(algorithm, sum_updates, start, present, absent, direction, reach, shift)
        if best is None or stage.reach > best.reach:
            best = stage
        if best.reach >= REACH:
            break
    if best is None:
        raise SottoError("no canary moves this model at all: has it diverged?")
    return best


def _everybody_joins(algorithm: Algorithm) -> Algorithm:
    """Add or remove one where users join by chance; replace one by somebody silent where cohorts have a fixed size."""
    sampler = algorithm.mechanism.sampler.of_population(STAND_INS + 1, STAND_INS + 1)
    # The estimator keeps the declared qW, and so the noise its scale.
    mechanism = replace(algorithm.mechanism, sampler=sampler)
    return replace(algorithm, mechanism=mechanism, server=Server(_PLAIN_STEP))


_PLAIN_STEP = optax.sgd(1.0)  # one object: optimisers are compared by identity, and another would compile again


def _populations(
    algorithm: Algorithm, vocabulary: Vocabulary, length: int, capacity: int, public: PublicText | None
) -> tuple[Store, Store, int]:
    """Everybody, everybody but the canary, and the row the canary has."""
    generator = np.random.default_rng(0)  # words of nobody: any will do
    crowd = [generator.integers(0, vocabulary.size, size=length) for _ in range(STAND_INS)]
    canary = np.full(length, vocabulary.size - 1)  # one rare word over and over: nothing pulls a model further
    absent = crowd if algorithm.mechanism.sampler.relation == ADDED else [*crowd, np.zeros(0, int)]
    stores = [
        Store.from_users(users, vocabulary, tokens_per_user=capacity, names=made_up_names(len(users)))
        for users in ([*crowd, canary], absent)
    ]
    present, absent = (replace(store, public=public) for store in stores)
    return present, absent, STAND_INS


def _length(update: Any) -> float:
    return math.sqrt(sum(float(np.sum(np.square(np.asarray(leaf, np.float64)))) for leaf in jax.tree.leaves(update)))


def _without_noise(algorithm: Algorithm, summed: CohortTotals, direction: LanguageModel) -> float:
    """The score of a round that would be released as it is."""
    exact = algorithm.mechanism.estimate(summed.total, summed.weight, summed.bits).update
    parts = zip(jax.tree.leaves(exact), jax.tree.leaves(direction), strict=True)
    return float(sum(np.sum(np.asarray(leaf, np.float64) * way) for leaf, way in parts))


@jax.jit
def _along(model: LanguageModel, start: LanguageModel, direction: LanguageModel) -> Float[Array, ""]:
    parts = jax.tree.map(lambda new, old, way: jnp.sum((new - old) * way), model, start, direction)
    return sum(jax.tree.leaves(parts), jnp.zeros(()))
