"""Neighbour replay of sampled examples: one user with all examples removed, under the same coins of all others.

A round moves by at most S for each example of the user that its coins draw, so by a binomial number of S: that is the
mixture of Gaussians which is charged. And one user comes near it, with examples that all pull one way.
"""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from free import Free
from sottovoce.data.store import Store
from sottovoce.local.update import FedSGD
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Examples
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.server import Server
from sottovoce.training.strategy import Work
from sottovoce.training.types import Algorithm
from sottovoce.training.variants.example_level import ExampleLevel
from sottovoce_evidence.accounting import SampledExamples

S, RATE, LENGTH, MOST, CAP, ROUNDS, LOUD = 0.5, 0.4, 6, 4, 30, 16, 3
CLIP, SERVER, SUM = FlatClip(S), Server(optax.sgd(1.0)), SumInBlocks(4)
USERS = [[40 + row, 41, 42, 43 + row, 44, 45, 46][: 3 + row] * 3 for row in range(6)]
ALIKE = [50] * CAP  # more than MOST examples: the rest is not read
ESTIMATORS = {"fixed": FixedDenominator(2.0), "clipped": ClippedDenominator(1.5)}


def make_algorithm(estimator) -> Algorithm:
    mechanism = Mechanism(Examples(RATE, MOST), CLIP, estimator, 1.0)
    return Algorithm(mechanism, FedSGD(CLIP, batch=1, unroll=6, learning_rate=30.0, tokens=LENGTH), SERVER)


def replay(model, vocabulary, algorithm, loudest) -> list:
    """What every round found, each begun with the same model."""
    users = [*USERS[:LOUD], loudest, *USERS[LOUD:]]
    store = Store.from_users(users, vocabulary, tokens_per_user=CAP)
    seen, state = [], algorithm.server.start(model)
    for number in range(ROUNDS):
        payment = Free(Secrets.seeded(4).keys(number + 1))
        work = Work(store, SUM, seen.append)
        ExampleLevel(LENGTH, MOST).play(algorithm, work, state._replace(round=number), payment)
    return seen


def distance(mechanism, one, other) -> float:
    """How far apart two rounds are, in units of what one example may move."""
    estimates = [mechanism.estimate(each.summed.total, each.summed.weight, each.summed.bits) for each in (one, other)]
    leaves = zip(*(jax.tree.leaves(each.update) for each in estimates), strict=True)
    moved = np.linalg.norm(np.concatenate([np.ravel(np.float64(a) - np.float64(b)) for a, b in leaves]))
    return float(moved) / mechanism.sensitivity(one.task.clip_norms)


@pytest.mark.parametrize("estimator", ["fixed", pytest.param("clipped", marks=pytest.mark.slow)])
def test_a_user_moves_a_round_by_their_examples_that_it_draws(model, vocabulary, estimator):
    algorithm = make_algorithm(ESTIMATORS[estimator])
    here, gone = (replay(model, vocabulary, algorithm, text) for text in (ALIKE, []))
    event = algorithm.mechanism.event(1)
    assert event == SampledExamples(1.0, RATE, MOST)
    counts, nearest = [], 0.0
    for one, other in zip(here, gone, strict=True):
        assert np.array_equal(one.task.cohort, other.task.cohort), "the coins of others depend on the user's text"
        drawn = int(np.sum(one.task.cohort // MOST == LOUD))
        move = distance(algorithm.mechanism, one, other)
        assert move <= drawn + 1e-5, "a round moves by more examples of one user than were drawn"
        assert move <= event.examples_per_user + 1e-5
        counts.append(drawn)
        nearest = max(nearest, move / drawn if drawn else 0.0)
    assert len(set(counts)) > 2, "the test shows little"
    if estimator == "fixed":  # whose move is a sum
        assert nearest > 0.95, "no user comes near what is charged"
