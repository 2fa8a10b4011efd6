"""`sotto bench`: whole rounds of a recipe, timed on this machine with made-up users."""

from __future__ import annotations

import resource
import sys
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
from sottovoce.commands.stores import public_facts
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.kernels.find import Program
from sottovoce.kernels.general import Narrow
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import play_round
from sottovoce.training.server import ServerState
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import Json
from sottovoce_evidence.recipe import CORRELATION_KEYS, SEPARATION_KEYS, Federation, Privacy, Recipe

REPEATS = 5
USERS_ON_CPU = 16  # a CPU is as fast in a small cohort as in a large one


@dataclass(frozen=True)
class Measurement:
    """What whole rounds of a recipe take here: medians of a few.

    Core seconds add up all cores of the host; other work on it disturbs them less.
    """

    device: str
    precision: str
    cohort: int  # expected, where it is drawn from more users
    block: int
    users_per_second: float
    tokens_per_second: float
    seconds_a_round: float
    core_seconds_a_round: float
    compile_seconds: float
    peak_bytes: int

    def to_json(self) -> Json:
        return asdict(self)


def measure(recipe: Recipe | str | Path, cohort: int | None = None) -> Measurement:
    """Time whole rounds of a recipe: gathering, training, summing, noise, server step.

    Its store is not read: users are made up, with the vocabulary's size and the tokens per user that it has.

    Args:
        recipe: as for `train`.
        cohort: users a round; as the recipe has it, at most 16 on a CPU, if it is not given.
    """
    if not isinstance(recipe, Recipe):
        recipe = Recipe.load(recipe)
    if cohort is not None and cohort < 1:
        raise SettingError("{cohort} must be 1 or more", cohort=cohort)
    store = made_up_users(cohort or _usual_cohort(recipe), *_text_of(recipe))
    return time_rounds(assemble_timed(recipe, store, store.users), store)


def measure_each(recipe: Recipe, cohorts: Sequence[int]) -> Iterator[Measurement]:
    """Measure every cohort in a new process: compilation and peak memory are then its own."""
    for cohort in cohorts:
        yield apart(measure, recipe, cohort)


def apart(work: Callable[..., Any], *inputs: Any) -> Any:
    """Do the work in a new process, and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(work, *inputs).result()
        except BrokenProcessPool as error:
            raise SottoError(f"{work.__name__}{inputs} was killed, for memory perhaps; ask for less") from error


def users_per_second(recipe: Recipe, tokens: int | None = None, seconds: float = 20.0) -> float:
    """How many users a second this machine trains with a recipe, in whole rounds of made-up users.

    Args:
        recipe: whose model and local training are timed; its store is not read.
        tokens: of each user; as its store has them, if they are not given.
        seconds: about how long it takes, compilation included. At least one round is timed.
    """
    begun = time.perf_counter()
    words, usual = _text_of(recipe)
    store = made_up_users(_usual_cohort(recipe), words, tokens or usual)
    play = play_next(assemble_timed(recipe, store, store.users), store)
    play()  # it compiles
    rates, took = [], 0.0
    while not rates or (len(rates) < REPEATS and time.perf_counter() + took < begun + seconds):
        users, took, _ = _users_and_seconds(play)
        rates.append(users / took)
    return median(rates)


def time_rounds(assembly: Assembly, store: Store) -> Measurement:
    """Time whole rounds of what was assembled, after those that compile."""
    play, cohort = play_next(assembly, store), int(assembly.recipe.privacy.cohort)
    # Cohorts that are drawn differ in size: after a few of them, every shape of block has been compiled.
    first = [_users_and_seconds(play) for _ in range(1 if store.users == cohort else 3)]
    rounds = [_users_and_seconds(play) for _ in range(REPEATS)]
    seconds = median(seconds for _, seconds, _ in rounds)
    rate = median(users / seconds for users, seconds, _ in rounds)
    return Measurement(
        device=jax.devices()[0].device_kind,
        precision=_precision(assembly.sum_updates.products),
        cohort=cohort,
        block=assembly.sum_updates.block,
        users_per_second=rate,
        tokens_per_second=rate * store.tokens_per_user,
        seconds_a_round=seconds,
        core_seconds_a_round=median(cores for _, _, cores in rounds),
        compile_seconds=max(0.0, sum(seconds for _, seconds, _ in first) - len(first) * seconds),
        peak_bytes=_peak_bytes(),
    )


def assemble_timed(recipe: Recipe, store: Store, cohort: int) -> Assembly:
    """The model, the mechanism and the program that a run of the recipe has, for rounds of made-up users.

    What these users cannot have, and what takes no time in a round, is left out: their weights, canaries, devices, and
    correlated noise, which needs to know which rounds a user joins.
    """
    if recipe.local.objective == "rehearsal" or recipe.run.algorithm in ("central", "els"):
        raise SottoError(
            "FedAvg and FedSGD can be timed here, without rehearsal; in a plan use --no-bench or --users-per-second"
        )
    left_out = (*CORRELATION_KEYS, *SEPARATION_KEYS, "weight_cap", "total_weight")
    privacy = {key: getattr(Privacy(), key) for key in left_out}
    sampling = "fixed" if store.users == cohort else "poisson"
    privacy |= {"users": store.users, "cohort": cohort, "sampling": sampling, "accountant": "rdp", "secrets": "seeded"}
    privacy |= {"noise_multiplier": 1.0, "noise_std": None, "epsilon": None, "delta": 1e-12}
    timed = recipe.replace(privacy=privacy, audit={"users": 0, "secrets": 0}, federation=asdict(Federation()))
    return assemble(timed, store)


def made_up_users(users: int, words: int, tokens: int) -> Store:
    """Made-up users, the same every time. They draw frequent words often, as people do."""
    first = Vocabulary.frame_size
    vocabulary = Vocabulary.from_tokens(f"w{number}" for number in range(words - first))
    chances = 1 / (np.arange(words - first) + 10.0)
    drawn = np.random.default_rng(0).choice(len(chances), size=(users, tokens), p=chances / chances.sum())
    return Store.from_users(list(drawn + first), vocabulary, tokens_per_user=tokens)


def _text_of(recipe: Recipe) -> tuple[int, int]:
    """Words of the vocabulary, and tokens of a user."""
    vocabulary, tokens = public_facts(recipe)
    return vocabulary.size, tokens


def _usual_cohort(recipe: Recipe) -> int:
    cohort = max(1, round(recipe.privacy.cohort))
    return min(cohort, USERS_ON_CPU) if jax.default_backend() == "cpu" else cohort


def play_next(assembly: Assembly, store: Store) -> Callable[[], tuple[ServerState, int]]:
    """A function that plays the next round: where it led, and how many users were in it.

    As in a run, it returns while a device may still add the noise.
    """
    state = assembly.start(assembly.model)
    payments = Unpaid(Secrets.seeded(0))

    def play() -> tuple[ServerState, int]:
        nonlocal state
        payment = payments.begin(state.round + 1)
        state, summed = play_round(assembly.algorithm, state, store, payment, assembly.sum_updates)
        return state, summed.users

    return play


def _users_and_seconds(play: Callable[[], tuple[ServerState, int]]) -> tuple[int, float, float]:
    """Of a round: its users, seconds on the clock, and of all cores."""
    begun, worked = time.perf_counter(), time.process_time()
    _, users = play()
    return users, time.perf_counter() - begun, time.process_time() - worked


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
