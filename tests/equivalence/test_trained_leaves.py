"""Every trained array has moved after one round, and no frozen one has: for each kind, with and without adapters."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from family import of_family
from free import Free
from kinds import FAMILY
from sottovoce.local.update import FedAvg
from sottovoce.models.contract import LanguageModel, layer_names, split
from sottovoce.models.lora import Adapters, Survey, adapt
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import play_round
from sottovoce.training.server import Server
from sottovoce.training.types import Algorithm

SERVER = Server(optax.sgd(1.0))
ADAPTED = [name for name in FAMILY if name != "stacked_lstm, variational and tied"]  # which has no matrix to adapt
# Which arrays are trained, written out where a test does not ask the model: those of an adapter, by their names.
TRAINED = (".down", ".up")

QUICK = ("lstm",)  # the other kinds are tried in slow tests


def some(name: str):
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


def after_a_round(model: LanguageModel, store, noise_std: float) -> LanguageModel:
    clip = FlatClip(5.0)
    sampler = Poisson(1.0 if noise_std == 0 else 1e-9)  # noise alone, or text alone
    mechanism = Mechanism(sampler, clip, FixedDenominator(6.0), 0.0, experiment=True, experiment_noise_std=noise_std)
    # Two steps or more: an adapter's `up` is zero at first, and `down` has no gradient before it has moved.
    update = FedAvg(clip, True, batch=2, unroll=5, learning_rate=1.0)
    algorithm = Algorithm(mechanism, update, SERVER).with_frozen_of(model)
    payment = Free(Secrets.seeded(3).keys(1))
    state, _ = play_round(algorithm, SERVER.start(split(model)[0]), store, payment, SumInBlocks(8))
    return algorithm.model(state.params)


def changed(before: LanguageModel, after: LanguageModel) -> dict[str, bool]:
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return dict(zip(layer_names(before), (not np.array_equal(*pair) for pair in pairs), strict=True))


@pytest.mark.parametrize("noise_std", [0.0, pytest.param(0.5, marks=pytest.mark.slow)], ids=["text", "noise"])
@pytest.mark.parametrize("name", [some(name) for name in ADAPTED])
def test_adapters_move_and_what_they_adapt_does_not(name, noise_std, store, vocabulary):
    model = adapt(Survey(of_family(name, vocabulary.size), Adapters(2)), jax.random.key(1))
    found = changed(model, after_a_round(model, store, noise_std))
    adapters = {part.rpartition(".")[0] for part in found if part.endswith(".scale")}
    expected = {part: part.rpartition(".")[0] in adapters and part.endswith(TRAINED) for part in found}
    assert found == expected
    assert sum(expected.values()) == 2 * len(adapters) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
def test_without_adapters_every_array_moves(name, store, vocabulary):
    model = of_family(name, vocabulary.size)
    found = changed(model, after_a_round(model, store, 0.0))
    assert all(found.values()), found


@pytest.mark.slow
def test_what_is_trained_besides_moves_too(store, vocabulary):
    model = adapt(Survey(of_family("lstm", vocabulary.size), Adapters(2, trains=("*bias",))), jax.random.key(1))
    found = changed(model, after_a_round(model, store, 0.0))
    gates = [f"base.{gate}_gate.bias" for gate in ("input", "forget", "cell", "output")]
    adapter = ["base.projection.down", "base.projection.up"]
    assert {part for part, did in found.items() if did} == {*adapter, "base.projection_bias", *gates}
