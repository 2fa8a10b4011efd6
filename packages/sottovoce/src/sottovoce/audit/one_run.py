"""Which canary users were in? Evidence from every round of a run, gathered while it trains.

The adversary of the guarantee knows the model, all text and all that happened to the other users, and sees what a
round releases. So the updates of all but the canary users are subtracted from the noised estimate: the rest is noise
and the canaries who joined. Whether one was drawn stays hidden, as it is in the proof.

Let Δ be what a canary would send, over the denominator, and x its dot product with the rest. In a round a canary that
is in joins with chance q, and the noise has standard deviation σ: the log-likelihood ratio of "in" against "out" is
log(1 - q + q exp((x - |Δ|²/2) / σ²)). Evidence is its sum over rounds. The updates of other canaries have a component
along Δ too: which of them joined is not known, so they count as noise, larger in some directions (`evidence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sottovoce.audit.canaries import insert
from sottovoce.audit.registry import Registry
from sottovoce.build.assembly import Assembly
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.evaluation.prediction import count_hits
from sottovoce.local.keys import local_key
from sottovoce.models.contract import LanguageModel, split
from sottovoce.privacy.rng import philox
from sottovoce.runs.secrets import Salt
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.types import Algorithm, RoundTrace, Task

LEAST_NOISE = 1e-4  # over an update's square: what a round without noise is taken to have


def draw_membership(registry: Registry, salt: Salt) -> np.ndarray:
    """Which canary users are in: fair coins that cannot be known without the run's secrets."""
    return philox(salt.lasting_key("canaries")).random(len(registry.users)) < 0.5


@dataclass
class CanaryScorer:
    """Scores the canary users in every round of a run. `scores` are for the owner alone: they help to undo noise."""

    algorithm: Algorithm
    sum_updates: SumInBlocks
    inserted: Store  # the users and the canaries that are in: what the run trains on
    everyone: Store  # with the canaries that are out, too
    rows: np.ndarray  # of the canary users
    scores: np.ndarray

    @staticmethod
    def of(assembly: Assembly, store: Store, registry: Registry, present: np.ndarray) -> CanaryScorer:
        rows = store.users + np.arange(len(registry.users))
        inserted, everyone = insert(store, registry, present), insert(store, registry)
        return CanaryScorer(
            assembly.algorithm, assembly.sum_updates, inserted, everyone, rows, np.zeros(len(rows), np.float64)
        )

    def __call__(self, seen: RoundTrace) -> None:
        if not len(self.rows):
            return
        mechanism = self.algorithm.mechanism
        assert mechanism.sampler.independent
        rate = mechanism.sampler.user_rate
        rest, scale = self._rest(seen)
        task = seen.task._replace(cohort=self.rows)
        # What all canaries are expected to have sent is subtracted exactly: sketches of thousands of updates that have
        # a direction in common are wrong by more than the noise there.
        expected = self.sum_updates(self.algorithm, task, self.everyone).total
        rest = jax.tree.map(lambda all_, sent: np.float32(all_ - rate / 2 * scale * np.asarray(sent)), rest, expected)
        dots, sketches = self.sum_updates.project_updates(rest, self.algorithm, task, self.everyone)
        gram = scale**2 * sketches @ sketches.T
        noise_std, _ = mechanism.noise_std(seen.round, seen.task.clip_norms)
        self.scores += evidence(scale * dots + rate / 2 * gram.sum(axis=1), gram, noise_std, rate)

    def _rest(self, seen: RoundTrace) -> tuple[Any, float]:
        """The noised estimate without the other users, and what a sum is multiplied by in it."""
        mechanism, summed = self.algorithm.mechanism, seen.summed
        cohort = seen.task.cohort
        mine = seen.task._replace(cohort=cohort[np.isin(cohort, self.rows)])
        own = self.sum_updates(self.algorithm, mine, self.inserted)
        # Exact: what a user sends is the same in any block.
        others = jax.tree.map(lambda all_, few: np.asarray(all_) - np.asarray(few), summed.total, own.total)
        weight: Any = np.asarray(summed.weight) - np.asarray(own.weight)
        known = mechanism.estimate(others, weight, summed.bits).update
        scale = mechanism.estimate(np.float64(1), weight, summed.bits).update
        rest = jax.tree.map(lambda noised, known: np.float32(noised - np.asarray(known)), seen.noised.update, known)
        return rest, float(scale)


def evidence(dots: np.ndarray, gram: np.ndarray, noise_std: float, user_rate: float) -> np.ndarray:
    """Of one round for each canary: the log-likelihood ratio of "in" against "out".

    From the dot product of each canary's update with the rest, and those of updates with one another. To one canary
    the others are Gaussian noise: each joined with chance q/2. Let C be the covariance of all, A = (vG + σ²)⁻¹ with
    v = q/2 (1 - q/2), and M the updates: then M C⁻¹ = A M, and the canary's own part of C is subtracted again.
    """
    joins = user_rate / 2
    spread = joins * (1 - joins)
    noise = max(noise_std**2, LEAST_NOISE * float(np.mean(np.diag(gram))))
    if not noise:
        return np.zeros(len(dots))  # no canary would send anything
    inverse = np.linalg.inv(spread * gram + noise * np.eye(len(dots)))
    known = np.diag(inverse @ gram)
    rest = 1 - spread * known
    strength = known / rest  # |Δ|²/σ², where no other update has a component along Δ
    found = (inverse @ (dots - joins * gram.sum(axis=1)) + joins * known) / rest
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-user_rate), np.log(user_rate) + found - strength / 2)


def scores_of_model(
    model: LanguageModel, registry: Registry, vocabulary: Tokenizer, start: LanguageModel | None = None
) -> np.ndarray:
    """From what the released model predicts: how much better it knows the text of each canary user than expected.

    Some texts are easy for any model. What is expected of a canary is the line that fits the losses of all canaries by
    their losses under the model that training started from. No coin is used, so the scores are the attacker's.
    """
    rows = registry.rows(vocabulary)[: len(registry.users)]
    store = Store.from_users(rows, vocabulary, registry.tokens_per_user)
    known = () if start is None else (_losses(start, store),)
    return -unexpected(_losses(model, store), *known)


def unexpected(losses: np.ndarray, *known: np.ndarray) -> np.ndarray:
    """What is left of the losses after the least squares fit by what is known of each canary."""
    columns = np.stack([np.ones_like(losses), *known], axis=1)
    fitted, *_ = np.linalg.lstsq(columns, losses, rcond=None)
    return losses - columns @ fitted


def _losses(model: LanguageModel, store: Store) -> np.ndarray:
    counts = count_hits(model, store)
    return counts.loss / counts.targets


def scores_of_weights(
    assembly: Assembly, start: LanguageModel, model: LanguageModel, registry: Registry, vocabulary: Tokenizer
) -> np.ndarray:
    """From the released weights and those that training started from: how much of each canary's update is in between.

    The update is what the canary would send to the released model. The difference of the weights is fitted by the
    updates of all canaries together, with a ridge of the noise of all rounds over what a canary adds in them.
    """
    algorithm, rounds = assembly.algorithm.with_frozen_of(model), assembly.recipe.run.rounds
    mechanism = algorithm.mechanism
    before, after = split(start)[0], split(model)[0]
    moved = jax.tree.map(lambda new, old: np.float32(np.asarray(new) - np.asarray(old)), after, before)
    store = Store.from_users(registry.rows(vocabulary)[: len(registry.users)], vocabulary, registry.tokens_per_user)
    task = Task(after, np.arange(store.users), mechanism.clip_norms(rounds, mechanism.start()), local_key(bytes(8)))
    dots, sketches = assembly.sum_updates.project_updates(moved, algorithm, task, store)
    multiplier = mechanism.event(rounds).noise_multiplier
    return parts_of(dots, sketches @ sketches.T, 4 * multiplier**2 / (mechanism.sampler.user_rate**2 * rounds))


def parts_of(dots: np.ndarray, gram: np.ndarray, noise: float) -> np.ndarray:
    """How much of each vector is in another one, from their dot products with it and with one another.

    `noise` is the variance of the noise along a vector over that of the part, in units of the vector's square.
    """
    size = float(np.mean(np.diag(gram)))
    if not size:
        return np.zeros(len(dots))
    return np.linalg.solve(gram + max(noise, LEAST_NOISE) * size * np.eye(len(dots)), dots)
