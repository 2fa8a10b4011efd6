"""The programs that a GPU takes for any model, against the general program: one round's updates, and accuracy.

    python benchmarks/compare_programs.py                 # on the device that jax finds
    python benchmarks/compare_programs.py --tiny          # in a few minutes on two cores, kernels interpreted

For every model and update it prints a JSON object:

- `difference`: of the updates of a block of users from those of `jax.vmap` in float32, as a share of their length. It
  must be below 2 %, as on a CPU (tests/unit/kernels/test_any_users.py), or at most twice that of `twin`.
- `twin`: the same of the plain program with numbers as narrow. What is beyond it is the kernel's own.
- `within_clip`: no update is longer than the clip norm.
- `top1`, `top1_general`: on people held out after `--rounds` rounds with either program, no noise, and the same cohorts
  (the synthetic population), for each of `--seeds` seeds of cohorts and dropout. A pair of runs may be two points apart
  by chance: rounding is enough. So it is the mean of the differences that must be within half a point, or within two
  standard errors of it (`mean_difference`, `standard_error`).

It ends with status 1 where one is not. `run.kernels = "auto"` may take a program once all of them are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.commands.stores import prepare_demo
from sottovoce.data.store import Store
from sottovoce.evaluation.prediction import evaluate
from sottovoce.kernels import any_users, one_gradient, table
from sottovoce.kernels.any_users import plain_softmax, tables_of
from sottovoce.kernels.find import Program, find_program
from sottovoce.kernels.general import Narrow
from sottovoce.kernels.one_gradient import OneGradient
from sottovoce.local.objective import WithoutForgetting
from sottovoce.local.update import FedAvg, FedSGD, User, UserUpdate
from sottovoce.models.contract import LanguageModel, join, split
from sottovoce.models.lora import Adapters, Survey, adapt
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip

MOST, MOST_OF_TWIN, MOST_POINTS, STANDARD_ERRORS = 0.02, 2.0, 0.005, 2.0
Train = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A model, and what its users compute."""

    kind: str
    full: dict[str, int]
    tiny: dict[str, int]
    learning_rate: float
    clip_norm: float
    unroll: int = 10
    adapter: bool = False
    fedsgd: bool = False
    without_forgetting: bool = False

    def model(self, words: int, tiny: bool) -> LanguageModel:
        made = build(self.kind, words, self.tiny if tiny else self.full, jax.random.key(3))
        return adapt(Survey(made, Adapters(rank=4 if tiny else 8)), jax.random.key(4)) if self.adapter else made

    def update(self, tiny: bool) -> UserUpdate:
        lanes = {"batch": 4, "unroll": 8 if tiny else self.unroll} if tiny or self.unroll > 10 else {}
        settings = {"learning_rate": self.learning_rate, **lanes}
        if self.fedsgd:
            return FedSGD(FlatClip(self.clip_norm), **settings)
        objective = {"objective": WithoutForgetting(0.5)} if self.without_forgetting else {}
        return FedAvg(FlatClip(self.clip_norm), True, **settings, **objective)


_LSTM = ({"embedding": 96, "hidden": 256}, {"embedding": 16, "hidden": 24})
_STACKED = ({"embedding": 256}, {"embedding": 16})
_CNN = ({"embedding": 300, "hidden": 300, "bottleneck": 15}, {"embedding": 16, "hidden": 16, "bottleneck": 4})
_TRANSFORMER = (
    {"embedding": 256, "hidden": 512, "layers": 4, "heads": 4, "kv_heads": 2, "context": 64},
    {"embedding": 16, "hidden": 24, "layers": 2, "heads": 2, "kv_heads": 1, "context": 8},
)
CASES = {
    "lstm": Case("lstm", *_LSTM, 6.0, 15.0),
    "gru": Case("gru", *_LSTM, 6.0, 15.0),
    "stacked": Case("stacked_lstm", *_STACKED, 1.0, 5.0),
    "gated_cnn": Case("gated_cnn", *_CNN, 1.0, 5.0),
    "without_forgetting": Case("lstm", *_LSTM, 6.0, 15.0, without_forgetting=True),
    "transformer": Case("transformer", *_TRANSFORMER, 0.5, 1.0, unroll=32),
    "lora": Case("transformer", *_TRANSFORMER, 1.0, 1.0, unroll=32, adapter=True),
    "fedsgd": Case("lstm", *_LSTM, 6.0, 15.0, fedsgd=True),
    "fedsgd, transformer": Case("transformer", *_TRANSFORMER, 6.0, 1.0, unroll=32, fedsgd=True),
}


def program_for(update: UserUpdate, model: LanguageModel, block: int) -> Program:
    """The one that a GPU gets with `any_model`; on a CPU the same, with its kernels interpreted."""
    found = find_program("any_model", update, model, block)
    if found is not None:
        return found
    if isinstance(update, FedAvg) and any_users.fits(update, model):
        tables = tables_of(model)
        assert tables is not None
        tokens, size = update.batch * update.unroll, getattr(model, tables.output).shape[1]
        if table.fits(tokens, size):
            return table.softmax(jnp.float16, interpret=True)
        return plain_softmax(jnp.bfloat16, jnp.float16)
    return OneGradient(jnp.bfloat16) if one_gradient.fits(update, model) else Narrow()


def twin_of(program: Program) -> Program | None:
    """Plain JAX with numbers as narrow; None where the program is plain itself."""
    if isinstance(program, any_users.Softmax) and program.written != "XLA":
        return plain_softmax(program.kind, program.stored)
    return None


def general(update: UserUpdate) -> Train:
    """`jax.vmap` alone, in float32."""

    def train(model: Any, users: User, keys: Any, norms: Any, last: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return jax.vmap(update, in_axes=(None, 0, 0, 0, None))(model, users, keys, norms, last)

    return train


def flat(result: Any) -> np.ndarray:
    leaves = [np.float64(leaf) for leaf in jax.tree.leaves(result.update)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def compare_updates(case: Case, program: Program, tiny: bool) -> dict[str, Any]:
    """Of a block of made-up users with texts of different lengths, one of none."""
    words, count, tokens = (200, 5, 60) if tiny else (10_000, 16, 1600)
    model, update = case.model(words, tiny), case.update(tiny)
    drawn = np.random.default_rng(0)
    chances = 1 / (np.arange(words - 3) + 10.0)
    text = 3 + drawn.choice(words - 3, (count, tokens), p=chances / chances.sum())
    lengths = np.r_[tokens, 0, drawn.integers(1, tokens, count - 2)]
    users = User(jnp.asarray(text, jnp.int32), jnp.asarray(lengths, jnp.int32))
    keys = jax.random.split(jax.random.key(1), count)
    norms = jnp.full((count, 1), case.clip_norm)
    last = int(np.max(update.steps(lengths)))

    def sent(train: Train) -> np.ndarray:
        return flat(jax.jit(train)(model, users, keys, norms, last))

    wanted = sent(general(update))
    twin = twin_of(program)
    of_twin = None if twin is None else distance(sent(partial(twin.train, update)), wanted)
    result = jax.jit(partial(program.train, update))(model, users, keys, norms, last)
    found = flat(result._replace(update=program.put_together(result.update)))
    return {
        "difference": distance(found, wanted),
        "twin": of_twin,
        "within_clip": bool(np.all(np.linalg.norm(found, axis=1) <= case.clip_norm)),
        "empty_user_sends_nothing": not np.any(found[1]),
    }


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def trainer(model: Any, train: Train, update: UserUpdate) -> Callable[[Store, int, int], Any]:
    """Federated averaging without noise, compiled once: from users, rounds and a seed to a trained model.

    Cohorts of 20, the same for every program with the same seed.
    """
    params, frozen = split(model)
    cohort, norms = 20, jnp.full((20, 1), update.clipping.clip_norms[0])

    @jax.jit
    def play(params: Any, users: User, keys: Any, last: Any) -> Any:
        sent = train(join(params, frozen), users, keys, norms, last).update
        return jax.tree.map(lambda leaf, change: leaf + change.mean(0), params, sent)

    def run(store: Store, rounds: int, seed: int) -> Any:
        drawn, trained = np.random.default_rng(seed), params
        for number in range(rounds):
            block = store.gather(drawn.choice(store.users, cohort, replace=False))
            users = User(jnp.asarray(block.tokens), jnp.asarray(block.lengths))
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), number), cohort)
            trained = play(trained, users, keys, int(np.max(update.steps(block.lengths))))
        return join(trained, frozen)

    return run


def compare_accuracy(case: Case, folder: Path, rounds: int, seeds: int) -> dict[str, Any]:
    """Top-1 after training with either program. The models are small on any device."""
    store, held_out = Store.open(folder), Store.open(folder, "test")
    model, update = case.model(store.vocabulary.size, tiny=True), case.update(tiny=True)
    program = program_for(update, model, 20)
    ways = {"top1": partial(program.train, update), "top1_general": general(update)}
    found: dict[str, Any] = {"rounds": rounds}
    for name, train in ways.items():
        run = trainer(model, train, update)
        found[name] = [evaluate(run(store, rounds, seed), held_out).top1 for seed in range(seeds)]
    return found | spread(found["top1"], found["top1_general"])


def spread(fast: list[float], slow: list[float]) -> dict[str, float]:
    """The mean of the differences between pairs of runs, and its standard error: none of one pair."""
    differences = np.subtract(fast, slow)
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return {"mean_difference": float(differences.mean()), "standard_error": float(error)}


def is_sound(found: dict[str, Any]) -> bool:
    allowed = max(MOST, MOST_OF_TWIN * (found["twin"] or 0))
    by_chance = max(MOST_POINTS, STANDARD_ERRORS * found.get("standard_error", 0.0))
    sent = found["within_clip"] and found["empty_user_sends_nothing"]
    return bool(found["difference"] <= allowed and abs(found.get("mean_difference", 0.0)) <= by_chance and sent)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=300, help="0: updates alone")
    parser.add_argument("--seeds", type=int, default=6, help="pairs of runs")
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), default=list(CASES))
    given = parser.parse_args()
    sound = True
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "store"
        prepare_demo(folder, 400)
        for name in given.only:
            case = CASES[name]
            words = 200 if given.tiny else 10_000
            program = program_for(case.update(given.tiny), case.model(words, given.tiny), 16)
            found = compare_updates(case, program, given.tiny)
            if given.rounds:
                found |= compare_accuracy(case, folder, given.rounds, given.seeds)
            verdict = is_sound(found)
            sound &= verdict
            about = {"case": name, "program": program.name, "device": jax.devices()[0].device_kind}
            print(json.dumps({**about, **found, "ok": verdict}), flush=True)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
