"""How fast rounds are here: named workloads, timed, against what the device could do at best."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.assembly import Assembly, assemble
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import FRAME, Vocabulary
from sottovoce.errors import SottoError, did_you_mean
from sottovoce.models.language_model import parameter_count
from sottovoce.models.lstm import LSTM
from sottovoce.recipe import Recipe
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState

REPEATS = 5


@dataclass(frozen=True)
class Workload:
    """A recipe, and users made up for it: as many tokens each as the recipe's users have."""

    recipe: str
    vocabulary: int
    tokens: int
    cohort: int


WORKLOADS = {
    "mcmahan-lstm": Workload("mcmahan2018", vocabulary=10_000, tokens=1600, cohort=100),
    "demo": Workload("demo", vocabulary=500, tokens=160, cohort=100),
}


@dataclass(frozen=True)
class Measurement:
    """`arithmetic_share` and `bandwidth_share` are of a large product and a large copy timed here."""

    workload: str
    device: str
    precision: str
    cohort: int
    block: int
    users_per_second: float
    tokens_per_second: float
    seconds_a_round: float
    compile_seconds: float
    peak_bytes: int
    flops_a_user: float
    bytes_a_user: float
    arithmetic_share: float
    bandwidth_share: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(name: str, cohort: int | None = None, block: int = 0, kernels: str = "auto") -> Measurement:
    """Whole rounds (gathering, training, summing, noise, server step), the median of a few after one to compile."""
    if name not in WORKLOADS:
        raise SottoError(f"workload={name!r} must be one of {', '.join(WORKLOADS)}{did_you_mean(name, WORKLOADS)}")
    workload = WORKLOADS[name]
    cohort = cohort or workload.cohort
    if cohort < 1:
        raise SottoError(f"cohort={cohort} must be 1 or more")
    assembly = _assemble(workload, cohort, block, kernels)
    play = play_next(assembly, make_users(workload, cohort))
    begun = time.perf_counter()
    play()
    first = time.perf_counter() - begun
    seconds = median(timed(play) for _ in range(REPEATS))
    steps = -(-workload.tokens // (assembly.recipe.local.batch * assembly.recipe.local.unroll))
    flops = _flops(assembly.model, workload.tokens)
    products = assembly.sum_updates.products
    stored = jnp.dtype(products.stored if products else jnp.float32)
    moved = 3 * stored.itemsize * parameter_count(assembly.model) * steps  # updates: read twice and written once a step
    kind = jnp.bfloat16 if products else jnp.float32
    return Measurement(
        workload=name,
        device=jax.devices()[0].device_kind,
        precision=f"bfloat16 products, float32 sums, {stored} updates" if products else _precision(),
        cohort=cohort,
        block=assembly.sum_updates.block,
        users_per_second=cohort / seconds,
        tokens_per_second=cohort * workload.tokens / seconds,
        seconds_a_round=seconds,
        compile_seconds=max(0.0, first - seconds),
        peak_bytes=_peak_bytes(),
        flops_a_user=flops,
        bytes_a_user=moved,
        arithmetic_share=flops * cohort / seconds / _product_rate(kind),
        bandwidth_share=moved * cohort / seconds / _copy_rate(),
    )


def _assemble(workload: Workload, cohort: int, block: int, kernels: str, devices: int = 0) -> Assembly:
    recipe = Recipe.load(workload.recipe).replace(
        privacy={"users": cohort, "cohort": cohort, "sampling": "fixed", "noise_multiplier": 1.0, "epsilon": None,
                 "secrets": "seeded", "allow_large_delta": True, "accountant": "rdp"},
        run={"block": block, "kernels": kernels, "devices": devices},
    )  # fmt: skip
    return assemble(recipe, make_users(workload, cohort))


def make_users(workload: Workload, cohort: int) -> Store:
    """Users who draw words as people do, the frequent ones often; the same ones every time."""
    generator = np.random.default_rng(0)
    words = len(FRAME)
    chances = 1 / (np.arange(workload.vocabulary - words) + 10.0)
    tokens = generator.choice(len(chances), size=(cohort, workload.tokens), p=chances / chances.sum()) + words
    names = tuple(f"w{number}" for number in range(workload.vocabulary - words))
    return Store.from_users(list(tokens), Vocabulary(FRAME + names), tokens_per_user=workload.tokens)


class _Unpaid:
    def spend(self, round_number: int, event: Any) -> None:
        """These users are made up."""


def play_next(assembly: Assembly, store: Store) -> Callable[[], ServerState]:
    """A function that plays the next round."""
    state = assembly.algorithm.server.start(assembly.model, assembly.algorithm.mechanism.start())
    secrets = Secrets.seeded(0)

    def play() -> ServerState:
        nonlocal state
        keys = secrets.keys(state.round + 1, "bench")
        state, _ = play_round(assembly.algorithm, state, store, keys, _Unpaid(), assembly.sum_updates)
        jax.block_until_ready(state.model)
        return state

    return play


def _flops(model: Any, tokens: int) -> float:
    """Of the products: two for every weight and token, forwards once and backwards twice."""
    assert isinstance(model, LSTM)
    weights = sum(leaf.size for leaf in jax.tree.leaves(model) if leaf.ndim == 2)
    return 6.0 * tokens * weights


def _product_rate(kind: Any) -> float:
    """FLOP a second of one large product."""
    side = 8192 if jax.default_backend() == "gpu" else 2048
    matrix = jnp.ones((side, side), kind)
    multiply = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
    jax.block_until_ready(multiply(matrix, matrix))
    return 2.0 * side**3 / median(timed(lambda: jax.block_until_ready(multiply(matrix, matrix))) for _ in range(5))


def _copy_rate() -> float:
    """Bytes a second, read and written."""
    numbers = jnp.ones(2**28 if jax.default_backend() == "gpu" else 2**26)
    copy = jax.jit(lambda x: x + 1.0)
    jax.block_until_ready(copy(numbers))
    return 2.0 * numbers.nbytes / median(timed(lambda: jax.block_until_ready(copy(numbers))) for _ in range(5))


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _precision() -> str:
    return "float32 (TF32 products)" if jax.default_backend() == "gpu" else "float32"


def _peak_bytes() -> int:
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("peak_bytes_in_use", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
