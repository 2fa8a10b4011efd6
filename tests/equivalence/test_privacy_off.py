"""Turning privacy off recovers plain federated averaging, written here a second time and without the package."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sottovoce.data.vocabulary import BOS
from sottovoce.local.update import FedAvg, User
from sottovoce.privacy.clipping import FlatClip, NoClip
from sottovoce.privacy.estimators import TrueAverage
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import Algorithm, play_round, sum_one_by_one
from sottovoce.training.server import Server

LANES, UNROLL, RATE, CAP = 3, 4, 2.0, 20.0


def plain_user_update(model, tokens):
    """SGD over one user, by hand: no masks, no padding, no scan over steps."""
    lane = -(-len(tokens) // LANES)
    lanes = [tokens[i * lane : (i + 1) * lane] for i in range(LANES)]
    stream_inputs = np.concatenate([[BOS], tokens[:-1]]).astype(np.int32)
    inputs = [stream_inputs[i * lane : (i + 1) * lane] for i in range(LANES)]
    states = [model.start() for _ in range(LANES)]
    start = model
    for step in range(0, lane, UNROLL):

        def loss(model, states=states, step=step):
            total, count, after = 0.0, 0, []
            for read, wanted, state in zip(inputs, lanes, states, strict=True):
                read, wanted = read[step : step + UNROLL], wanted[step : step + UNROLL]
                if len(read):
                    outputs, state = model.read(jnp.asarray(read), state)
                    for output, target in zip(outputs, wanted, strict=True):
                        if target != BOS:
                            total -= jax.nn.log_softmax(model.score(output))[target]
                            count += 1
                after.append(state)
            return (total / count if count else jnp.zeros(())), after

        (_, states), gradient = jax.value_and_grad(loss, has_aux=True)(model)
        model = jax.tree.map(lambda weight, slope: weight - RATE * slope, model, gradient)
    return jax.tree.map(jnp.subtract, model, start)


def test_privacy_off_is_plain_federated_averaging(store, model):
    algorithm = Algorithm(
        Mechanism(Poisson(1.0), NoClip(), TrueAverage(), noise_multiplier=0.0),
        FedAvg(NoClip(), True, batch=LANES, unroll=UNROLL, learning_rate=RATE),
        Server(optax.sgd(1.0)),
        weight_cap=CAP,
    )

    class NoLedger:
        def spend(self, round_number, event):
            pass

    state, _ = play_round(
        algorithm, algorithm.server.start(model), store, Secrets.seeded(0).keys(1, "a"), NoLedger(), sum_one_by_one
    )
    users = [store[row] for row in range(store.users) if len(store[row])]
    weights = [min(len(user) / CAP, 1.0) for user in users]
    updates = [plain_user_update(model, user) for user in users]
    for index, (before, after) in enumerate(zip(jax.tree.leaves(model), jax.tree.leaves(state.model), strict=True)):
        mean = sum(w * jax.tree.leaves(u)[index] for w, u in zip(weights, updates, strict=True)) / sum(weights)
        np.testing.assert_allclose(after - before, mean, rtol=0, atol=3e-6)
        assert float(jnp.abs(mean).max()) > 1e-4


def test_a_clip_that_nothing_reaches_and_no_clip_are_the_same_to_the_bit(store, model):
    ends = []
    for clip in (NoClip(), FlatClip(1e6)):
        update = FedAvg(clip, True, batch=LANES, unroll=UNROLL, learning_rate=RATE)
        block = store.gather([0])
        user, steps = User(jnp.asarray(block.tokens[0]), jnp.asarray(block.lengths[0])), update.steps(block.lengths[0])
        result = update(model, user, jax.random.key(0), jnp.asarray(clip.clip_norms), steps)
        ends.append(result.update)
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)
