"""Rounds on several processes of one machine: strong and weak scaling, and whether the models are the same to the bit.

    python benchmarks/processes.py --processes 1 2 4 > processes.json

Strong: the same cohort on more processes. Weak: the cohort grows with them. Every process has one device and one core
of its own, in turn; on a machine with fewer cores than processes they share them. The model is the paper's LSTM unless
--embedding and --hidden say otherwise. `seconds` is the median of a round, without the first, which compiles.
`cpu_seconds_of_the_run` is the processor time of all processes, with imports and compilation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from synthetic import Population, write_population

from sottovoce.data.vocabulary import Vocabulary

SOTTO = "import sys\nfrom sottovoce.cli.main import main\nmain(sys.argv[1:])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cohort", type=int, default=32, help="of the strong series, and of one process of the weak")
    parser.add_argument("--block", type=int, default=4, help="users at once; the same everywhere, so that bits are")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--embedding", type=int, default=96)
    parser.add_argument("--hidden", type=int, default=256)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        users = 8 * asked.cohort * max(asked.processes)
        write_population(Population(users, asked.tokens, 0.01), folder / "store", Vocabulary.public(asked.vocabulary))
        found: dict[str, Any] = {"asked": vars(asked), "cores": len(os.sched_getaffinity(0)), "strong": [], "weak": []}
        for series in ("strong", "weak"):
            for count in asked.processes:
                if series == "weak" and count == 1:  # the same as the first of the strong series
                    found["weak"].append(found["strong"][0])
                    continue
                cohort = asked.cohort * (count if series == "weak" else 1)
                found[series].append(measure(asked, folder, count, cohort, users))
                print(series, json.dumps(found[series][-1]), file=sys.stderr)
        found["same_bits"] = len({row["weights"] for row in found["strong"]}) == 1
    print(json.dumps(found, indent=1))


def measure(asked: argparse.Namespace, folder: Path, count: int, cohort: int, users: int) -> dict[str, Any]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    settings = {
        "data.store": folder / "store",
        "model.embedding": asked.embedding,
        "model.hidden": asked.hidden,
        "privacy.users": users,
        "privacy.cohort": cohort,
        "privacy.sampling": "fixed",  # cohorts of one size
        "privacy.delta": 1e-6,
        "privacy.secrets": "seeded",  # the same cohorts and noise
        "run.rounds": asked.rounds,
        "run.evaluate_every": 0,
        "run.block": asked.block,
        "run.checkpoint_every": asked.rounds,
    }
    arguments = ["train", "headline", "--out", str(run), "--yes", "--json"]
    arguments += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cores = sorted(os.sched_getaffinity(0))
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=1"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "SOTTO_SECRET": "of this measurement"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    processes = []
    for rank in reversed(range(count)):
        group = ["--coordinator", address, "--processes", str(count), "--process-id", str(rank), "--wait", "900"]
        command = [sys.executable, "-c", SOTTO, *arguments, *(group if count > 1 else ())]
        core = {cores[rank % len(cores)]}
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda core=core: os.sched_setaffinity(0, core),
        )
        processes.append(process)
    ends = [process.communicate() for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("\n".join(error.decode() for _, error in ends))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = [json.loads(line) for line in (run / "diagnostics.jsonl").read_text().splitlines()]
    seconds = statistics.median(line["seconds"] for line in lines[1:])  # the first compiles
    weights = (run / "model" / "weights.safetensors").read_bytes()
    return {
        "processes": count,
        "cohort": cohort,
        "seconds": float(f"{seconds:.4g}"),
        "fastest": float(f"{min(line['seconds'] for line in lines[1:]):.4g}"),
        "users_per_second": float(f"{cohort / seconds:.4g}"),
        "cpu_seconds_of_the_run": float(f"{cpu:.4g}"),
        "weights": hashlib.sha256(weights).hexdigest()[:16],
    }


if __name__ == "__main__":
    main()
