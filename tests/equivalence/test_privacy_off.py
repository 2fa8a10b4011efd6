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
from sottovoce.privacy.noise import noise_key
from sottovoce.privacy.sampling import Poisson
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import Algorithm, play_round, sum_one_by_one
from sottovoce.training.server import Server

LANES, UNROLL, RATE, CAP = 3, 4, 2.0, 20.0


@jax.jit
def slopes_of(model, read, wanted, counted, state, key):
    """Of the losses of one lane, added up; and its state after."""

    def loss(model):
        outputs, after = model.read(read, state, key)
        return -jnp.dot(jax.nn.log_softmax(model.score(outputs))[jnp.arange(UNROLL), wanted], counted), after

    return jax.grad(loss, has_aux=True)(model)


def plain_user_update(model, tokens, key):
    """SGD over one user, by hand: lane after lane, no scan over steps. `key` is the user's, for models with dropout."""
    lane = -(-len(tokens) // LANES)
    lanes = [tokens[i * lane : (i + 1) * lane] for i in range(LANES)]
    stream_inputs = np.concatenate([[BOS], tokens[:-1]]).astype(np.int32)
    inputs = [stream_inputs[i * lane : (i + 1) * lane] for i in range(LANES)]
    states = [model.start() for _ in range(LANES)]
    start = model = jax.tree.map(np.asarray, model)
    first_pass = jax.random.fold_in(key, 0)
    for number, step in enumerate(range(0, lane, UNROLL)):
        keys = jax.random.split(jax.random.fold_in(first_pass, number), LANES)
        slopes, count = [], 0
        for which in range(LANES):
            read, wanted = inputs[which][step : step + UNROLL], lanes[which][step : step + UNROLL]
            if len(read):
                counted = wanted != BOS
                count += np.sum(counted)
                # Filled up to one shape, to compile once: nothing is read after what is filled in.
                filled = np.pad(np.stack([read, wanted, counted]), ((0, 0), (0, UNROLL - len(read))))
                slope, states[which] = slopes_of(model, *filled, states[which], keys[which])
                slopes.append(slope)
        if count:
            rate = np.float32(RATE / count)
            change = jax.tree.map(lambda *parts, rate=rate: rate * sum(map(np.asarray, parts)), *slopes)
            model = jax.tree.map(np.subtract, model, change)
    return jax.tree.map(np.subtract, model, start)


def test_privacy_off_is_plain_federated_averaging(store, any_model):
    algorithm = Algorithm(
        Mechanism(Poisson(1.0), NoClip(), TrueAverage(), noise_multiplier=0.0),
        FedAvg(NoClip(), True, batch=LANES, unroll=UNROLL, learning_rate=RATE),
        Server(optax.sgd(1.0)),
        weight_cap=CAP,
    )

    class NoLedger:
        def spend(self, round_number, event):
            pass

    keys = Secrets.seeded(0).keys(1, "a")
    state, _ = play_round(algorithm, algorithm.server.start(any_model), store, keys, NoLedger(), sum_one_by_one)
    users = [row for row in range(store.users) if len(store[row])]
    weights = [min(len(store[row]) / CAP, 1.0) for row in users]
    own = [jax.random.fold_in(noise_key(keys.local), row) for row in users]
    updates = [plain_user_update(any_model, store[row], key) for row, key in zip(users, own, strict=True)]
    for index, (before, after) in enumerate(zip(*map(jax.tree.leaves, (any_model, state.model)), strict=True)):
        mean = sum(w * jax.tree.leaves(u)[index] for w, u in zip(weights, updates, strict=True)) / sum(weights)
        np.testing.assert_allclose(after - before, mean, rtol=1e-5, atol=3e-6)
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
