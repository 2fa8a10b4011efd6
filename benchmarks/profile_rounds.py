"""Where the time of a round goes on a GPU: its kernels, and when the device waits for the host.

    python benchmarks/profile_rounds.py gated_cnn --cohort 500
    python benchmarks/profile_rounds.py mcmahan-lstm --cohort 100 --gaps 20

It times rounds of a workload of `workloads.py`, then profiles three more, and prints a JSON object:

- `users_per_second`, `milliseconds`: of a round, the medians of those that are not profiled.
- `busy`: milliseconds a round in which the device computes or copies.
- `kernels`: of those that take longest, milliseconds and launches a round. Programs of XLA share names such as
  `input_reduce_fusion`: `XLA_FLAGS=--xla_dump_to=FOLDER` writes what each of them is.
- `gaps`: the longest times without work, in microseconds, and what came next.
- `host`: milliseconds of a round until functions of it begin and end, unprofiled. Work on a device may go on after.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import jax
from workloads import WORKLOADS

from sottovoce.commands.bench import play_next
from sottovoce.privacy import mechanism, noise
from sottovoce.runs import payments
from sottovoce.training import cohort_sum, server
from sottovoce.training import round as one_round

ROUNDS, PROFILED = 20, 3
ON_THE_HOST = [
    (cohort_sum.SumInBlocks, "__call__"),
    (cohort_sum, "_add_block"),
    (one_round, "release"),
    (payments.Unpaid, "charge"),
    (mechanism.Mechanism, "add_noise"),
    (noise, "_draw"),
    (mechanism, "_add_steps"),
    (server.Server, "step"),
]


class Event(NamedTuple):
    """Something that a device did: times in microseconds."""

    name: str
    begun: float
    took: float


def device_events(trace: dict[str, Any]) -> list[Event]:
    """What the streams of a GPU did, in order."""
    processes = {
        each["pid"]: each["args"]["name"] for each in trace["traceEvents"] if each.get("name") == "process_name"
    }
    named = (each for each in trace["traceEvents"] if each.get("name") == "thread_name")
    streams = {
        (each["pid"], each["tid"])
        for each in named
        if "GPU" in processes[each["pid"]] and each["args"]["name"].startswith("Stream")
    }
    found = [each for each in trace["traceEvents"] if each.get("ph") == "X" and (each["pid"], each["tid"]) in streams]
    return sorted((Event(each["name"], each["ts"], each["dur"]) for each in found), key=lambda event: event.begun)


def busy_and_gaps(events: list[Event]) -> tuple[float, list[tuple[float, str]]]:
    """Microseconds with work on any stream, and those without any, each with what came next."""
    busy, gaps, end = 0.0, [], events[0].begun if events else 0.0
    for event in events:
        if event.begun > end:
            gaps.append((event.begun - end, event.name))
        busy += max(0.0, event.begun + event.took - max(event.begun, end))
        end = max(end, event.begun + event.took)
    return busy, gaps


def kernels(events: list[Event], most: int) -> list[tuple[str, float, int]]:
    """Names, milliseconds and launches a round, those first that take longest."""
    took: dict[str, list[float]] = defaultdict(list)
    for event in events:
        took[event.name].append(event.took)
    longest = sorted(took.items(), key=lambda each: -sum(each[1]))[:most]
    return [(name, sum(times) / PROFILED / 1e3, len(times) // PROFILED) for name, times in longest]


@contextmanager
def watched(found: dict[str, list[tuple[float, float]]], since: Callable[[], float]) -> Iterator[None]:
    """While it is open, the functions of a round say when they begin and end."""

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            begun = since()
            answer = real(*given, **named)
            found[name].append((begun, since()))
            return answer

        return call

    patches = [mock.patch.object(room, name, watch(name, getattr(room, name))) for room, name in ON_THE_HOST]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def host_times(play: Callable[[], Any]) -> list[tuple[str, float, float]]:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    begun = 0.0
    with watched(found, lambda: 1e3 * (time.perf_counter() - begun)):
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            play()
    middle = [(name, *(median(ends) for ends in zip(*times, strict=True))) for name, times in found.items()]
    return sorted(middle, key=lambda each: each[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=tuple(WORKLOADS))
    parser.add_argument("--cohort", type=int, help="users a round")
    parser.add_argument("--block", type=int, default=0, help="users at once; 0 chooses")
    parser.add_argument("--kernels", type=int, default=25, help="how many are listed")
    parser.add_argument("--gaps", type=int, default=12, help="how many are listed")
    given = parser.parse_args()
    if jax.default_backend() != "gpu":
        sys.exit("this profiles a GPU, and there is none")
    workload = WORKLOADS[given.workload]
    cohort = given.cohort or workload.cohort
    store = workload.users(cohort)
    play = play_next(workload.assemble(store, block=given.block), store)
    for _ in range(3):
        play()
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        play()
        seconds.append(time.perf_counter() - begun)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(PROFILED):
                jax.block_until_ready(play()[0].params)
        (path,) = Path(folder).rglob("*.trace.json.gz")
        events = device_events(json.loads(gzip.decompress(path.read_bytes())))
    busy, gaps = busy_and_gaps(events)
    found = {
        "workload": given.workload,
        "device": jax.devices()[0].device_kind,
        "cohort": cohort,
        "users_per_second": cohort / median(seconds),
        "milliseconds": 1e3 * median(seconds),
        "busy": busy / PROFILED / 1e3,
        "kernels": kernels(events, given.kernels),
        "gaps": sorted(gaps, reverse=True)[: given.gaps],
        "host": host_times(play),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
