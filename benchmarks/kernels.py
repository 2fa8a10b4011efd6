"""Each CUDA kernel of the paper's LSTM alone: its time, the least time it could take, and how far it is from its twin.

    python benchmarks/kernels.py                                    # on a Hopper GPU
    python benchmarks/kernels.py --users 1024 --only head_a head_b
    python benchmarks/kernels.py --source OTHER.cu --set GROUP=1280 # other kernels, or a number of `kernels.lstm_cuda`
    python benchmarks/kernels.py --plain --users 2 --words 90       # the plain twins, anywhere: a rehearsal

For every kernel and number of users it prints a JSON object:

- `microseconds`: of one call, the median of seven measurements, and `least` and `most` of them. A measurement is many
  calls in one program, each of which waits for the one before.
- `bytes`, `operations`, `exponentials`: counted, with every input read once and every output written once. Weights that
  all users share are left out: they stay in the second-level cache.
- `floor`: microseconds that the largest of the three takes at the rates below. `share`: of the floor in the time.
- `differences`: of each result from that of the plain twin with numbers as narrow, on the same device, as a share of
  its length; `largest` the largest of a coordinate. `same_again`: a second call gives the same bits.

It ends with status 1 where a kernel is further than 2 % from its twin, or not the same again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.kernels import lstm_cuda
from sottovoce.kernels.lstm_users import Products, Step, offset_of, plain_products
from sottovoce.local.update import FedAvg
from sottovoce.models.lstm import LSTM
from sottovoce.privacy.clipping import FlatClip

SIZE, HIDDEN, LANES, UNROLL, TOKENS = 96, 256, 8, 10, 80  # what the kernels are written for
BYTES_A_SECOND, OPERATIONS_A_SECOND, EXPONENTIALS_A_SECOND = 4.0e12, 790e12, 3.6e12  # that an H200 reaches
MOST, MEASUREMENTS, COMPARED = 0.02, 7, 16
Given = dict[str, Array]


class Work(NamedTuple):
    """One kernel, as the program of a step calls it."""

    run: Callable[[Products, Given, Any], Any]  # the last argument is 0, from the result of the call before
    changes: str | None  # what is stepped in place: the first result
    bytes: int  # these three for one user
    operations: int
    exponentials: int = 0


def works(words: int) -> dict[str, Work]:
    """By the names in lstm.cu."""

    def pass_a(products: Products, given: Given, zero: Any) -> Any:
        scale = given["scale"] + zero
        return products.scores(given["outputs"], given["table"], given["embedding"], scale, given["offset"])[:2]

    def pass_b(products: Products, given: Given, zero: Any) -> Any:
        names = ("outputs", "of_words", "table", "embedding", "level", "share", "targets", "inputs")
        step = Step(given["scale"] + zero, given["unit"], 0.5)
        return products.step_table(*(given[name] for name in names), step, None)

    def forwards(products: Products, given: Given, zero: Any) -> Any:
        before, after = ("gate_words", "bias", "recurrent", "hidden"), ("state", "cell")
        scale = given["scales"] + zero
        return products.read(*(given[name] for name in before), scale, *(given[name] for name in after))

    def backwards(products: Products, given: Given, zero: Any) -> Any:
        names = ("above", "gates", "cells", "recurrent", "hidden")
        return products.read_back(*(given[name] for name in names), given["scales"] + zero)

    def step(left: str, right: str, weight: str, groups: int) -> Callable[[Products, Given, Any], Any]:
        def run(products: Products, given: Given, zero: Any) -> Any:
            how = Step(given["scales"][:, :groups] + zero, given["unit"], 0.5)
            return products.step(given[left], given[right], given[weight], how)

        return run

    table, recurrent, of_words, projection = words * SIZE, 4 * HIDDEN * HIDDEN, 4 * HIDDEN * SIZE, HIDDEN * SIZE
    of_gates, of_state, of_outputs = TOKENS * 4 * HIDDEN, TOKENS * HIDDEN, TOKENS * SIZE
    cells = (UNROLL + 1) * LANES * HIDDEN
    exponentials = TOKENS * words
    return {  # updates have two bytes a number, activations too; cells and the three parts of pass A's results four
        "head_a": Work(
            pass_a, None, 2 * (table + of_outputs) + 12 * (of_outputs + TOKENS), 4 * TOKENS * table, exponentials
        ),
        "head_b": Work(pass_b, "embedding", 4 * table + 4 * of_outputs, 4 * TOKENS * table, exponentials),
        "recur_f": Work(
            forwards, None,
            2 * recurrent + 4 * of_gates + 4 * cells + 4 * of_state, 2 * TOKENS * recurrent, 5 * of_state,
        ),
        "recur_b": Work(
            backwards, None, 2 * recurrent + 4 * of_gates + 4 * cells + 2 * of_state, 2 * TOKENS * recurrent, of_state
        ),
        "sgd256": Work(
            step("gradients", "before", "hidden", 4), "hidden",
            4 * recurrent + 2 * of_gates + 2 * of_state, 2 * TOKENS * recurrent,
        ),
        "sgd96": Work(
            step("gradients", "read", "word", 4), "word",
            4 * of_words + 2 * of_gates + 2 * of_outputs, 2 * TOKENS * of_words,
        ),
        "sgd96 of the projection": Work(
            step("before", "read", "projection", 1), "projection",
            4 * projection + 2 * of_state + 2 * of_outputs, 2 * TOKENS * projection,
        ),
    }  # fmt: skip


@partial(jax.jit, static_argnums=(0, 1))
def inputs(users: int, words: int) -> Given:
    """Numbers of the size that they have in training, drawn at random: on zeros a GPU may be faster."""
    keys = iter(jax.random.split(jax.random.key(0), 24))

    def normal(*shape: int, size: float = 1.0, kind: Any = jnp.bfloat16) -> Array:
        return (size * jax.random.normal(next(keys), shape)).astype(kind)

    stored = partial(normal, users, kind=jnp.float16)
    gates = (users, UNROLL, LANES, 4 * HIDDEN)
    outputs = normal(users, TOKENS, SIZE, size=2.0)
    targets, read = jax.random.randint(next(keys), (2, users, TOKENS), 0, words)
    mask = (jax.random.uniform(next(keys), (users, TOKENS)) < 0.9).astype(jnp.float32)
    return {
        "outputs": outputs,
        "offset": offset_of(outputs),
        "level": offset_of(outputs) + np.log2(words),
        "of_words": normal(users, TOKENS, SIZE, size=1e-3),
        "table": normal(words, SIZE, size=0.1),
        "recurrent": normal(4 * HIDDEN, HIDDEN, size=0.06),
        "embedding": stored(words, SIZE),
        "hidden": stored(4 * HIDDEN, HIDDEN),
        "word": stored(4 * HIDDEN, SIZE),
        "projection": stored(HIDDEN, SIZE),
        "scale": jnp.linspace(0.005, 0.02, users),
        "scales": jnp.abs(normal(users, 4, size=0.01, kind=jnp.float32)),
        "unit": jnp.full(users, 2.0**-7),
        "share": mask / jnp.maximum(mask.sum(axis=1, keepdims=True), 1),
        "targets": targets,
        "inputs": read,
        "gate_words": normal(*gates, size=0.5),
        "gates": jax.nn.sigmoid(normal(*gates, kind=jnp.float32)).astype(jnp.bfloat16),
        "cells": normal(users, UNROLL + 1, LANES, HIDDEN, size=0.4, kind=jnp.float32),
        "gradients": normal(users, TOKENS, 4 * HIDDEN, size=0.05),
        "read": normal(users, TOKENS, SIZE, size=0.3),
        "before": normal(users, TOKENS, HIDDEN, size=0.5),
        "bias": normal(users, 4 * HIDDEN, size=0.1, kind=jnp.float32),
        "state": normal(users, LANES, HIDDEN, size=0.3),
        "cell": normal(users, LANES, HIDDEN, size=0.3, kind=jnp.float32),
        "above": normal(users, UNROLL, LANES, HIDDEN, size=0.01),
    }


def seconds_of(work: Work, products: Products, given: Given, calls: int) -> list[float]:
    """Of one call, in each measurement."""

    @partial(jax.jit, donate_argnums=0)
    def many(changed: Array, given: Given) -> tuple[Array, Array]:
        def call(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            changed, zero = carry
            results = work.run(products, {**given, work.changes: changed} if work.changes else given, zero)
            last = jax.tree.leaves(results)[-1]
            return (results[0] if work.changes else changed), 0.0 * last[(0,) * last.ndim].astype(jnp.float32)

        return jax.lax.fori_loop(0, calls, call, (changed, jnp.float32(0)))

    changed = jnp.copy(given[work.changes]) if work.changes else jnp.zeros(())
    given = {name: array for name, array in given.items() if name != work.changes}
    found = []
    for number in range(MEASUREMENTS + 1):
        begun = time.perf_counter()
        changed, _ = jax.block_until_ready(many(changed, given))
        if number:  # the first one compiles
            found.append((time.perf_counter() - begun) / calls)
    return found


def compare(work: Work, products: Products, given: Given) -> dict[str, Any]:
    """The results against those of the plain twin, and against a second call."""
    run = jax.jit(partial(work.run, products))
    twin = jax.jit(partial(work.run, plain_products(jnp.bfloat16, jnp.float16)))
    ours, again, theirs = (
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(program(given, jnp.float32(0)))]
        for program in (run, run, twin)
    )
    return {
        "differences": [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(ours, theirs, strict=True)],
        "largest": [float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)],
        "same_again": all(np.array_equal(a, b) for a, b in zip(ours, again, strict=True)),
    }


def is_sound(found: dict[str, Any]) -> bool:
    return found["same_again"] and all(difference <= MOST for difference in found["differences"])  # never for NaN


def floor_of(work: Work, users: int) -> float:
    """Microseconds."""
    seconds = max(
        work.bytes / BYTES_A_SECOND,
        work.operations / OPERATIONS_A_SECOND,
        work.exponentials / EXPONENTIALS_A_SECOND,
    )
    return users * seconds * 1e6


def measure(products: Products, only: list[str], users: int, words: int, calls: int) -> Iterator[dict[str, Any]]:
    given, few = inputs(users, words), inputs(min(users, COMPARED), words)
    for name in only:
        work = works(words)[name]
        found = compare(work, products, few)
        taken = [1e6 * seconds for seconds in seconds_of(work, products, given, calls)]
        floor = floor_of(work, users)
        yield {
            "kernel": name,
            "users": users,
            "microseconds": median(taken),
            "least": min(taken),
            "most": max(taken),
            "bytes": users * work.bytes,
            "operations": users * work.operations,
            "exponentials": users * work.exponentials,
            "floor": floor,
            "share": floor / median(taken),
            **found,
            "ok": is_sound(found),
        }


def use(source: Path | None, numbers: list[str]) -> None:
    """Other kernels than those of the package, or other numbers of their launches: to compare variants."""
    for pair in numbers:
        name, _, value = pair.partition("=")
        if not isinstance(getattr(lstm_cuda, name, None), int):
            raise SystemExit(f"kernels.lstm_cuda has no whole number {name!r}")
        setattr(lstm_cuda, name, int(value))
    if source is not None:
        lstm_cuda.source = partial(lstm_cuda.source, file=source.resolve())


def main(given: list[str] | None = None) -> int:
    names = tuple(works(1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, nargs="+", default=[1024, 100])
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    parser.add_argument("--calls", type=int, default=20, help="in one measurement")
    parser.add_argument("--source", type=Path, help="a file in place of lstm.cu")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=NUMBER", help="of sottovoce.kernels.lstm_cuda")
    parser.add_argument("--plain", action="store_true", help="the plain twins in place of the kernels")
    asked = parser.parse_args(given)
    use(asked.source, asked.set)
    products: Products | None = plain_products(jnp.bfloat16, jnp.float16)
    if not asked.plain:
        model = jax.eval_shape(lambda key: LSTM(asked.words, key=key), jax.random.key(0))
        products = lstm_cuda.products(FedAvg(FlatClip(1.0), True, learning_rate=0.5), model)
    if products is None:
        print("these kernels need a Hopper GPU; --plain rehearses without one", file=sys.stderr)
        return 1
    sound = True
    for users in asked.users:
        for found in measure(products, asked.only, users, asked.words, asked.calls):
            sound &= found["ok"]
            print(json.dumps({"device": jax.devices()[0].device_kind, **found}), flush=True)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
