"""The round that is read and the round that is run give the same model."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from family import FAMILY, of_family
from free import Free
from sottovoce.data.store import PublicText, Store
from sottovoce.data.words import BOS, EOS
from sottovoce.kernels.lstm_users import PLAIN
from sottovoce.local.keys import local_key
from sottovoce.local.objective import WithoutForgetting
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round, sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm, Task

FLAT = FlatClip(0.4)
SERVER = Server(optax.sgd(1.0))  # one for all: another would be compiled again
LOCAL = {"batch": 3, "unroll": 4, "learning_rate": 2.0}
CLIPS = {
    "flat": lambda model: FLAT,
    "per_layer": lambda model: PerLayerClip.even(0.4, len(jax.tree.leaves(model))),
    "none": lambda model: NoClip(),
}
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
# One algorithm: every pair of an update and a clip is compiled anew, and `make test-all` has them all.
QUICK = ("fedavg, every step", "flat")


def end_of_round(store, model, sum_updates, user_update, estimator, clip, weight_cap=20.0):
    mechanism = Mechanism(
        Poisson(0.6), clip, estimator, noise_multiplier=0.0, experiment=True, experiment_noise_std=0.01
    )
    algorithm = Algorithm(mechanism, user_update, SERVER, weight_cap)
    state = algorithm.server.start(model)
    return play_round(algorithm, state, store, Free(Secrets.seeded(3).keys(1)), sum_updates)


COMBINATIONS = [
    pytest.param("lstm", *names, marks=[] if names[:2] == QUICK else [pytest.mark.slow])
    for names in itertools.product(UPDATES, CLIPS, ESTIMATORS)
]
# Of the other kinds, what a model could break: the order of its layers, and whose randomness it trains with.
COMBINATIONS += [
    pytest.param(name, update, clip, "fixed", marks=pytest.mark.slow)
    for name, (update, clip) in itertools.product(
        FAMILY, [("fedavg, every step", "per_layer"), ("fedavg, two epochs", "flat"), ("fedsgd, some tokens", "flat")]
    )
    if name != "lstm"
]


@pytest.mark.parametrize(("any_model", "update", "clip", "estimator"), COMBINATIONS, indirect=["any_model"])
def test_the_two_rounds_are_equal(store, any_model, update, clip, estimator):
    clipping = CLIPS[clip](any_model)
    parts = (UPDATES[update](clipping), ESTIMATORS[estimator], clipping)
    if update == "rehearsal":
        text = np.arange(500, dtype=np.int32) % store.vocabulary.size
        store = replace(store, public=PublicText(text, store.vocabulary.fingerprint, "text"))
    slow, slow_sum = end_of_round(store, any_model, sum_one_by_one, *parts)
    fast, fast_sum = end_of_round(store, any_model, SumInBlocks(4), *parts)
    for before, a, b in zip(*map(jax.tree.leaves, (any_model, slow.params, fast.params)), strict=True):
        assert not np.allclose(before, a, atol=1e-4), "the round changed nothing, so equality says nothing"
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    np.testing.assert_allclose(slow_sum.weight, fast_sum.weight, rtol=1e-6)
    np.testing.assert_allclose(slow_sum.norms, fast_sum.norms, rtol=1e-4, atol=1e-6)
    assert slow_sum.clipped.tolist() == fast_sum.clipped.tolist()
    np.testing.assert_allclose(slow_sum.losses, fast_sum.losses, rtol=1e-4, atol=1e-6)


# One user, an uneven last block, all in one, more places than users: a block size is a compilation.
BLOCKS = [("lstm", block) for block in (1, 2, 3, 5, 13, 40)]
# One of the others is enough, with dropout: that blocks of four are as one by one is shown of every kind above.
BLOCKS += [("stacked_lstm", block) for block in (1, 13)]


@pytest.mark.parametrize(("any_model", "block"), BLOCKS, indirect=["any_model"])
@pytest.mark.slow
def test_the_block_size_does_not_change_the_round(store, any_model, block):
    parts = (UPDATES["fedavg, every step"](FLAT), ESTIMATORS["fixed"], FLAT)
    reference, _ = end_of_round(store, any_model, sum_one_by_one, *parts)
    other, _ = end_of_round(store, any_model, SumInBlocks(block), *parts)
    for a, b in zip(jax.tree.leaves(reference.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("block", [4, 16], ids=["many blocks", "one block"])
@pytest.mark.slow
def test_the_program_for_many_users_does_not_change_the_round(store, model, block):
    """Its sums are put together from parts; users who have finished and empty seats are passed over."""
    parts = (UPDATES["fedavg, every step"](FLAT), ESTIMATORS["fixed"], FLAT)
    reference, one_by_one = end_of_round(store, model, sum_one_by_one, *parts)
    other, summed = end_of_round(store, model, SumInBlocks(block, PLAIN), *parts)
    for a, b in zip(jax.tree.leaves(reference.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-6)
    np.testing.assert_allclose(one_by_one.losses, summed.losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("products", [None, PLAIN], ids=["the general program", "the one for many users"])
@pytest.mark.slow
def test_a_projection_is_the_dot_product_with_what_a_user_sends(store, model, products):
    """Of users of all lengths, one who has no text among them, and weights below 1."""
    mechanism = Mechanism(Poisson(0.6), FLAT, ESTIMATORS["fixed"], 0.0)
    algorithm = Algorithm(mechanism, UPDATES["fedavg, every step"](FLAT), SERVER, 20.0)
    rows, key, norms = np.array([0, 1, 3, 5, 11]), jax.random.key(5), mechanism.clip_norms(1, None)
    vector = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape), model)
    task = Task(model, rows, norms, key)
    dots, sketches = SumInBlocks(16, products).project_updates(vector, algorithm, task, store)
    lengths, sent = np.linalg.norm(sketches, axis=1), []
    for number, row in enumerate(rows):
        alone = sum_one_by_one(algorithm, Task(model, np.array([row]), norms, key), store).total
        sent.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(alone)]))
        pairs = list(zip(jax.tree.leaves(alone), jax.tree.leaves(vector), strict=True))
        assert dots[number] == pytest.approx(sum(float(np.sum(sent * way)) for sent, way in pairs), abs=1e-4)
        assert lengths[number] == pytest.approx(np.sqrt(sum(float(np.sum(sent**2)) for sent, _ in pairs)), abs=1e-5)
    assert lengths[0] > 0.39
    assert lengths[1] == 0
    np.testing.assert_allclose(sketches @ sketches.T, np.array(sent) @ np.array(sent).T, atol=0.08 * 0.4**2)


@pytest.mark.slow
def test_users_and_rounds_have_dropout_of_their_own_and_the_same_again_when_redone(vocabulary):
    """Two users with the same text differ by their masks alone; a model without dropout gives them the same update."""
    twins = Store.from_users([[BOS, 5, 6, 7, EOS] * 4] * 2, vocabulary, tokens_per_user=20)

    def updates(name, round_number=1):
        update = UPDATES["fedavg, every step"](FLAT)
        mechanism = Mechanism(Poisson(1.0), FLAT, FixedDenominator(2.0), noise_multiplier=0.0, experiment=True)
        algorithm = Algorithm(mechanism, update, SERVER)
        key = local_key(Secrets.seeded(3).keys(round_number).local)
        norms = mechanism.clip_norms(1, None)
        return [
            np.concatenate(
                [
                    np.ravel(leaf)
                    for leaf in jax.tree.leaves(
                        SumInBlocks(1)(algorithm, Task(of_family(name), np.array([row]), norms, key), twins).total
                    )
                ]
            )
            for row in (0, 1)
        ]

    first, second = updates("stacked_lstm")
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(np.stack(updates("stacked_lstm")), np.stack([first, second]))
    assert not np.allclose(updates("stacked_lstm", 2)[0], first)
    np.testing.assert_array_equal(*updates("lstm"))
