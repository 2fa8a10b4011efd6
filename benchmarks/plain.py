"""No framework: private federated averaging of a small LSTM in plain JAX, users under `vmap`. Prints users a second.

python benchmarks/plain.py --cohort 500
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

WORDS, SIZE, HIDDEN, LANES, UNROLL, TOKENS = 10_000, 96, 256, 8, 10, 1600
RATE, CLIP = 6.0, 15.0


def new_model(key: Any) -> dict[str, jax.Array]:
    keys = jax.random.split(key, 3)
    return {
        "embedding": jax.random.normal(keys[0], (WORDS, SIZE)) / SIZE**0.5,
        "gates": jax.random.normal(keys[1], (SIZE + HIDDEN, 4 * HIDDEN)) * 0.05,
        "bias": jnp.zeros(4 * HIDDEN),
        "projection": jax.random.normal(keys[2], (HIDDEN, SIZE)) * 0.05,
    }


def mean_loss(model: dict[str, jax.Array], tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
    """Of one step: tokens are [lanes, unroll + 1]."""
    table = model["embedding"] / jnp.linalg.norm(model["embedding"], axis=1, keepdims=True)

    def read(state: Any, word: jax.Array) -> tuple[Any, jax.Array]:
        hidden, cell = state
        i, f, g, o = jnp.split(jnp.concatenate([word, hidden], axis=1) @ model["gates"] + model["bias"], 4, axis=1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, hidden = jax.lax.scan(read, state, table[tokens[:, :-1]].swapaxes(0, 1))
    chances = jax.nn.log_softmax(hidden.swapaxes(0, 1) @ model["projection"] @ table.T)
    return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None], axis=2)), state


def clip(update: Any) -> Any:
    length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, CLIP / length), update)


def train_user(model: Any, tokens: jax.Array) -> Any:
    """The clipped update of one user: [steps, lanes, unroll + 1]."""

    def step(carry: Any, batch: jax.Array) -> tuple[Any, None]:
        update, state = carry
        now = jax.tree.map(jnp.add, model, update)
        gradient, state = jax.grad(mean_loss, has_aux=True)(now, batch, state)
        return (clip(jax.tree.map(lambda u, g: u - RATE * g, update, gradient)), state), None

    zeros = (jnp.zeros((LANES, HIDDEN)), jnp.zeros((LANES, HIDDEN)))
    return jax.lax.scan(step, (jax.tree.map(jnp.zeros_like, model), zeros), tokens)[0][0]


@partial(jax.jit, static_argnums=3)
def play_round(model: Any, tokens: jax.Array, key: Any, block: int) -> Any:
    blocks = tokens.reshape(-1, block, *tokens.shape[1:])
    sums = jax.lax.map(
        lambda some: jax.tree.map(lambda u: u.sum(0), jax.vmap(partial(train_user, model))(some)), blocks
    )
    noise = CLIP / len(tokens)

    def step(leaf: jax.Array, total: jax.Array, key: Any) -> jax.Array:
        return leaf + total.sum(0) / len(tokens) + noise * jax.random.normal(key, leaf.shape)

    keys = dict(zip(model, jax.random.split(key, len(model)), strict=True))
    return {name: step(leaf, sums[name], keys[name]) for name, leaf in model.items()}


def rates(cohort: int, rounds: int = 5) -> dict[str, float]:
    """Users a second and a core second: medians of a few rounds, after one that compiles."""
    block = min(cohort, 500 if jax.default_backend() == "gpu" else 1)
    cohort -= cohort % block
    model = new_model(jax.random.key(0))
    shape = (cohort, TOKENS // (LANES * UNROLL), LANES, UNROLL + 1)
    tokens = jax.random.randint(jax.random.key(1), shape, 0, WORDS)
    seconds, core_seconds = [], []
    for number in range(rounds + 1):
        begun, worked = time.perf_counter(), time.process_time()
        model = jax.block_until_ready(play_round(model, tokens, jax.random.key(number), block))
        seconds.append(time.perf_counter() - begun)
        core_seconds.append(time.process_time() - worked)
    found = {"users_per_second": seconds, "users_per_core_second": core_seconds}
    return {name: cohort / median(each[1:]) for name, each in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = rates(given.cohort, given.rounds)
    print(
        json.dumps(found)
        if given.json
        else f"{found['users_per_second']:.4g} users/s on {jax.devices()[0].device_kind}"
    )
