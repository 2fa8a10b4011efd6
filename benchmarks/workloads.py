"""Named workloads, timed next to the best that the device could do. Prints a JSON object for each.

    python benchmarks/workloads.py mcmahan-lstm --cohort 100 500
    python benchmarks/workloads.py demo --population 100000 --cohort 100

mcmahan-lstm is the paper's model, demo that of `sotto demo`, popov-device one device of Popov 2018; the others time the
program for any model. `arithmetic_share` and `bandwidth_share` are of a large product and a large copy timed here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.commands.bench import apart, assemble_timed, made_up_users, time_rounds
from sottovoce.data.rows import SplitWriter
from sottovoce.data.store import FORMAT, Store, write_facts
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.models.contract import parameter_count, split
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

DIFFERENT_USERS = 1000  # of a population on disk: they take turns


@dataclass(frozen=True)
class Workload:
    """A shipped recipe with some changes, and made-up users for it."""

    recipe: str
    vocabulary: int
    tokens: int
    cohort: int
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the recipe, by section
    kernels: str = "auto"

    def users(self, count: int) -> Store:
        return made_up_users(count, self.vocabulary, self.tokens)

    def assemble(self, store: Store, cohort: int | None = None, **run: Any) -> Assembly:
        """Its model, mechanism and program; `run` are keys of the recipe's section."""
        recipe = Recipe.load(self.recipe).replace(**self.changes).replace(run={"kernels": self.kernels, **run})
        return assemble_timed(recipe, store, cohort or store.users)


def _of_paper(kernels: str = "any_model", **changes: Mapping[str, Any]) -> Workload:
    """The users of McMahan et al. 2018 with another model or another local training.

    Kernels that are written for one model are left out: it is the program for any model that is timed.
    """
    return Workload("mcmahan2018", vocabulary=10_000, tokens=1600, cohort=100, changes=changes, kernels=kernels)


def _model(kind: str, **settings: Any) -> dict[str, Any]:
    return {"kind": kind, "embedding": None, "hidden": None, **settings}


_LONGER = {"batch": 4, "unroll": 32, "learning_rate": 0.5}  # a transformer looks back within its unroll and cache

_ADAPTED = _model(
    "transformer",
    embedding=512,
    hidden=1408,
    layers=8,
    heads=8,
    kv_heads=4,
    context=64,
    adapter_rank=8,
    initial="made up",  # it is not read: the speed does not depend on the weights
)


WORKLOADS = {
    "mcmahan-lstm": Workload("mcmahan2018", vocabulary=10_000, tokens=1600, cohort=100),
    "demo": Workload("demo", vocabulary=500, tokens=160, cohort=100),
    # One device: 20 kB of text, a token being 5 bytes. A phone of 2018 took 140 s (Popov et al., section 2.5).
    "popov-device": Workload("popov2018", vocabulary=30_000, tokens=4000, cohort=1),
    "lstm": _of_paper(),
    "gru": _of_paper(model=_model("gru")),
    "gated_cnn": _of_paper(model=_model("gated_cnn")),
    "stacked_lstm": _of_paper(model=_model("stacked_lstm", embedding=256)),
    "stacked_lstm_650": _of_paper(model=_model("stacked_lstm")),
    "fedsgd": _of_paper(run={"algorithm": "fedsgd"}),
    "without_forgetting": _of_paper(local={"objective": "without_forgetting", "user_share": 0.5}),
    # 5 million parameters; and adapters of rank 8 in one of 31 million.
    "transformer": _of_paper(model=_model("transformer", context=64), local=_LONGER),
    "lora": _of_paper(model=_ADAPTED, local=_LONGER),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--cohort", type=int, nargs="+", help="users a round; each is measured in a process of its own")
    parser.add_argument("--population", type=int, help="users on disk to draw cohorts from; else the cohort")
    parser.add_argument("--block", type=int, default=0, help="users computed at once; 0 chooses")
    parser.add_argument("--kernels", choices=("auto", "any_model", "off"), help="as run.kernels of a recipe")
    asked = parser.parse_args()
    workload = WORKLOADS[asked.workload]
    with tempfile.TemporaryDirectory() as work:
        folder = None if asked.population is None else Path(work)
        if folder is not None:
            make_population(folder, workload, asked.population)
        for cohort in asked.cohort or [workload.cohort]:
            found = apart(measure, workload, cohort, asked.block, asked.kernels, folder)
            print(json.dumps({"workload": asked.workload, **found}), flush=True)


def measure(
    workload: Workload, cohort: int, block: int = 0, kernels: str | None = None, population: Path | None = None
) -> dict[str, Any]:
    """Whole rounds, timed: of a cohort that is all users there are, or drawn from a store of `make_population`."""
    begun = time.perf_counter()
    store = workload.users(cohort) if population is None else Store.open(population)
    opened = time.perf_counter() - begun
    assembly = workload.assemble(store, cohort, block=block, kernels=kernels or workload.kernels)
    found = time_rounds(assembly, store).to_json()
    flops, moved = _flops(assembly.model, workload.tokens), bytes_moved(assembly, workload.tokens)
    rate, products = found["users_per_second"], assembly.sum_updates.products
    return {
        **found,
        "population": store.users,
        "open_seconds": opened,
        "flops_a_user": flops,
        "bytes_a_user": moved,
        "arithmetic_share": flops * rate / _product_rate(getattr(products, "kind", jnp.float32)),
        "bandwidth_share": moved * rate / _copy_rate(),
    }


def make_population(folder: Path, workload: Workload, users: int) -> None:
    """A store on disk of any number of users, as `sotto prepare` leaves one."""
    needed, free = users * (2 * workload.tokens + 40), shutil.disk_usage(folder).free
    if users < 1 or needed > free:
        raise SottoError(f"{users:,} users take {needed / 1e9:.3g} GB; {free / 1e9:.3g} GB are free in {folder.parent}")
    few, splits = workload.users(min(users, DIFFERENT_USERS)), {"train": users, "test": 1}
    tokens = [np.asarray(few[place], np.uint16) for place in range(few.users)]
    for name, count in splits.items():
        with SplitWriter(folder / f"{name}.arrow", few.vocabulary.size) as writer:
            for number in range(count):
                writer.add(f"{number:032x}", tokens[number % len(tokens)])
    save_tokenizer(few.vocabulary, folder)
    facts = {"format": FORMAT, "tokens_per_user": workload.tokens, "vocabulary_size": few.vocabulary.size}
    write_facts(folder, {**facts, "splits": {name: {"users": count} for name, count in splits.items()}})


def bytes_moved(assembly: Assembly, tokens: int) -> int:
    """Of a user's update: read twice and written once, in every step; FedSGD has one gradient a user."""
    recipe, products = assembly.recipe, assembly.sum_updates.products
    steps = 1 if recipe.run.algorithm == "fedsgd" else -(-tokens // (recipe.local.batch * recipe.local.unroll))
    stored = jnp.dtype(getattr(products, "stored", jnp.float32))
    return 3 * stored.itemsize * parameter_count(split(assembly.model)[0]) * steps


def _flops(model: Any, tokens: int) -> float:
    """Of the products: two for every weight and token, forwards once and backwards twice."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(model) if leaf.ndim == 2)
    if getattr(model, "output", None) is not None:
        weights -= model.embedding.size  # looked up, and not multiplied as well
    return 6.0 * tokens * weights


@cache
def _product_rate(kind: Any) -> float:
    """FLOP a second of one large product."""
    side = 8192 if jax.default_backend() == "gpu" else 2048
    matrix = jnp.ones((side, side), kind)
    multiply = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
    return 2.0 * side**3 / _median_seconds(lambda: multiply(matrix, matrix))


@cache
def _copy_rate() -> float:
    """Bytes a second, read and written."""
    numbers = jnp.ones(2**28 if jax.default_backend() == "gpu" else 2**26)
    copy = jax.jit(lambda x: x + 1.0)
    return 2.0 * numbers.nbytes / _median_seconds(lambda: copy(numbers))


def _median_seconds(work: Callable[[], jax.Array]) -> float:
    """Of five calls, after one that compiles."""
    ended = []
    for _ in range(6):
        work().block_until_ready()
        ended.append(time.perf_counter())
    return median(after - before for before, after in pairwise(ended))


if __name__ == "__main__":
    main()
