"""No framework: private federated averaging of a small LSTM in plain JAX, users under `vmap`. Prints users a second.

python benchmarks/plain.py --cohort 500

On a GPU, products of float32 numbers are of TF32 numbers, JAX's default. `--bfloat16` computes losses in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

WORDS, SIZE, HIDDEN, LANES, UNROLL, TOKENS = 10_000, 96, 256, 8, 10, 1600
RATE, CLIP = 6.0, 15.0


def new_model(key: Any, size: int, hidden: int) -> dict[str, jax.Array]:
    keys = jax.random.split(key, 3)
    return {
        "embedding": jax.random.normal(keys[0], (WORDS, size)) / size**0.5,
        "gates": jax.random.normal(keys[1], (size + hidden, 4 * hidden)) * 0.05,
        "bias": jnp.zeros(4 * hidden),
        "projection": jax.random.normal(keys[2], (hidden, size)) * 0.05,
    }


def mean_loss(model: dict[str, jax.Array], tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
    """Of one step: tokens are [lanes, unroll + 1]. Computed with numbers of the state's kind."""
    table = model["embedding"] / jnp.linalg.norm(model["embedding"], axis=1, keepdims=True)
    kind = state[0].dtype
    table, gates, bias, projection = (
        leaf.astype(kind) for leaf in (table, model["gates"], model["bias"], model["projection"])
    )

    def read(state: Any, word: jax.Array) -> tuple[Any, jax.Array]:
        hidden, cell = state
        i, f, g, o = jnp.split(jnp.concatenate([word, hidden], axis=1) @ gates + bias, 4, axis=1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    state, hidden = jax.lax.scan(read, state, table[tokens[:, :-1]].swapaxes(0, 1))
    logits = hidden.swapaxes(0, 1) @ projection @ table.T
    chances = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None], axis=2)), state


def clip(update: Any) -> Any:
    length = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, CLIP / length), update)


def train_user(model: Any, kind: Any, tokens: jax.Array) -> Any:
    """The clipped update of one user: [steps, lanes, unroll + 1]."""

    def step(carry: Any, batch: jax.Array) -> tuple[Any, None]:
        update, state = carry
        now = jax.tree.map(jnp.add, model, update)
        gradient, state = jax.grad(mean_loss, has_aux=True)(now, batch, state)
        return (clip(jax.tree.map(lambda u, g: u - RATE * g, update, gradient)), state), None

    zeros = (jnp.zeros((LANES, len(model["projection"])), kind),) * 2
    return jax.lax.scan(step, (jax.tree.map(jnp.zeros_like, model), zeros), tokens)[0][0]


@partial(jax.jit, static_argnums=(3, 4))
def play_round(model: Any, tokens: jax.Array, key: Any, block: int, kind: Any) -> Any:
    blocks = tokens.reshape(-1, block, *tokens.shape[1:])
    sums = jax.lax.map(
        lambda some: jax.tree.map(lambda u: u.sum(0), jax.vmap(partial(train_user, model, kind))(some)), blocks
    )
    noise = CLIP / len(tokens)

    def step(leaf: jax.Array, total: jax.Array, key: Any) -> jax.Array:
        return leaf + total.sum(0) / len(tokens) + noise * jax.random.normal(key, leaf.shape)

    keys = dict(zip(model, jax.random.split(key, len(model)), strict=True))
    return {name: step(leaf, sums[name], keys[name]) for name, leaf in model.items()}


def prepare(
    cohort: int, kind: Any = jnp.float32, size: int = SIZE, hidden: int = HIDDEN
) -> tuple[Callable[[], None], int]:
    """A function that plays the next round, and the users of each: whole blocks."""
    model = new_model(jax.random.key(0), size, hidden)
    numbers = sum(leaf.size for leaf in model.values())
    most = 500 * 1_350_000 // max(numbers, 1_350_000) if jax.default_backend() == "gpu" else 1
    block = min(cohort, most)
    cohort -= cohort % block
    shape = (cohort, TOKENS // (LANES * UNROLL), LANES, UNROLL + 1)
    tokens = jax.random.randint(jax.random.key(1), shape, 0, WORDS)
    number = 0

    def play() -> None:
        nonlocal model, number
        model = jax.block_until_ready(play_round(model, tokens, jax.random.key(number), block, kind))
        number += 1

    return play, cohort


def rates(
    cohort: int, rounds: int = 5, kind: Any = jnp.float32, size: int = SIZE, hidden: int = HIDDEN
) -> dict[str, float]:
    """Users a second and a core second: medians of a few rounds, after one that compiles."""
    play, cohort = prepare(cohort, kind, size, hidden)
    seconds, core_seconds = [], []
    for _ in range(rounds + 1):
        begun, worked = time.perf_counter(), time.process_time()
        play()
        seconds.append(time.perf_counter() - begun)
        core_seconds.append(time.process_time() - worked)
    found = {"users_per_second": seconds, "users_per_core_second": core_seconds}
    return {name: cohort / median(each[1:]) for name, each in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = rates(given.cohort, given.rounds, jnp.bfloat16 if given.bfloat16 else jnp.float32)
    print(
        json.dumps(found)
        if given.json
        else f"{found['users_per_second']:.4g} users/s on {jax.devices()[0].device_kind}"
    )
