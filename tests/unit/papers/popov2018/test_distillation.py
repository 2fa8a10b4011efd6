"""Transfer learning on the server: soft labels, the texts, and what a round does to the model."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sottovoce.data.store import PublicText
from sottovoce.data.words import BOS, EOS
from sottovoce.local.update import FedAvg, User, cut_into_lanes
from sottovoce.papers.popov2018.distillation import (
    ClientModel,
    Distillation,
    collect,
    distil,
    mean_predictions,
)
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.strategy import Work
from sottovoce.training.types import Algorithm, Task
from sottovoce_evidence.accounting import NonPrivate

LANES, UNROLL = 2, 5
SECRET = bytes(range(32))


class Notebook:
    def __init__(self):
        self.spent = []

    def __call__(self, keys):
        self.keys = keys
        return self

    def charge(self, event):
        self.spent.append(event)
        return SECRET


def make_algorithm(rate: float = 1.0, weight_cap: float = 1.0, learning_rate: float = 0.5) -> Algorithm:
    clip = FlatClip(2.0)
    return Algorithm(
        Mechanism(Poisson(rate), clip, TrueAverage(), noise_multiplier=0.0),
        FedAvg(clip, True, batch=LANES, unroll=UNROLL, learning_rate=1.0),
        Server(optax.sgd(learning_rate)),
        weight_cap,
    )


@pytest.fixture(scope="module")
def readers(store):
    """The store, with public text."""
    public = PublicText(np.tile(np.arange(3, 43, dtype=np.int32), 5), store.vocabulary.fingerprint, "public")
    return dataclasses.replace(store, public=public)


def changed(model, seed, scale=0.3):
    leaves, structure = jax.tree.flatten(model)
    generator = np.random.default_rng(seed)
    return structure.unflatten([generator.normal(0, scale, leaf.shape).astype(np.float32) for leaf in leaves])


@pytest.mark.slow
def test_soft_labels_are_the_weighted_mean_of_what_every_model_predicts(model):
    """Equation 4, written a second time: whole lanes at once, in float64."""
    tokens = np.array([BOS, 5, 9, 7, EOS, BOS, 8, 8, 30, 4, 6, EOS, BOS, 11], np.int32)
    batches = cut_into_lanes(User(jnp.asarray(tokens), jnp.int32(len(tokens))), LANES, UNROLL, BOS)
    returned = [
        ClientModel(1.0, changed(model, 1)),
        ClientModel(0.25, changed(model, 2)),
        ClientModel(0.5, changed(model, 3)),
    ]
    found = np.asarray(mean_predictions(model, returned, batches))
    lane = len(tokens) // LANES
    read = np.concatenate([[BOS], tokens[:-1]])
    for number in range(LANES):
        expected = 0
        for weight, update in returned:
            teacher = jax.tree.map(jnp.add, model, update)
            outputs, _ = teacher.read(jnp.asarray(read[number * lane : (number + 1) * lane]), teacher.initial_state())
            chances = np.asarray(jax.nn.softmax(teacher.logits(outputs)), np.float64)
            expected += weight / 1.75 * chances
        ours = found[:, number].reshape(-1, model.embedding.shape[0])[:lane]
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_comes_back_is_what_averaging_would_have_summed(store, model):
    algorithm, key, clip_norms = make_algorithm(weight_cap=30.0), jax.random.key(3), np.array([2.0], np.float32)
    cohort = np.arange(store.users)
    returned, known = collect(algorithm, Task(model, cohort, clip_norms, key), store)
    summed = sum_one_by_one(algorithm, Task(model, cohort, clip_norms, key), store)
    assert known.users == store.users
    assert len(returned) == store.users - 1  # one has no text, and sends nothing
    assert float(known.weight) == pytest.approx(float(summed.weight), abs=1e-6)
    total = jax.tree.map(lambda *parts: sum(parts), *[jax.tree.map(lambda u, w=w: w * u, u) for w, u in returned])
    for ours, theirs in zip(jax.tree.leaves(total), jax.tree.leaves(summed.total), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("generated", [False, True])
@pytest.mark.slow
def test_the_server_comes_to_predict_as_the_returned_models_do(readers, model, generated):
    algorithm = make_algorithm()
    teacher = changed(model, 5)
    state = algorithm.server.start(model)
    transfer = Distillation(60, epochs=4, generated=generated)
    after, losses, not_finite = distil(algorithm, transfer, state, readers, [ClientModel(1.0, teacher)], SECRET)
    assert not any(map(int, not_finite))
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert after.round == state.round + 1

    def distance(student):
        tokens = jnp.arange(10, 40)  # not what was read
        ours, theirs = (
            jax.nn.log_softmax(m.logits(m.read(tokens, m.initial_state())[0]))
            for m in (student, jax.tree.map(jnp.add, model, teacher))
        )
        return float(jnp.mean(jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)))

    assert distance(after.params) < 0.9 * distance(model)


@pytest.mark.slow
def test_a_round_pays_before_it_teaches_and_its_secrets_give_its_bits(readers, model):
    algorithm, ledger = make_algorithm(0.5), Notebook()
    transfer, state = Distillation(40, epochs=2), algorithm.server.start(model)
    one, played = transfer.play(algorithm, Work(readers, None), state, ledger(Secrets.seeded(1).keys(1)))
    assert ledger.spent == [NonPrivate()]
    assert one.round == 1
    facts = played.diagnostics()
    assert facts["users"] == played.users > 0
    assert len(facts["server_losses"]) == 2
    again, _ = transfer.play(algorithm, Work(readers, None), state, ledger(Secrets.seeded(1).keys(1)))
    other, _ = transfer.play(algorithm, Work(readers, None), state, ledger(Secrets.seeded(2).keys(1)))
    np.testing.assert_array_equal(one.params.projection, again.params.projection)
    assert np.any(one.params.projection != other.params.projection)
