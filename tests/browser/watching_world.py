"""What the tests of the page of runs share: a server of its own process, and runs that are only files."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sottovoce.commands.stores import prepare_demo
from sottovoce.runs.record import Lines

ARTEFACTS = Path(__file__).parents[2] / "test-artefacts"


@contextmanager
def watching(*runs: Path, port: int = 0, internal: bool = False) -> Iterator[str]:
    """`sotto watch` as a person starts it; the address it prints. It ends by Ctrl-C, without complaint."""
    options = ["--port", str(port), *(["--internal"] if internal else [])]
    command = [sys.executable, "-m", "sottovoce.cli.main", "watch", *map(str, runs), *options]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert server.stdout is not None
        found = re.match(r"(http://\S+)", server.stdout.readline())
        assert found, server.communicate(timeout=30)[1]
        yield found[1]
        server.send_signal(signal.SIGINT)
        _, complaints = server.communicate(timeout=30)
        assert server.returncode == 0
        assert all(line.endswith("the page waits for it") for line in complaints.splitlines()), complaints
    finally:
        server.kill()
        server.wait()


def make_files(folder: Path, *, planned: int, private: bool = True, skill: float = 1.0) -> Path:
    folder.mkdir()
    epsilon = "epsilon = 5.0\n" if private else ""
    recipe = f"[data]\nstore = 'demo:20'\n[run]\nrounds = {planned}\n[privacy]\ndelta = 1e-6\n{epsilon}"
    (folder / "recipe.toml").write_text(recipe)
    prepare_demo(folder / "store", 20)  # its ledger tells that exact figures of held-out users may be shown
    play(folder, range(1, planned * 2 // 3), planned=planned, private=private, skill=skill)
    return folder


def play(folder: Path, rounds: range, *, planned: int, private: bool = True, skill: float = 1.0) -> None:
    for at in rounds:
        line = {"round": at, "epsilon": 4.6 * math.sqrt(at / planned) if private else "infinity", "clip_norm": 15.0}
        if at % 5 == 0:
            learned = skill * (1 - math.exp(-3 * at / planned))
            line["evaluation"] = {
                "top1": 0.04 + 0.15 * learned, "top3": 0.09 + 0.22 * learned, "top5": 0.12 + 0.26 * learned,
                "perplexity": (120 + 4000 * math.exp(-8 * at / planned)) / skill,
            }  # fmt: skip
        Lines(folder / "record.jsonl").append(line)
        middle = 6 + 7 * math.exp(-at / 20) + 0.4 * math.sin(at)
        quantiles, users = [0.5 * middle, middle, 1.9 * middle], 200 + round(17 * math.sin(7 * at))
        exact = {"round": at, "users": users, "seconds": 1.2 + 0.1 * math.sin(at), "norm_quantiles": quantiles}
        Lines(folder / "diagnostics.jsonl", private=True).append(exact)
