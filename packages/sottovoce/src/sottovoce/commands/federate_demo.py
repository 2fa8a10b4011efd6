"""A small federation on one machine: a server and three silos, four processes, over TLS on the loopback.

It trains with masked sums. One plain round comes first, to compare: what the server sees of one silo in either.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from sottovoce.build.assembly import assemble
from sottovoce.commands.demo import ProgressDisplay
from sottovoce.commands.federate import (
    FederationSettings,
    Notify,
    Serving,
    connected,
    create_federation,
    enrol,
    federation_members,
    make_device_key,
    require_flower,
    with_federation,
)
from sottovoce.commands.live_line import live_line
from sottovoce.commands.report import report_run
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, prepare_demo
from sottovoce.commands.train import RunResult, Stop, never, train
from sottovoce.data.demo import demo_vocabulary
from sottovoce.data.store import Store
from sottovoce.federation.device import for_this_machine
from sottovoce.federation.flower.subprocesses import Child, free_port
from sottovoce.federation.messages import Contribution, read_answer, unpack
from sottovoce.federation.roster import Roster
from sottovoce.federation.rounds import for_devices
from sottovoce.federation.transport import Exchange, Transport
from sottovoce.local.keys import local_key
from sottovoce.training.types import Task as CohortTask
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.recipe import Recipe

ROUNDS = 8
SILOS = {"north": 1, "south": 2, "east": 3}  # and the seeds of their populations
WATCHED = "north"
SHOWN = 6  # numbers
MASKED = {"survivors": 2}


def run_federation_demo(
    out: Path, *, users: int, notify: Notify = print, progress: ProgressDisplay = live_line, stop: Stop = never
) -> RunResult:
    """Prepare three silos of a synthetic population, create a federation, train a private model with it, report.

    Args:
        out: a new folder for all of it.
        users: of all silos together.
        notify: takes a line about each step.
        progress: shows the rounds of a run.
        stop: is asked after each round.
    """
    require_flower()
    if out.exists():
        raise SottoError(f"{str(out)!r} exists; delete it or name another with --out")
    out.mkdir(parents=True)
    stores = {name: out / "silos" / name for name in SILOS}
    shares = {
        name: prepare_demo(stores[name], users // len(SILOS), seed=seed).train_users for name, seed in SILOS.items()
    }
    prepare_demo(out / "held-out", 400, seed=len(SILOS) + 1)
    silos = [f"{name} with {count_of(count, 'user')}" for name, count in shares.items()]
    notify(f"prepare  {', '.join(silos)}")
    roster, folders = _enrolled(out, shares)
    notify(f"create   a federation at {roster.server}; each silo made its own key")
    notify(f"         the list of members, which owners compare: {federation_members(folders[WATCHED]).fingerprint}")
    recipe = Recipe.load("demo").replace(
        privacy={"users": users, "cohort": min(100, users / 4)}, run={"rounds": ROUNDS, "evaluate_every": 4}
    )
    sotto = [sys.executable, "-m", "sottovoce.cli.main", "federate", "device"]
    devices = [Child(name, [*sotto, folders[name], "--data", stores[name]], roster.path) for name in SILOS]

    def stopped() -> bool:
        for device in devices:
            device.check_running()  # the server would wait for it
        return stop()

    with ExitStack() as stack:
        stack.enter_context(_shared_programs(out / "programs"))
        stack.callback(_stop_all, devices)
        for device in devices:
            device.start()
        notify("start    a server and three devices; compile what a silo runs, once for all three")
        compiling = stack.enter_context(ThreadPoolExecutor(1)).submit(compile_for_silos, recipe, out / "held-out")
        serving = Serving(seconds=300, at_least=len(SILOS), notify=notify)
        server = stack.enter_context(connected(roster, serving, stopped))
        compiling.result()
        plain, masked = Seen(server.transport), Seen(server.transport)
        coordinator = replace(server, transport=plain)
        with progress("plain") as observer:
            first = with_federation(recipe.replace(run={"rounds": 1}), roster)
            train(first, out / "plain-run", observer=observer, stop=stopped, coordinator=coordinator)
        coordinator = replace(server, transport=masked)
        with progress("masked") as observer:
            second = with_federation(recipe.replace(federation=MASKED), roster)
            result = train(second, out / "run", observer=observer, stop=stopped, coordinator=coordinator)
        for line in comparison(plain, masked):
            notify(line)
    report_run(result.path)
    return result


def _enrolled(out: Path, shares: dict[str, int]) -> tuple[Roster, dict[str, Path]]:
    """A federation whose silos made their keys, and the folder of each."""
    settings = FederationSettings(demo_vocabulary(), DEMO_TOKENS_PER_USER, "127.0.0.1", free_port(), out / "held-out")
    roster = create_federation(out / "federation", [], settings)
    folders = {name: out / "devices" / name for name in shares}
    for name, users in shares.items():
        enrol(roster.path, name, users, public_key=make_device_key(folders[name]))
    roster = Roster.open(roster.path)
    for name, folder in folders.items():  # once all are registered: each has the whole list
        shutil.copytree(roster.bundle(name), folder, dirs_exist_ok=True)
        shutil.rmtree(roster.bundle(name))
    return roster, folders


@dataclass
class Seen:
    """A transport that keeps the longest answer of one silo: what the server sees of its update."""

    transport: Transport
    answer: bytes = field(default=b"")

    def here(self) -> Collection[str]:
        return self.transport.here()

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        for device, answer in self.transport.exchange(exchange):
            if device == WATCHED and len(answer) > len(self.answer):
                self.answer = answer
            yield device, answer


def comparison(plain: Seen, masked: Seen) -> list[str]:
    """What the server saw of one silo: numbers of its update, and the numbers in the same places under masks."""
    sums = read_answer(plain.answer)
    if not isinstance(sums, Contribution) or not sums.users:
        return [f"         nobody was drawn in {WATCHED}, so the plain round shows nothing"]
    update = np.concatenate([leaf.ravel() for leaf in sums.leaves])
    hidden = unpack(masked.answer, len(masked.answer))[1].get("vector", np.zeros(0, np.uint8))
    low = hidden[: 4 * update.size].view("<u4")  # the lowest 32 bits of each number
    places = np.flatnonzero(update)[:SHOWN]
    seen = f"{_row(low[places])}   {np.mean(low >= 2**31):.1%} above 2^31: chance" if low.size else "nothing"
    return [
        f"what the server saw of {WATCHED}: {update.size:,} numbers, of which {len(places)}",
        f"  plain   {_row(update[places])}   {np.mean(np.abs(update) >= 2**31):.1%} above 2^31: the update",
        f"  masked  {seen}",
        "  it opened the sum over the silos, and nothing else",
    ]


def _row(numbers: np.ndarray) -> str:
    return " ".join(f"{number:>11}" for number in numbers.tolist())


def compile_for_silos(recipe: Recipe, public: Path) -> None:
    """Compile what a silo runs, before the silos are asked: all three would compile the same at the same time.

    Users of a public store train for it, as many as a silo draws, and what they give is dropped.
    """
    store = Store.open(public)
    assembly = assemble(for_this_machine(for_devices(recipe)), store)
    algorithm, drawn = assembly.algorithm, round(recipe.privacy.cohort / len(SILOS))
    clip_norms = np.asarray(algorithm.mechanism.clip_norms(1, algorithm.mechanism.start()))

    def train_some(users: int) -> None:
        task = CohortTask(assembly.params, np.arange(users), clip_norms, local_key(bytes(8)))
        assembly.sum_updates(algorithm, task, store)

    with ThreadPoolExecutor() as threads:  # a block has as many places, or a half, or a quarter
        list(threads.map(train_some, [max(1, drawn // part) for part in (1, 2, 4)]))


def _stop_all(devices: Sequence[Child]) -> None:
    """At the same time: each waits for its SuperNode."""
    with ThreadPoolExecutor(len(devices)) as threads:
        list(threads.map(lambda device: device.stop(), devices))


@contextmanager
def _shared_programs(folder: Path) -> Iterator[None]:
    """This process, and those that it starts, keep compiled programs in a folder, if they keep them nowhere else."""
    kept = {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    new = {name: value for name, value in kept.items() if name not in os.environ}
    os.environ.update(new)
    settings: Any = jax.config
    before = settings.jax_compilation_cache_dir, settings.jax_persistent_cache_min_compile_time_secs
    _keep_programs(os.environ["JAX_COMPILATION_CACHE_DIR"], 0.0)
    try:
        yield
    finally:
        _keep_programs(*before)
        for name in new:
            del os.environ[name]


def _keep_programs(folder: str | None, seconds: float) -> None:
    """Where this process keeps programs that took so long to compile."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)
    compilation_cache.reset_cache()
