"""How fast rounds are here: named workloads, timed, against what the device could do at best."""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.store import FORMAT, VOCABULARY_FILE, Store, write_facts
from sottovoce.data.vocabulary import FRAME, Vocabulary
from sottovoce.data.writing import SplitWriter
from sottovoce.errors import SottoError, did_you_mean
from sottovoce.kernels.lstm_users import Products
from sottovoce.models.contract import parameter_count
from sottovoce.recipe import Recipe
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState

REPEATS = 5
DIFFERENT_USERS = 1000  # of a population on disk: they take turns


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
    # One device: 20 kB of text, a token being 5 bytes. A phone of 2018 took 140 s (Popov et al., section 2.5).
    "popov-device": Workload("popov2018", vocabulary=30_000, tokens=4000, cohort=1),
}


@dataclass(frozen=True)
class Measurement:
    """`arithmetic_share` and `bandwidth_share` are of a large product and a large copy timed here.

    `cohort` is the expected one where it is drawn from a larger population. Core seconds are of all cores of the host
    together, and are swayed less by other work.
    """

    workload: str
    device: str
    precision: str
    cohort: int
    population: int
    block: int
    users_per_second: float
    tokens_per_second: float
    seconds_a_round: float
    core_seconds_a_round: float
    compile_seconds: float
    open_seconds: float
    peak_bytes: int
    flops_a_user: float
    bytes_a_user: float
    arithmetic_share: float
    bandwidth_share: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    name: str, cohort: int | None = None, block: int = 0, kernels: str = "auto", population: Path | None = None
) -> Measurement:
    """Whole rounds (gathering, training, summing, noise, server step), the median of a few after those that compile.

    `population` is a store of `make_population`, from which cohorts are drawn as a run draws them. Without one, the
    cohort is all the users there are.
    """
    workload, cohort = _check(name, cohort)
    begun = time.perf_counter()
    store = make_users(workload, cohort) if population is None else Store.open(population)
    opened = time.perf_counter() - begun
    assembly = _assemble(workload, cohort, block, kernels, store=store)
    play = play_next(assembly, store)
    # Cohorts that are drawn differ in size: a few of them, and every shape of block has been compiled.
    first = [_users_and_seconds(play) for _ in range(1 if population is None else 3)]
    rounds = [_users_and_seconds(play) for _ in range(REPEATS)]
    seconds = median(seconds for _, seconds, _ in rounds)
    rate = median(users / seconds for users, seconds, _ in rounds)
    steps = -(-workload.tokens // (assembly.recipe.local.batch * assembly.recipe.local.unroll))
    flops = _flops(assembly.model, workload.tokens)
    peak = _peak_bytes()
    products = assembly.sum_updates.products
    stored = jnp.dtype(products.stored if products else jnp.float32)
    moved = 3 * stored.itemsize * parameter_count(assembly.model) * steps  # updates: read twice and written once a step
    return Measurement(
        workload=name,
        device=jax.devices()[0].device_kind,
        precision=_precision(products),
        cohort=cohort,
        population=store.users,
        block=assembly.sum_updates.block,
        users_per_second=rate,
        tokens_per_second=rate * workload.tokens,
        seconds_a_round=seconds,
        core_seconds_a_round=median(cores for _, _, cores in rounds),
        compile_seconds=max(0.0, sum(seconds for _, seconds, _ in first) - len(first) * seconds),
        open_seconds=opened,
        peak_bytes=peak,
        flops_a_user=flops,
        bytes_a_user=moved,
        arithmetic_share=flops * rate / _product_rate(products.kind if products else jnp.float32),
        bandwidth_share=moved * rate / _copy_rate(),
    )


def measure_each(
    name: str, cohorts: Sequence[int | None], populations: Sequence[int | None], block: int = 0, kernels: str = "auto"
) -> Iterator[Measurement]:
    """Every cohort in every population, each in a process of its own: what it compiles and its peak memory are its own.

    A population is made on disk, in a temporary folder.
    """
    for population in populations:
        for cohort in cohorts:
            _, users = _check(name, cohort)
            if population is not None and users > population:
                raise SottoError(f"cohort={users} is larger than the population={population} that it is drawn from")
    for population in populations:
        with tempfile.TemporaryDirectory() as work:
            folder = None
            if population is not None:
                make_population(folder := Path(work), WORKLOADS[name], population)
            for cohort in cohorts:
                yield apart(measure, name, cohort, block, kernels, folder)


def apart(work: Callable[..., Any], *inputs: Any) -> Any:
    """What the work answers, done in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(work, *inputs).result()
        except BrokenProcessPool as error:
            raise SottoError(f"{work.__name__}{inputs} was killed, for memory perhaps; ask for less at once") from error


def _check(name: str, cohort: int | None) -> tuple[Workload, int]:
    if name not in WORKLOADS:
        raise SottoError(f"workload={name!r} must be one of {', '.join(WORKLOADS)}{did_you_mean(name, WORKLOADS)}")
    cohort = WORKLOADS[name].cohort if cohort is None else cohort
    if cohort < 1:
        raise SottoError(f"cohort={cohort} must be 1 or more")
    return WORKLOADS[name], cohort


def _assemble(
    workload: Workload, cohort: int, block: int, kernels: str, devices: int = 0, store: Store | None = None
) -> Assembly:
    store = make_users(workload, cohort) if store is None else store
    sampling = "fixed" if store.users == cohort else "poisson"
    recipe = Recipe.load(workload.recipe).replace(
        privacy={"users": store.users, "cohort": cohort, "sampling": sampling, "noise_multiplier": 1.0, "epsilon": None,
                 "secrets": "seeded", "allow_large_delta": True, "accountant": "rdp"},
        run={"block": block, "kernels": kernels, "devices": devices},
    )  # fmt: skip
    return assemble(recipe, store)


def make_users(workload: Workload, cohort: int) -> Store:
    """Users who draw words as people do, the frequent ones often; the same ones every time."""
    return Store.from_users(list(_tokens(workload, cohort)), _vocabulary(workload), tokens_per_user=workload.tokens)


def make_population(folder: Path, workload: Workload, users: int) -> None:
    """A store on disk of any number of users, as `sotto prepare` leaves one."""
    needed, free = users * (2 * workload.tokens + 40), shutil.disk_usage(folder).free
    if users < 1 or needed > free:
        raise SottoError(
            f"population={users} must be 1 or more and fit on disk: it takes {needed / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB are free in {folder.parent}; ask for fewer, or name another place in TMPDIR"
        )
    vocabulary = _vocabulary(workload)
    tokens = _tokens(workload, min(users, DIFFERENT_USERS)).astype(np.uint16)
    splits = {"train": users, "test": 1}
    for split, count in splits.items():
        with SplitWriter(folder / f"{split}.arrow", vocabulary.size) as writer:
            for number in range(count):
                writer.add(f"{number:032x}", tokens[number % len(tokens)])
    vocabulary.save(folder / VOCABULARY_FILE)
    facts = {
        "format": FORMAT, "tokens_per_user": workload.tokens, "vocabulary_size": vocabulary.size,
        "splits": {split: {"users": n} for split, n in splits.items()},
    }  # fmt: skip
    write_facts(folder, facts)


def _tokens(workload: Workload, users: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(workload.vocabulary - len(FRAME)) + 10.0)
    return generator.choice(len(chances), size=(users, workload.tokens), p=chances / chances.sum()) + len(FRAME)


def _vocabulary(workload: Workload) -> Vocabulary:
    return Vocabulary(FRAME + tuple(f"w{number}" for number in range(workload.vocabulary - len(FRAME))))


def play_next(assembly: Assembly, store: Store) -> Callable[[], tuple[ServerState, int]]:
    """A function that plays the next round: where it led, and how many users were in it."""
    state = assembly.start(assembly.model)
    payments = Unpaid(Secrets.seeded(0), "bench", hash_sums=True)  # hashed as in a run: it takes its time

    def play() -> tuple[ServerState, int]:
        nonlocal state
        payment = payments.begin(state.round + 1)
        state, summed = play_round(assembly.algorithm, state, store, payment, assembly.sum_updates)
        jax.block_until_ready(state.params)
        return state, summed.users

    return play


def _users_and_seconds(play: Callable[[], tuple[ServerState, int]]) -> tuple[int, float, float]:
    """Of a round: its users, seconds on the clock, and of all cores."""
    begun, worked = time.perf_counter(), time.process_time()
    _, users = play()
    return users, time.perf_counter() - begun, time.process_time() - worked


def _flops(model: Any, tokens: int) -> float:
    """Of the products: two for every weight and token, forwards once and backwards twice."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(model) if leaf.ndim == 2)
    if getattr(model, "output", None) is not None:
        weights -= model.embedding.size  # looked up, and not multiplied as well
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


def _precision(products: Products | None) -> str:
    if products and products.kind == jnp.bfloat16:
        return f"bfloat16 products, float32 sums, {jnp.dtype(products.stored)} updates"
    return "float32 (TF32 products)" if jax.default_backend() == "gpu" else "float32"


def _peak_bytes() -> int:
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("peak_bytes_in_use", process_peak()))


def process_peak() -> int:
    """The most memory this process ever had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says on Linux is never less than the parent had at the start
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
