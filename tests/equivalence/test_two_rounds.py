"""The round that is read and the round that is run give the same model."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from sottovoce.data.public import PublicText
from sottovoce.kernels.lstm_users import PLAIN
from sottovoce.local.objective import WithoutForgetting
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import Algorithm, play_round, sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.simulation import SumInBlocks

LOCAL = {"batch": 3, "unroll": 4, "learning_rate": 2.0}
CLIPS = {"flat": FlatClip(0.4), "per_layer": PerLayerClip.even(0.4, 11), "none": NoClip()}
ESTIMATORS = {"fixed": FixedDenominator(6.0), "clipped": ClippedDenominator(5.0), "average": TrueAverage()}
UPDATES = {
    "fedavg, every step": lambda clip: FedAvg(clip, True, **LOCAL),
    "fedavg, at the end": lambda clip: FedAvg(clip, False, **LOCAL),
    "fedavg, two epochs": lambda clip: FedAvg(clip, True, epochs=2, **LOCAL),
    "fedsgd": lambda clip: FedSGD(clip, **LOCAL),
    "fedsgd, some tokens": lambda clip: FedSGD(clip, tokens=17, **LOCAL),
    "rehearsal": lambda clip: FedAvg(clip, True, user_share=0.6, **LOCAL),
    "without forgetting": lambda clip: FedAvg(clip, True, objective=WithoutForgetting(0.6), **LOCAL),
}
VARIANTS = ("fedavg, two epochs", "fedsgd, some tokens", "rehearsal", "without forgetting")


class NoLedger:
    def spend(self, round_number, event):
        pass


def end_of_round(store, model, sum_updates, user_update, estimator, clip, weight_cap=20.0):
    mechanism = Mechanism(
        Poisson(0.6), clip, estimator, noise_multiplier=0.0, experiment=True, experiment_noise_std=0.01
    )
    algorithm = Algorithm(mechanism, user_update, Server(optax.sgd(1.0)), weight_cap)
    state = algorithm.server.start(model)
    return play_round(algorithm, state, store, Secrets.seeded(3).keys(1, "a"), NoLedger(), sum_updates)


# A compilation for each update and clip: the variants of variants are left to `make test-slow`.
COMBINATIONS = [
    pytest.param(*names, marks=[pytest.mark.slow] if names[0] in VARIANTS else [])
    for names in itertools.product(UPDATES, CLIPS, ESTIMATORS)
]


@pytest.mark.parametrize(("update", "clip", "estimator"), COMBINATIONS)
def test_the_two_rounds_are_equal(store, model, update, clip, estimator):
    parts = (UPDATES[update](CLIPS[clip]), ESTIMATORS[estimator], CLIPS[clip])
    if update == "rehearsal":
        text = np.arange(500, dtype=np.int32) % store.vocabulary.size
        store = replace(store, public=PublicText(text, store.vocabulary.fingerprint, "text"))
    slow, slow_sum = end_of_round(store, model, sum_one_by_one, *parts)
    fast, fast_sum = end_of_round(store, model, SumInBlocks(4), *parts)
    for before, a, b in zip(*map(jax.tree.leaves, (model, slow.model, fast.model)), strict=True):
        assert not np.allclose(before, a, atol=1e-4), "the round changed nothing, so equality says nothing"
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    np.testing.assert_allclose(slow_sum.weight, fast_sum.weight, rtol=1e-6)
    np.testing.assert_allclose(slow_sum.norms, fast_sum.norms, rtol=1e-4, atol=1e-6)
    assert slow_sum.clipped.tolist() == fast_sum.clipped.tolist()
    np.testing.assert_allclose(slow_sum.losses, fast_sum.losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("block", [1, 2, 3, 5, 13, 40])
def test_the_block_size_does_not_change_the_round(store, model, block):
    parts = (UPDATES["fedavg, every step"](CLIPS["flat"]), ESTIMATORS["fixed"], CLIPS["flat"])
    reference, _ = end_of_round(store, model, sum_one_by_one, *parts)
    other, _ = end_of_round(store, model, SumInBlocks(block), *parts)
    for a, b in zip(jax.tree.leaves(reference.model), jax.tree.leaves(other.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("latency", [0, 100], ids=["many blocks", "one block"])
def test_the_program_for_many_users_does_not_change_the_round(store, model, latency):
    """Its sums are put together from parts; in one block, users who have finished and empty seats are passed over."""
    parts = (UPDATES["fedavg, every step"](CLIPS["flat"]), ESTIMATORS["fixed"], CLIPS["flat"])
    reference, one_by_one = end_of_round(store, model, sum_one_by_one, *parts)
    other, summed = end_of_round(store, model, SumInBlocks(16, PLAIN, latency=latency), *parts)
    assert len(summed.results) == 1 if latency else len(summed.results) > 1
    for a, b in zip(jax.tree.leaves(reference.model), jax.tree.leaves(other.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6)
    np.testing.assert_allclose(one_by_one.losses, summed.losses, rtol=1e-4, atol=1e-6)
