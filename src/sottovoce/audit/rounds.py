"""Was this user in the round? Real rounds with and without one canary user, and scores of how much it looks like it.

The adversary of the guarantee knows the model, everybody else and what the canary would send, and sees what a round
releases; the coins of the noise are all they lack. So the score of a round is the part of the noised update that
points where the canary's own does. Everybody joins: how chances below 1 help is for the accountant, and tested
elsewhere. Nobody's text is used: the canary and the few who stand around it are made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from sottovoce.data.public import PublicText
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import SottoError
from sottovoce.models.language_model import LanguageModel
from sottovoce.privacy.accounting import Event
from sottovoce.privacy.clipping import joint_norm
from sottovoce.privacy.generator import philox
from sottovoce.privacy.noise import noise_key
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import Algorithm, Summed, SumUpdates, play_round
from sottovoce.training.server import Server, ServerState

STAND_INS = 3  # users beside the canary: with a declared qW it does not matter how many there are
REACH = 0.99  # of the clip norm: a canary whose update is as long is as loud as anybody may be
_STEPS = (1, 4, 16)  # local steps of canaries to try, until one is loud
_RELEASE = "rounds of an audit"  # names their keys


@dataclass(frozen=True)
class _Unpaid:
    """Nobody is in these rounds. All are first ones for the algorithm; a key of its own gives each its noise."""

    noise_key: bytes

    def spend(self, round_number: int, event: Event, sums: Summed | None) -> bytes:
        return self.noise_key


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

    def event(self) -> Event:
        """What one such round is charged."""
        return self.algorithm.mechanism.event(self.start.round + 1)

    def play(
        self, rounds: int, secrets: Secrets, after_round: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, np.ndarray]:
        """So many rounds, all of them first ones, each with noise of its own: scores, and was the canary there?"""
        present = philox(secrets.keys(1, "presence").sampling).random(rounds) < 0.5
        scores = np.empty(rounds)
        for number, there in enumerate(present):
            secrets = secrets.at(number + 1)
            keys = secrets.keys(number + 1, _RELEASE)
            store = self.present if there else self.absent
            unpaid = _Unpaid(secrets.noise_key(number + 1, _RELEASE, b""))
            state, _ = play_round(self.algorithm, self.start, store, keys, unpaid, self.sum_updates)
            score = _along(state.model, self.start.model, self.direction)
            scores[number] = float(score)  # numpy, left to ask for the number, would make an error of Ctrl-C
            after_round()
        return scores, present


def set_stage(
    algorithm: Algorithm, sum_updates: SumUpdates, model: LanguageModel, vocabulary: Vocabulary, *,
    round_number: int = 1, public: PublicText | None = None,
) -> Stage:  # fmt: skip
    """The algorithm as it is, with everybody in every cohort and θ + Δ as the server's step, and a loud canary."""
    algorithm = _everybody_joins(algorithm)
    mechanism = algorithm.mechanism
    start = algorithm.server.start(model, mechanism.start())._replace(round=round_number - 1)
    clip_norms = mechanism.clip_norms(round_number, start.clip_norms)
    step = algorithm.user_update.batch * algorithm.user_update.unroll
    # As long as it takes for full weight, at least.
    lengths = [max(steps * step, math.ceil(algorithm.weight_cap)) for steps in _STEPS]
    best: Stage | None = None
    for length in lengths:
        present, absent, canary = _populations(algorithm, vocabulary, length, max(lengths), public)
        alone = sum_updates(algorithm, start.model, present, np.array([canary]), noise_key(bytes(8)), clip_norms)
        sent = float(_length(alone.total))
        if not (math.isfinite(sent) and sent > 0):
            continue
        direction = jax.tree.map(lambda leaf, sent=sent: (np.asarray(leaf) / sent).astype(np.float32), alone.total)
        stage = Stage(algorithm, sum_updates, start, present, absent, direction, sent / joint_norm(clip_norms))
        if best is None or stage.reach > best.reach:
            best = stage
        if best.reach >= REACH:
            break
    if best is None:
        raise SottoError("no canary moves this model at all: has it diverged?")
    return best


def _everybody_joins(algorithm: Algorithm) -> Algorithm:
    """Add or remove one where users join by chance; replace one by somebody silent where cohorts have a fixed size."""
    sampler = algorithm.mechanism.sampler
    if isinstance(sampler, Poisson):
        sampler = replace(sampler, user_rate=1.0)
    else:
        sampler = replace(sampler, cohort=STAND_INS + 1, users=STAND_INS + 1)
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
    absent = crowd if isinstance(algorithm.mechanism.sampler, Poisson) else [*crowd, np.zeros(0, int)]
    stores = [Store.from_users(users, vocabulary, tokens_per_user=capacity) for users in ([*crowd, canary], absent)]
    present, absent = (replace(store, public=public) for store in stores)
    return present, absent, STAND_INS


def _length(update: Any) -> float:
    return math.sqrt(sum(float(np.sum(np.square(np.asarray(leaf, np.float64)))) for leaf in jax.tree.leaves(update)))


@jax.jit
def _along(model: LanguageModel, start: LanguageModel, direction: LanguageModel) -> Float[Array, ""]:
    parts = jax.tree.map(lambda new, old, way: jnp.sum((new - old) * way), model, start, direction)
    return sum(jax.tree.leaves(parts), jnp.zeros(()))
