"""A small federation on one machine: a server and two silos, three processes, over TLS on the loopback."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from sottovoce.commands.demo import ProgressDisplay
from sottovoce.commands.federate import (
    FederationSettings,
    Notify,
    Serving,
    create_federation,
    require_flower,
    serve_federation,
)
from sottovoce.commands.live_line import live_line
from sottovoce.commands.report import report_run
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, prepare_demo
from sottovoce.commands.train import RunResult, Stop, never
from sottovoce.data.demo import demo_vocabulary
from sottovoce.errors import SottoError
from sottovoce.federation.flower.subprocesses import Child, free_port
from sottovoce.recipe import Recipe

ROUNDS = 10
SILOS = {"north": 1, "south": 2}  # and the seeds of their populations


def run_federation_demo(
    out: Path, *, users: int, notify: Notify = print, progress: ProgressDisplay = live_line, stop: Stop = never
) -> RunResult:
    """Prepare two silos of a synthetic population, create a federation, train a private model with it, report.

    Args:
        out: a new folder for all of it.
        users: of both silos together.
        notify: takes a line about each step.
        progress: shows the rounds of a run.
        stop: is asked after each round.
    """
    require_flower()
    if out.exists():
        raise SottoError(f"{str(out)!r} exists; delete it or name another with --out")
    out.mkdir(parents=True)
    summaries = {name: prepare_demo(out / "silos" / name, users // 2, seed=seed) for name, seed in SILOS.items()}
    prepare_demo(out / "held-out", 400, seed=3)
    shares = {name: summary.train_users for name, summary in summaries.items()}
    notify(f"prepare  {' and '.join(f'{name} with {count:,} users' for name, count in shares.items())}")
    settings = FederationSettings(demo_vocabulary(), DEMO_TOKENS_PER_USER, "127.0.0.1", free_port(), out / "held-out")
    roster = create_federation(out / "federation", list(shares.items()), settings)
    notify(f"create   a federation at 127.0.0.1:{settings.port}, with certificates and keys")
    recipe = Recipe.load("demo").replace(
        privacy={"users": users, "cohort": min(100, users / 4)}, run={"rounds": ROUNDS, "evaluate_every": 5}
    )
    sotto = [sys.executable, "-m", "sottovoce.cli.main", "federate", "device"]
    devices = [
        Child(name, [*sotto, roster.bundle(name), "--data", out / "silos" / name], roster.path) for name in SILOS
    ]

    def stopped() -> bool:
        for device in devices:
            device.check_running()  # the server would wait for it
        return stop()

    with ExitStack() as stack:
        for device in devices:
            device.start()
            stack.callback(device.stop)
        notify("start    a server and two devices")
        observer = stack.enter_context(progress("train"))
        serving = Serving(seconds=300, at_least=len(SILOS), notify=notify)
        result = serve_federation(recipe, roster.path, out / "run", serving, observer=observer, stop=stopped)
    report_run(result.path)
    return result
