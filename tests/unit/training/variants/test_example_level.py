"""Example-level sampling: a round over examples, each clipped and added up by itself."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
import pytest

from free import AllFree
from sottovoce.data.examples import examples_of
from sottovoce.local.update import FedSGD
from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Examples
from sottovoce.runs.secrets import Secrets
from sottovoce.training.cohort_sum import SumInBlocks
from sottovoce.training.round import sum_one_by_one
from sottovoce.training.server import Server
from sottovoce.training.strategy import Work, play_rounds
from sottovoce.training.types import Algorithm
from sottovoce.training.variants.example_level import ExampleLevel, SumWithText

LENGTH, MOST, S = 12, 3, 0.4
ELS = ExampleLevel(LENGTH, MOST)
CLIP = FlatClip(S)
ALGORITHM = Algorithm(
    Mechanism(Examples(0.5, MOST), CLIP, FixedDenominator(10.0), noise_multiplier=1.0),
    FedSGD(CLIP, batch=2, unroll=3, learning_rate=2.0, tokens=LENGTH),
    Server(optax.sgd(1.0)),
)


def play(model, store, sum_updates, rounds=2):
    seen = []
    payments = AllFree(lambda number: Secrets.seeded(5).keys(number))
    work = Work(store, sum_updates, seen.append)
    start = ALGORITHM.server.start(model)
    *_, (state, _) = play_rounds(partial(ELS.play, ALGORITHM, work), start, rounds, payments)
    return state, seen


@pytest.fixture(scope="module")
def slow(model, store):
    return play(model, store, sum_one_by_one)


@pytest.mark.slow
def test_a_round_in_blocks_is_the_round_one_by_one(model, store, slow):
    fast, _ = play(model, store, SumInBlocks(4))
    for one, other in zip(jax.tree.leaves(fast.params), jax.tree.leaves(slow[0].params), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_empty_examples_are_not_computed_and_change_no_sum(model, store, slow):
    examples = examples_of(store, LENGTH, MOST)
    trace = slow[1][0]
    task = trace.task._replace(cohort=np.arange(len(examples)))
    whole, short = sum_one_by_one(ALGORITHM, task, examples), SumWithText(sum_one_by_one)(ALGORITHM, task, examples)
    assert short.users == np.sum(examples.lengths(task.cohort) > 0) < whole.users
    for one, other in zip(jax.tree.leaves(whole.total), jax.tree.leaves(short.total), strict=True):
        assert np.array_equal(one, other)
    assert whole.weight == short.weight


def test_the_users_of_a_round_are_those_of_its_examples(store):
    key = Secrets.seeded(5).keys(1).sampling
    rows = ALGORITHM.mechanism.sampler.sample(examples_of(store, LENGTH, MOST), key)
    assert ELS.drawn(ALGORITHM, store, key, 1).tolist() == sorted({row // MOST for row in rows.tolist()})


def test_no_device_sends_anything():
    assert not ELS.federated
