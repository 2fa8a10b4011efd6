"""A schedule of the server's learning rate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sottovoce.build.algorithm import build_optimiser, build_server
from sottovoce.training.server import Server
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.schedule import Schedule

UPDATE = {"weight": jnp.array([0.5, -2.0])}
MODEL = {"weight": jnp.array([1.0, 1.0])}


@pytest.mark.parametrize("optimiser", [optax.sgd(0.5), optax.sgd(0.5, momentum=0.9), optax.adam(0.1)])
def test_a_factor_scales_what_the_optimiser_makes_of_an_update(optimiser):
    server = Server(optimiser, Schedule(((1, 1.0), (2, 0.25))))
    state = server.start(MODEL)
    steps = [server.step(state._replace(round=done), UPDATE) for done in (0, 1)]
    assert [step.round for step in steps] == [1, 2]
    halves = [step.params["weight"] - 1 for step in steps]
    np.testing.assert_allclose(halves[1], 0.25 * halves[0], rtol=1e-5)
    assert float(jnp.max(jnp.abs(halves[0]))) > 0.01
    # What an optimiser remembers is not scaled.
    kept = [jax.tree.leaves(step.optimiser) for step in steps]
    assert all(np.array_equal(one, other) for one, other in zip(*kept, strict=True))


def test_without_a_schedule_a_step_is_what_it_was():
    assert Server(optax.sgd(1.0)).factor(7) is None


def test_a_recipe_gives_the_schedule_and_shares_the_optimiser():
    base = Recipe().replace(run={"rounds": 10})
    scheduled = build_server(base.replace(server={"schedule": [[1, 1.0], [6, 0.5]]}))
    assert [scheduled.factor(number) for number in (1, 5, 6, 10)] == [1.0, 1.0, 0.5, 0.5]
    assert scheduled.optimiser is build_optimiser(base.server)  # so that a step is compiled once
