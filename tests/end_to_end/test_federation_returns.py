"""Real processes that are slow or lose their link, and come back: a round is paid once and counts what came in time."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from real_processes import NO_HURRY, TIME_IS_UP, World, kill_superlink

from fleets import tiny_recipe
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.record import Lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A device that does not answer as long as a file is there; it leaves word of the round that waits for it.
SLOW = """
from pathlib import Path
from sottovoce.federation import device as devices
from sottovoce.federation.messages import read_request
real = devices.Device.answer

def answer(self, message):
    slow = Path({folder!r}) / "slow"
    while slow.exists():
        slow.with_name(f"slow-{{read_request(message).round}}").touch()
        time.sleep(0.1)
    return real(self, message)

devices.Device.answer = answer
"""
BOTH = {"away": 1, "joined": 2}  # the third device of the roster is never there


def test_a_slow_device_and_a_superlink_without_a_memory_are_waited_for_and_come_back(real_world, tmp_path):
    world: World = real_world
    recipe = tiny_recipe(tmp_path / "federation").replace(
        privacy={"users": 14, "cohort": 6}, run={"rounds": 1000, "block": 0}
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    run = tmp_path / "run"
    world.device("alice")
    world.device("clinic", SLOW.format(folder=str(tmp_path)))
    server = world.server(
        "server", tmp_path / "recipe.toml", "--federation", tmp_path / "federation", "--out", run, "--at-least", 2,
        *NO_HURRY, before=TIME_IS_UP.format(folder=str(tmp_path)),
    )  # fmt: skip
    late = _be_late(world, run)
    lost = _lose_the_superlink(world, run, server)
    server.send_signal(signal.SIGTERM)  # once: after this round
    world.until("the end of the server", lambda: server.poll() is not None)
    assert server.returncode == 143, world.logs()

    # Every round was paid for once, and holds those who were drawn and came in time, each once.
    lines = _lines(run)
    assert Ledger.open(run / "ledger.jsonl").rounds == len(lines)
    joined = {who: world.joined(who) for who in ("alice", "clinic")}
    for number, line in enumerate(lines, 1):
        if line["answers"] == BOTH:
            assert line["users"] == sum(len(rows[number]) for rows in joined.values())
    assert lines[late - 1]["answers"] == {"away": 2, "joined": 1}
    assert lines[late - 1]["users"] == len(joined["alice"][late])
    assert late in joined["clinic"]  # it answered all the same, and in vain
    assert lines[lost - 1]["answers"] == BOTH
    assert not list((tmp_path / "federation").rglob("*.db"))


def _be_late(world: World, run: Path) -> int:
    """Time is up while the clinic works, and it takes part in the next round again; the round that it missed."""
    world.until("a round", lambda: _lines(run))
    late = _held(world)
    (world.folder / "up").touch()
    world.until("the end of the round", lambda: len(_lines(run)) >= late)
    (world.folder / "slow").unlink()
    world.until("another round", lambda: len(_lines(run)) > late)
    return late


def _lose_the_superlink(world: World, run: Path, server: subprocess.Popen) -> int:
    """Killed while the clinic works, with all that it held; the round that was on."""
    lost = _held(world)
    kill_superlink(world, server)
    (world.folder / "slow").unlink()
    world.until("the end of the round", lambda: len(_lines(run)) >= lost)
    return lost


def _held(world: World) -> int:
    """Hold the clinic up; the round that waits for it."""
    marks = lambda: {int(path.name.partition("-")[2]) for path in world.folder.glob("slow-*")}  # noqa: E731
    before = marks()
    (world.folder / "slow").touch()
    world.until("a round that waits", lambda: marks() - before)
    return max(marks() - before)


def _lines(run: Path) -> list[dict]:
    return Lines(run / "diagnostics.jsonl").read()
