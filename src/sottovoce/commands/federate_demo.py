"""A federation in small, on one machine: a server and two silos, each a process, over TLS on the loopback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from sottovoce.commands.demo import ProgressDisplay
from sottovoce.commands.federate import Serving, found_federation, serve
from sottovoce.commands.report import report_run
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, prepare_demo
from sottovoce.commands.train import RunResult
from sottovoce.data.demo import demo_vocabulary
from sottovoce.errors import SottoError
from sottovoce.federation.flower.subprocesses import Child, free_port
from sottovoce.federation.keys import needs_flower
from sottovoce.recipe import Recipe

ROUNDS = 10
SILOS = {"north": 1, "south": 2}  # and the seed of their people


def run_federation_demo(
    out: Path, *, users: int, say: Callable[[str], None], progress: ProgressDisplay,
    stop: Callable[[], bool] = lambda: False,
) -> RunResult:  # fmt: skip
    """Prepare two silos of a synthetic population, found a federation, train a private model with it, report."""
    needs_flower()
    if out.exists():
        raise SottoError(f"{str(out)!r} exists; delete it or name another with --out")
    out.mkdir(parents=True)
    summaries = {name: prepare_demo(out / "silos" / name, users // 2, seed=seed) for name, seed in SILOS.items()}
    prepare_demo(out / "held-out", 400, seed=3)
    held = {name: summary.train_users for name, summary in summaries.items()}
    say(f"prepare  {' and '.join(f'{name} with {count:,} users' for name, count in held.items())}")
    roster = found_federation(
        out / "federation", list(held.items()), vocabulary=demo_vocabulary(), tokens_per_user=DEMO_TOKENS_PER_USER,
        host="127.0.0.1", port=free_port(), held_out=out / "held-out",
    )  # fmt: skip
    say(f"found    a federation at 127.0.0.1:{roster.port}, with certificates and keys")
    recipe = Recipe.load("demo").replace(
        privacy={"users": users, "cohort": min(100, users / 4)}, run={"rounds": ROUNDS, "evaluate_every": 5}
    )
    sotto = [sys.executable, "-m", "sottovoce.cli.main", "federate", "device"]
    devices = [
        Child(name, [*sotto, roster.bundle(name), "--data", out / "silos" / name], roster.path) for name in SILOS
    ]

    def stopped() -> bool:
        for device in devices:
            device.check_running()  # it would be waited for
        return stop()

    with ExitStack() as stack:
        for device in devices:
            device.start()
            stack.callback(device.stop)
        say("start    a server and two devices")
        observer = stack.enter_context(progress("train"))
        result = serve(
            recipe, roster.path, out / "run", Serving(seconds=300, at_least=len(SILOS)), observer=observer, say=say,
            stop=stopped,
        )  # fmt: skip
    report_run(result.path)
    return result
