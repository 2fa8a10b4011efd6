"""Masked rounds over real processes and TLS: a device that dies between two phases, and a proxy that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from real_processes import SHARES, World, children, with_own_keys

from fleets import tiny_recipe
from sottovoce.runs.record import Lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A device that dies when it is to send its vector, if a file says so: the others masked with it.
DYING = """
from pathlib import Path
from sottovoce.federation import device as devices
from sottovoce.federation.masking.messages import Forwarded
real = devices.Device._go_on

def go_on(self, request):
    if isinstance(request, Forwarded) and (Path({folder!r}) / "die").exists():
        os._exit(3)
    return real(self, request)

devices.Device._go_on = go_on
"""


def test_masked_rounds_go_on_when_a_device_dies_between_two_phases_and_the_proxy_is_killed(real_world, tmp_path):
    world: World = real_world
    recipe = tiny_recipe(tmp_path / "federation").replace(
        privacy={"users": 14, "cohort": 14}, run={"rounds": 1000, "block": 0},
        federation={"survivors": 2},
    )  # fmt: skip
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    run = tmp_path / "run"
    with_own_keys(world)
    devices = {
        name: world.device(name, DYING.format(folder=str(tmp_path)) if name == "rogue" else "") for name in SHARES
    }
    server = world.server(
        "server", tmp_path / "recipe.toml", "--federation", tmp_path / "federation", "--out", run, "--at-least", 2
    )

    def answers() -> list[dict[str, int]]:
        path = run / "diagnostics.jsonl"
        return [line["answers"] for line in Lines(path).read() if "answers" in line] if path.exists() else []

    world.until("rounds of all three", lambda: {"joined": 3} in answers())
    _kill_proxy(server.pid)
    world.until("another proxy", lambda: "the proxy is gone" in world.said(server))
    before = len(answers())
    world.until("rounds of all three again", lambda: {"joined": 3} in answers()[before + 1 :])
    (tmp_path / "die").touch()
    world.until("the end of a device", lambda: devices["rogue"].poll() is not None)
    world.until("a round without it", lambda: {"joined": 2, "away": 1} in answers())
    server.send_signal(signal.SIGTERM)
    world.until("the end of the server", lambda: server.poll() is not None)
    assert server.returncode == 143, world.logs()


def _kill_proxy(server: int) -> None:
    for wrapper in children(server):
        for child in children(wrapper):
            if "flower.proxy" in Path(f"/proc/{child}/cmdline").read_text():
                return os.kill(child, signal.SIGKILL)
    raise AssertionError("there is no proxy")
