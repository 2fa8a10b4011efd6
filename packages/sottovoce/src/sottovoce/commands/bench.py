"""`sotto bench`: named workloads, timed, next to the best that the device could do."""

from __future__ import annotations

import resource
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.rows import SplitWriter
from sottovoce.data.store import FORMAT, Store, write_facts
from sottovoce.data.tokenizer_files import save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.kernels.find import Program
from sottovoce.kernels.general import Narrow
from sottovoce.models.contract import parameter_count, split
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.read_ahead import ReadAhead
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState
from sottovoce_evidence.errors import SettingError, SottoError, did_you_mean
from sottovoce_evidence.files import Json
from sottovoce_evidence.recipe import CORRELATION_KEYS, SEPARATION_KEYS, Federation, Privacy, Recipe

REPEATS = 5
VOCABULARY, TOKENS, USERS_ON_CPU = 10_000, 480, 16  # of users whose rate is timed: those of the recipe `small`
DIFFERENT_USERS = 1000  # of a population on disk: they take turns


@dataclass(frozen=True)
class Workload:
    """A recipe, and made-up users for it, each with as many tokens as the recipe's users have."""

    recipe: str | Recipe  # the name of a shipped one, or any
    vocabulary: int
    tokens: int
    cohort: int
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the recipe, by section
    kernels: str = "auto"


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


@dataclass(frozen=True)
class Measurement:
    """`arithmetic_share` and `bandwidth_share` are of a large product and a large copy timed here.

    `cohort` is the expected one where it is drawn from a larger population. Core seconds add up all cores of the host;
    other work on it disturbs them less.
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

    def to_json(self) -> Json:
        return asdict(self)


def measure(
    name: str, cohort: int | None = None, block: int = 0, kernels: str | None = None, population: Path | None = None
) -> Measurement:
    """Time whole rounds: gathering, training, summing, noise, server step. Gives the median of a few rounds.

    Args:
        name: the workload.
        cohort: users a round.
        block: users computed at once; 0 chooses.
        kernels: `run.kernels` of a recipe; None is as the workload has it.
        population: a store of `make_population` to draw cohorts from. Without one, the cohort is all users there are.
    """
    workload, cohort = _check(name, cohort)
    begun = time.perf_counter()
    store = make_users(workload, cohort) if population is None else Store.open(population)
    opened = time.perf_counter() - begun
    assembly = assemble_workload(workload, cohort, block, kernels or workload.kernels, store=store)
    play = play_next(assembly, store)
    # Cohorts that are drawn differ in size: after a few of them, every shape of block has been compiled.
    first = [_users_and_seconds(play) for _ in range(1 if population is None else 3)]
    rounds = [_users_and_seconds(play) for _ in range(REPEATS)]
    seconds = median(seconds for _, seconds, _ in rounds)
    rate = median(users / seconds for users, seconds, _ in rounds)
    flops, peak, products = _flops(assembly.model, workload.tokens), _peak_bytes(), assembly.sum_updates.products
    moved = _bytes_moved(assembly, workload.tokens)
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
        arithmetic_share=flops * rate / _product_rate(getattr(products, "kind", jnp.float32)),
        bandwidth_share=moved * rate / _copy_rate(),
    )


def _bytes_moved(assembly: Assembly, tokens: int) -> int:
    """Of a user's update: read twice and written once, in every step; FedSGD has one gradient a user."""
    recipe, products = assembly.recipe, assembly.sum_updates.products
    steps = 1 if recipe.run.algorithm == "fedsgd" else -(-tokens // (recipe.local.batch * recipe.local.unroll))
    stored = jnp.dtype(getattr(products, "stored", jnp.float32))
    return 3 * stored.itemsize * parameter_count(split(assembly.model)[0]) * steps


def users_per_second(recipe: Recipe, tokens: int = TOKENS, seconds: float = 20.0) -> float:
    """How many users a second this machine trains with a recipe, in whole rounds of made-up users.

    Args:
        recipe: whose model and local training are timed; its store is not read.
        tokens: of each user.
        seconds: about how long it takes, compilation included. At least one round is timed.
    """
    begun = time.perf_counter()
    if recipe.local.objective != "plain" or recipe.run.algorithm in ("central", "els"):
        raise SottoError("only plain FedAvg and FedSGD can be timed here; use --no-bench, or give --users-per-second")
    plain = {"weight_cap": 1.0, "total_weight": 0.0, "min_weight": 0.0}  # made-up users weigh the same
    recipe = recipe.replace(privacy=plain, audit={"users": 0, "secrets": 0})
    cohort = max(1, round(recipe.privacy.cohort))
    if jax.default_backend() == "cpu":  # as fast in a small cohort as in a large one
        cohort = min(cohort, USERS_ON_CPU)
    workload = Workload(recipe, VOCABULARY, tokens, cohort)
    store = make_users(workload, cohort)
    play = play_next(assemble_workload(workload, cohort, recipe.run.block, recipe.run.kernels, store=store), store)
    play()  # it compiles
    rates, took = [], 0.0
    while not rates or (len(rates) < REPEATS and time.perf_counter() + took < begun + seconds):
        users, took, _ = _users_and_seconds(play)
        rates.append(users / took)
    return median(rates)


def plain_rate(cohort: int) -> float:
    """Users a second of `benchmarks/plain.py`: the paper's model and local training in plain JAX alone."""
    path = Path(__file__).parents[5] / "benchmarks" / "plain.py"
    if not path.is_file():
        raise SottoError("there is no benchmarks/plain.py here: a clone of the repository has it, the package does not")
    return runpy.run_path(str(path))["rates"](cohort)["users_per_second"]


def measure_each(
    name: str,
    cohorts: Sequence[int | None],
    populations: Sequence[int | None],
    block: int = 0,
    kernels: str | None = None,
) -> Iterator[Measurement]:
    """Measure every cohort in every population, each in a new process: compilation and peak memory are then its own.

    A population is made on disk, in a temporary folder.
    """
    for population, cohort in product(populations, cohorts):
        _, users = _check(name, cohort)
        if population is not None and users > population:
            text = "{cohort} is larger than the {population} that it is drawn from"
            raise SettingError(text, cohort=users, population=population)
    for population in populations:
        with tempfile.TemporaryDirectory() as work:
            folder = None
            if population is not None:
                make_population(folder := Path(work), WORKLOADS[name], population)
            for cohort in cohorts:
                yield apart(measure, name, cohort, block, kernels, folder)


def apart(work: Callable[..., Any], *inputs: Any) -> Any:
    """Do the work in a new process, and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(work, *inputs).result()
        except BrokenProcessPool as error:
            raise SottoError(f"{work.__name__}{inputs} was killed, for memory perhaps; ask for less") from error


def _check(name: str, cohort: int | None) -> tuple[Workload, int]:
    if name not in WORKLOADS:
        raise SettingError(
            f"{{workload!r}} must be one of {', '.join(WORKLOADS)}{did_you_mean(name, WORKLOADS)}", workload=name
        )
    cohort = WORKLOADS[name].cohort if cohort is None else cohort
    if cohort < 1:
        raise SettingError("{cohort} must be 1 or more", cohort=cohort)
    return WORKLOADS[name], cohort


def assemble_workload(
    workload: Workload, cohort: int, block: int, kernels: str, devices: int = 0, store: Store | None = None
) -> Assembly:
    """Its model, mechanism and program, as a run of the recipe has them."""
    store = make_users(workload, cohort) if store is None else store
    sampling = "fixed" if store.users == cohort else "poisson"
    privacy = {"users": store.users, "cohort": cohort, "sampling": sampling, "accountant": "rdp", "secrets": "seeded"}
    privacy |= {"noise_multiplier": 1.0, "epsilon": None, "allow_large_delta": True}
    # Correlated noise needs to know which rounds a user joins. Noise takes a small part of a round of any kind.
    privacy |= {key: getattr(Privacy(), key) for key in (*CORRELATION_KEYS, *SEPARATION_KEYS)}
    run = {"block": block, "kernels": kernels, "devices": devices}
    recipe = workload.recipe if isinstance(workload.recipe, Recipe) else Recipe.load(workload.recipe)
    changes = {section: dict(keys) for section, keys in workload.changes.items()}
    changes["run"] = {**changes.get("run", {}), **run}
    here = asdict(Federation())  # how the answers of real devices are added up takes no time here
    return assemble(recipe.replace(**changes).replace(privacy=privacy, federation=here), store)


def make_users(workload: Workload, cohort: int) -> Store:
    """Made-up users, the same every time. They draw frequent words often, as people do."""
    return Store.from_users(list(_tokens(workload, cohort)), _vocabulary(workload), tokens_per_user=workload.tokens)


def make_population(folder: Path, workload: Workload, users: int) -> None:
    """A store on disk of any number of users, as `sotto prepare` leaves one."""
    needed, free = users * (2 * workload.tokens + 40), shutil.disk_usage(folder).free
    if users < 1 or needed > free:
        raise SettingError(
            f"{{population}} must be 1 or more and fit on disk: it takes {needed / 1e9:.3g} GB, and "
            f"{free / 1e9:.3g} GB are free in {{}}; ask for fewer, or name another place in TMPDIR",
            folder.parent,
            population=users,
        )
    vocabulary, splits = _vocabulary(workload), {"train": users, "test": 1}
    tokens = _tokens(workload, min(users, DIFFERENT_USERS)).astype(np.uint16)
    for name, count in splits.items():
        with SplitWriter(folder / f"{name}.arrow", vocabulary.size) as writer:
            for number in range(count):
                writer.add(f"{number:032x}", tokens[number % len(tokens)])
    save_tokenizer(vocabulary, folder)
    facts = {"format": FORMAT, "tokens_per_user": workload.tokens, "vocabulary_size": vocabulary.size}
    write_facts(folder, {**facts, "splits": {name: {"users": count} for name, count in splits.items()}})


def _tokens(workload: Workload, users: int) -> np.ndarray:
    first = Vocabulary.frame_size
    chances = 1 / (np.arange(workload.vocabulary - first) + 10.0)
    drawn = np.random.default_rng(0).choice(len(chances), size=(users, workload.tokens), p=chances / chances.sum())
    return drawn + first


def _vocabulary(workload: Workload) -> Vocabulary:
    return Vocabulary.from_tokens(f"w{number}" for number in range(workload.vocabulary - Vocabulary.frame_size))


def play_next(assembly: Assembly, store: Store) -> Callable[[], tuple[ServerState, int]]:
    """A function that plays the next round: where it led, and how many users were in it.

    As in a run, it returns while a device may still add the noise.
    """
    state = assembly.start(assembly.model)
    payments = Unpaid(Secrets.seeded(0), "bench", hash_sums=True)  # hashed as in a run: it takes its time
    sum_updates = ReadAhead(assembly.sum_updates)  # as in a run

    def play() -> tuple[ServerState, int]:
        nonlocal state
        payment = payments.begin(state.round + 1)
        state, summed = play_round(assembly.algorithm, state, store, payment, sum_updates)
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


def _precision(products: Program | None) -> str:
    if isinstance(products, Narrow) or getattr(products, "kind", None) == jnp.bfloat16:
        stored = jnp.dtype(getattr(products, "stored", jnp.float32))
        return f"bfloat16 products, float32 sums, {stored} updates"
    return "float32 (TF32 products)" if jax.default_backend() == "gpu" else "float32"


def _peak_bytes() -> int:
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("peak_bytes_in_use", process_peak()))


def process_peak() -> int:
    """The most memory this process ever had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux getrusage is never below what the parent had at the start
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
