"""What a GPU does in one round of the paper's LSTM, and when it waits: python benchmarks/variants/gaps.py COHORT

Prints JSON objects: how long the GPU was busy, the longest gaps with the kernels before and after, and the kernels that
took longest. Then the functions of the host in ten rounds, as text, to stderr.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import tempfile
from pathlib import Path

import jax

from sottovoce.commands import bench

GAPS, KERNELS = 25, 40


def events_of(folder: Path) -> list[tuple[float, float, str]]:
    """Start, length and name of everything that ran on the GPU, in microseconds."""
    (path,) = folder.rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(path))
    streams = [line for plane in data.planes if "GPU" in plane.name for line in plane.lines]
    return sorted(
        (event.start_ns / 1e3, event.duration_ns / 1e3, event.name)
        for line in streams
        if line.name.startswith("Stream")
        for event in line.events
    )


def main() -> None:
    cohort, workload = int(sys.argv[1]), bench.WORKLOADS["mcmahan-lstm"]
    store = bench.make_users(workload, cohort)
    play = bench.play_next(bench._assemble(workload, cohort, 0, "auto", store=store), store)
    for _ in range(3):
        play()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            play()
        events = events_of(Path(folder))
    gaps, end, last = [], events[0][0], ""
    kernels: dict[str, list[float]] = {}
    for start, length, name in events:
        if start > end:
            gaps.append({"gap": start - end, "after": last[:60], "before": name[:60], "at": end - events[0][0]})
        if start + length > end:
            end, last = start + length, name
        kernels.setdefault(name, []).append(length)
    busy, waited = sum(sum(each) for each in kernels.values()), sum(gap["gap"] for gap in gaps)
    print(
        json.dumps({"cohort": cohort, "busy": busy, "span": end - events[0][0], "gaps": waited, "kernels": len(events)})
    )
    for gap in sorted(gaps, key=lambda gap: -gap["gap"])[:GAPS]:
        print(json.dumps(gap))
    for name, each in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:KERNELS]:
        print(json.dumps({"kernel": name[:90], "calls": len(each), "microseconds": sum(each)}))
    watch = cProfile.Profile()
    watch.enable()
    for _ in range(10):
        play()
    watch.disable()
    pstats.Stats(watch, stream=sys.stderr).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
