"""What a masked round costs next to a plain one: seconds, CPU seconds and bytes. Prints one JSON object for each size.

`memory`: silos in this process, one after another, with real messages and no network. Plain and masked rounds take
turns. All users of a silo join every round. `seconds` is the round on this machine; `apart_s` is what it would be if
every silo had a machine like this one to itself: for each phase the slowest silo, and the server's work.

`link`: the same silos in threads of this process, each with a connection of its own to a real SuperLink, over TLS. Some
plain rounds and some masked ones take turns.

`processes`: silos in processes of their own, over TLS, with real training. Some plain rounds and some masked ones take
turns over one link; the first round of each turn is not counted (a device then compiles).

Needs the extra: pip install -e '.[federation]'.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from federation import connect_device

from sottovoce.build.assembly import Assembly, assemble
from sottovoce.commands import federate
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, prepare_demo
from sottovoce.data.demo import demo_vocabulary
from sottovoce.federation import device as device_module
from sottovoce.federation.device import Device
from sottovoce.federation.flower.subprocesses import Child, free_port
from sottovoce.federation.members import BY_DEVICE
from sottovoce.federation.roster import Roster
from sottovoce.federation.rounds import Coordinator
from sottovoce.federation.transport import Exchange, Transport
from sottovoce.models.contract import parameter_count
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.recipe import Recipe

KINDS = ("plain", "masked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("memory", "link", "processes"))
    parser.add_argument("--silos", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--rounds", type=int, default=3, help="of each kind (memory), or of each turn (processes)")
    parser.add_argument("--turns", type=int, default=2, help="of each kind (processes)")
    parser.add_argument("--users", type=int, default=10, help="of a silo")
    parser.add_argument("--embedding", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--colluding", type=int, default=0, help="devices that may collude with the server")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    measure = {"memory": in_memory, "link": over_link, "processes": in_processes}[arguments.what]
    for silos in arguments.silos:
        with tempfile.TemporaryDirectory(prefix="sotto-") as folder:
            found = measure(Path(folder), silos, arguments)
        given = {**vars(arguments), "silos": silos, "machine": _processor()}
        print(json.dumps({"measured": given, **found}), flush=True)


def make_recipe(kind: str, silos: int, arguments: argparse.Namespace) -> Recipe:
    users = silos * arguments.users
    federation = {}
    if kind == "masked":
        survivors = max(2 * silos // 3, arguments.colluding + 2)
        federation = {"aggregation": "masked", "survivors": survivors, "colluding": arguments.colluding}
    return Recipe.load("demo").replace(
        model={"embedding": arguments.embedding, "hidden": arguments.hidden},
        privacy={"users": users, "cohort": users, "delta": 1e-4, "epsilon": None, "noise_multiplier": 1.0},
        run={"rounds": 10_000, "evaluate_every": 0, "block": 1},
        federation=federation,
    )


def create(folder: Path, silos: int, users: int) -> Roster:
    settings = federate.FederationSettings(demo_vocabulary(), DEMO_TOKENS_PER_USER, "127.0.0.1", free_port())
    roster = federate.create_federation(folder, [(f"silo-{number}", users) for number in range(silos)], settings)
    # As if silos had made their keys: else they would refuse masked rounds.
    roster = replace(roster, members=tuple(replace(each, made_by=BY_DEVICE) for each in roster.members))
    roster.save()
    roster.share_members()
    return roster


@dataclass
class Spent:
    """Time and bytes of one round."""

    devices_s: dict[str, float] = field(default_factory=dict)  # of the phase under way
    apart_s: float = 0.0
    training_s: float = 0.0
    all_devices_s: float = 0.0
    down: int = 0
    up: int = 0
    exchanges: int = 0


class InMemory:
    """A transport without a network, which counts."""

    def __init__(self, devices: Mapping[str, Device]):
        self._devices, self.spent = devices, Spent()
        self.reached = 1  # devices that answer: at first one, which compiles for all

    def here(self) -> set[str]:
        return set(self._devices)

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        slowest, spent = 0.0, self.spent
        spent.exchanges += 1
        for name, message in list(exchange.messages.items())[: self.reached]:
            began = time.perf_counter()
            answer = self._devices[name].answer(message)
            took = time.perf_counter() - began
            slowest = max(slowest, took)
            spent.all_devices_s += took
            spent.down += len(message)
            spent.up += len(answer)
            yield name, answer
        spent.apart_s += slowest


def in_memory(folder: Path, silos: int, arguments: argparse.Namespace) -> dict[str, Any]:
    users = prepare_demo(folder / "store", arguments.users, seed=1).train_users
    _share_programs()
    training = _timed_training()
    transports, rounds, parameters = {}, {}, 0
    for kind in KINDS:
        roster = create(folder / kind, silos, arguments.users)
        devices = {name: federate.open_device(roster.bundle(name), folder / "store") for name in roster.registered}
        transports[kind] = InMemory(devices)
        rounds[kind], parameters = play(roster, transports[kind], make_recipe(kind, silos, arguments))
        next(rounds[kind])  # programs are compiled
        transports[kind].reached = silos
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for number in range(arguments.rounds):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            spent = transports[kind].spent = Spent()
            training.clear()
            began, cpu = time.perf_counter(), time.process_time()
            _, summed = next(rounds[kind])
            seconds = time.perf_counter() - began
            note(f"{silos} silos, {kind}: {seconds:.1f} s, {time.process_time() - cpu:.1f} CPU seconds")
            assert summed.answers == {"joined": silos}, summed.answers
            found[kind].append(
                {
                    "seconds": seconds,
                    "cpu_s": time.process_time() - cpu,
                    "training_s": sum(training),
                    "apart_s": spent.apart_s + seconds - spent.all_devices_s,
                    "bytes_down": spent.down / silos,
                    "bytes_up": spent.up / silos,
                    "exchanges": spent.exchanges,
                }
            )
    medians = {kind: {name: median(one[name] for one in found[kind]) for name in found[kind][0]} for kind in KINDS}
    return {
        "parameters": parameters,
        "users_of_a_silo": users,
        **{kind: {name: round(value, 3) for name, value in medians[kind].items()} for kind in KINDS},
        "ratio": {name: round(medians["masked"][name] / medians["plain"][name], 2) for name in medians["plain"]},
    }


def note(line: str) -> None:
    """Progress, apart from the figures: 200 silos take minutes."""
    print(line, file=sys.stderr, flush=True)


def play(roster: Roster, transport: Transport, recipe: Recipe) -> tuple[Iterator[Any], int]:
    """Rounds that charge nobody, one at a time, and the number of parameters of their model."""
    assembly = assemble(recipe.replace(data={"store": str(roster.path)}), roster.as_store())
    run = recipe.federation.aggregation
    start = assembly.start(assembly.model)
    rounds = Coordinator(roster, transport, 600.0).rounds(assembly, run, start, Unpaid(Secrets.seeded(3)))
    return rounds, parameter_count(start.params)


def _share_programs() -> None:
    """Silos of this process compile once for all of them."""
    made: dict[str, Assembly] = {}

    def shared(recipe: Recipe, store: Any) -> Assembly:
        name = recipe.sha256()
        if name not in made:
            made[name] = assemble(recipe, store)
        return made[name]

    device_module.assemble = shared


def _timed_training() -> list[float]:
    """The seconds that each silo trains."""
    seconds: list[float] = []
    real = _REAL_TRAINING

    def timed(self: Device, *arguments: Any) -> Any:
        began = time.perf_counter()
        answer = real(self, *arguments)
        seconds.append(time.perf_counter() - began)
        return answer

    Device._train = timed
    return seconds


_REAL_TRAINING = Device._train


def over_link(folder: Path, silos: int, arguments: argparse.Namespace) -> dict[str, Any]:
    prepare_demo(folder / "store", arguments.users, seed=1)
    roster = create(folder / "federation", silos, arguments.users)
    _share_programs()
    training = threading.Lock()  # one at a time: they share two cores
    over = threading.Event()
    for name in roster.registered:
        device = federate.open_device(roster.bundle(name), folder / "store")

        def answer(message: bytes, device: Device = device) -> bytes:
            with training:
                return device.answer(message)

        given = roster.bundle(name), answer, over
        threading.Thread(target=connect_device, args=given, daemon=True).start()
    try:
        return over_tls(roster, arguments)
    finally:
        over.set()


def in_processes(folder: Path, silos: int, arguments: argparse.Namespace) -> dict[str, Any]:
    prepare_demo(folder / "store", arguments.users, seed=1)
    roster = create(folder / "federation", silos, arguments.users)
    sotto = [sys.executable, "-m", "sottovoce.cli.main", "federate", "device"]
    with ExitStack() as stack:
        for name in roster.registered:
            device = Child(name, [*sotto, roster.bundle(name), "--data", folder / "store"], folder)
            device.start()
            stack.callback(device.stop)
        return over_tls(roster, arguments)


class Timed:
    """A transport, and the seconds that each exchange of the last round took."""

    def __init__(self, transport: Transport):
        self._transport, self.seconds = transport, []

    def here(self) -> Collection[str]:
        return self._transport.here()

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        self.seconds = [] if exchange.begins else self.seconds
        began = time.perf_counter()
        yield from self._transport.exchange(exchange)
        self.seconds.append(round(time.perf_counter() - began, 2))


def over_tls(roster: Roster, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds over a real link, whose devices are there or will come."""
    silos = len(roster.members)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        serving = federate.Serving(seconds=600, at_least=silos)
        coordinator = stack.enter_context(federate.connected(roster, serving, lambda: False))
        timed = Timed(coordinator.transport)
        rounds = {kind: play(roster, timed, make_recipe(kind, silos, arguments)) for kind in KINDS}
        note(f"{silos} silos are connected")
        answers = []
        for _ in range(arguments.turns):
            for kind, (played, _) in rounds.items():
                for number in range(arguments.rounds):
                    began = time.perf_counter()
                    _, summed = next(played)
                    took = time.perf_counter() - began
                    note(f"{silos} silos, {kind}: {took:.1f} s, its exchanges {timed.seconds}")
                    answers.append({"kind": kind, "exchanges_s": timed.seconds, **summed.diagnostics()})
                    if number:
                        seconds[kind].append(took)
    medians = {kind: round(median(seconds[kind]), 2) for kind in KINDS}
    return {
        "parameters": rounds["plain"][1],
        "seconds": {kind: [round(one, 2) for one in seconds[kind]] for kind in KINDS},
        "median": medians,
        "ratio": round(medians["masked"] / medians["plain"], 2),
        "last": {one["kind"]: one for one in answers},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
