"""Neighbour replay over whole runs with correlated noise: all rounds together move by at most the declared sensitivity.

Two stores differ in one person. Along one trajectory of models (what was released is the same in both worlds), U holds
the difference of the estimates of every round. What one person moves the run is ‖C U‖: noise_std is z times its bound.
"""

from __future__ import annotations

from itertools import product

import jax
import numpy as np
import optax
import pytest

from free import Free
from sottovoce.data.grouping import Grouping
from sottovoce.data.store import Store
from sottovoce.data.words import BOS, EOS
from sottovoce.local.update import FedAvg
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import InTurn, MinSeparation
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm
from sottovoce_evidence.accounting.matrices import Banded, Blt, StrategyMatrix

LENGTH, S, Z, QW, DECLARED, COHORT, ROUNDS = 24, 0.5, 0.8, 3.0, 12, 3, 11
MATRICES = {"banded": Banded((1.0, 0.6, 0.4, 0.3, 0.2)), "blt": Blt((0.3, 0.2), (0.9, 0.4))}
SAMPLERS = {
    "in_turn": InTurn(COHORT, DECLARED, seed=5),
    "min_separation": MinSeparation(COHORT, DECLARED, 5, min_separation=3, most_participations=3),
}
SUM = SumInBlocks(4)
SERVER = Server(optax.sgd(1.0))


PEOPLE = {f"p{number}": [BOS, 45 + number, 46, 47 + number, EOS, 50] for number in range(9)}
LOUD = [50] * LENGTH  # one word over and over: who writes it pulls far


def store_of(vocabulary, people: dict[str, list[int]]) -> Store:
    names = [Grouping().name(user) for user in people]
    return Store.from_users(list(people.values()), vocabulary, tokens_per_user=LENGTH, names=names)


def name_of(user: str) -> int:
    name = Grouping().name(user)
    return int.from_bytes(name[:8], "big") ^ int.from_bytes(name[8:], "big")


def worst_newcomer(sampler, matrix: StrategyMatrix) -> str:
    """An id whose rounds are as bad as any: their ‖C u‖ is the sensitivity, or nearly."""
    users = [f"n{number}" for number in range(400)]
    joined = sampler.rounds_of(np.array([name_of(user) for user in users], np.uint64), ROUNDS)
    norms = [matrix.norm(sorted(set(rounds.tolist()) - {0}), ROUNDS) for rounds in joined]
    return users[int(np.argmax(norms))]


def algorithm_of(sampler, matrix: StrategyMatrix) -> Algorithm:
    clip, participation = FlatClip(S), sampler.participation(ROUNDS)
    mechanism = Mechanism(sampler, clip, FixedDenominator(QW), Z, matrix=matrix, participation=participation)
    return Algorithm(mechanism, FedAvg(clip, True, batch=2, unroll=4, learning_rate=30.0), SERVER)


def flat(update) -> np.ndarray:
    return np.concatenate([np.ravel(np.float64(leaf)) for leaf in jax.tree.leaves(update)])


def estimates(algorithm: Algorithm, model, store: Store, models: list) -> np.ndarray:
    """The estimate of every round before noise, each from the given model; without models, those of a run of its own.

    The models of such a run are appended to the list.
    """
    found, own = [], not models
    state = algorithm.server.start(model)._replace(noise=algorithm.mechanism.init_noise(model))
    for number in range(ROUNDS):
        if own:
            models.append(state.params)
        state = state._replace(round=number, params=models[number])
        seen: list = []
        secrets = Secrets.seeded(4)
        payment = Free(secrets.keys(number + 1), secrets, number + 1)
        state, _ = play_round(algorithm, state, store, payment, SUM, seen.append)
        summed = seen[0].summed
        found.append(flat(algorithm.mechanism.estimate(summed.total, summed.weight, summed.bits).update))
    return np.array(found)


def strategy(matrix: StrategyMatrix) -> np.ndarray:
    """C, written out."""
    column = matrix.coefficients(ROUNDS)
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(ROUNDS)] for i in range(ROUNDS)])


QUICK = [("blt", "in_turn")]
CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow, id="-".join(case))
    for case in product(MATRICES, SAMPLERS)
]


@pytest.mark.parametrize(("kind", "sampling"), CASES)
def test_one_user_moves_all_rounds_of_a_run_together_by_at_most_its_sensitivity(model, vocabulary, kind, sampling):
    """Along the models of a run, and where the model stands still: there a user sends the same update every time."""
    matrix, sampler = MATRICES[kind], SAMPLERS[sampling]
    algorithm, newcomer = algorithm_of(sampler, matrix), worst_newcomer(sampler, matrix)
    base, other = (store_of(vocabulary, people) for people in (PEOPLE, {**PEOPLE, newcomer: LOUD}))
    # What one user may move the run, by which the noise is scaled.
    largest = algorithm.mechanism.noise_std(1, algorithm.mechanism.clip_norms(1, None))[0] / Z
    moved = {}
    for path, models in {"of a run": [], "standing still": [model] * ROUNDS}.items():
        difference = estimates(algorithm, model, base, models) - estimates(algorithm, model, other, models)
        moved[path] = float(np.linalg.norm(strategy(matrix) @ difference)) / largest
        rounds = set((np.flatnonzero(np.abs(difference).max(axis=1)) + 1).tolist())
        joined = sampler.rounds_of(np.array([name_of(newcomer)], np.uint64), ROUNDS)[0]
        assert rounds == set(joined.tolist()) - {0}
    assert max(moved.values()) <= 1 + 1e-6
    assert moved["standing still"] > 0.95, "nobody comes near the bound, so the test shows little"
    assert moved["of a run"] > 0.3
