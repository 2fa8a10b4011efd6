"""Servers and devices in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from small_world import call
from tiny_run import WORDS

from sottovoce.federation import keys
from sottovoce.federation.flower.subprocesses import free_port

SHARES = {"alice": 1, "clinic": 12, "rogue": 1}
PATIENCE = 600.0  # of these tests, on a machine that has much else to do; nothing depends on how long anything takes
NO_HURRY = ("--seconds", 100_000)  # a round ends when all have answered or are lost, or when a test says so

MAIN = "from sottovoce.cli.main import main\nmain(sys.argv[1:])\n"
# A device that stops before it answers a round, as long as a file says so.
HOLDING = """
from pathlib import Path
from sottovoce.federation import device as devices
from sottovoce.federation.messages import read_request
real = devices.Device.answer

def answer(self, message):
    hold = Path({folder!r}) / f"hold-{{read_request(message).round}}"
    hold.with_name(hold.name + "-" + self._enrolled.name).touch()
    while hold.exists():
        time.sleep(0.1)
    return real(self, message)

devices.Device.answer = answer
"""
# A server for which the time of a round is up when a file says so, and one device alone is waited for.
TIME_IS_UP = """
from pathlib import Path
from sottovoce.federation.flower import superlink_server
real = superlink_server.PendingTask.left.fget

def left(self):
    up = Path({folder!r}) / "up"
    if len(self.sent) == 1 and up.exists():
        up.unlink()
        self.until = 0.0
    return real(self)

superlink_server.PendingTask.left = property(left)
"""


class World:
    def __init__(self, folder: Path):
        self.folder = folder
        self.started: list[subprocess.Popen] = []

    def sotto(self, *arguments: object, before: str = "") -> subprocess.Popen:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        code = "import os, sys, time\n" + before + MAIN
        with open(self._log(len(self.started)), "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *map(str, arguments)], env=environment, stdout=log, stderr=log
            )  # fmt: skip
        self.started.append(process)
        return process

    def device(self, name: str, before: str = "") -> subprocess.Popen:
        bundle, store = self.folder / "devices" / name, self.folder / f"store-{name}"
        return self.sotto("federate", "device", bundle, "--data", store, before=before)

    def server(self, verb: str, *arguments: object, before: str = "") -> subprocess.Popen:
        return self.sotto("federate", verb, *arguments, "--json", before=before)

    def until(self, what: str, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.logs()}"
            time.sleep(0.1)

    def _log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    def said(self, process: subprocess.Popen) -> str:
        return self._log(self.started.index(process)).read_text()

    def logs(self) -> str:
        logs = [*self.folder.glob("log-*"), *self.folder.glob("federation/link/*.log")]
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in logs)

    def joined(self, name: str) -> dict[int, list[int]]:
        """The rows of a device that joined, by round: of one run."""
        path = self.folder / "devices" / name / "participation.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {line["round"]: line["rows"] for line in map(json.loads, lines) if "rows" in line}


@contextmanager
def world_of(folder: Path) -> Iterator[World]:
    """A federation with a store for each device; whatever was started is ended."""
    generator = np.random.default_rng(0)
    (folder / "words.txt").write_text("\n".join(WORDS))
    everybody = []
    for name, users in SHARES.items():
        rows = [{"user": f"{name}{n}", "text": " ".join(generator.choice(WORDS, 12))} for n in range(users)]
        everybody.append(rows)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ("--vocabulary", folder / "words.txt", "--tokens-per-user", 16, "--test-users", 0, "--json")
        assert call("prepare", folder / f"{name}.jsonl", "--out", folder / f"store-{name}", *words) == 0
    port = free_port()
    devices = [part for name, users in SHARES.items() for part in ("--device", f"{name}={users}")]
    arguments = ("--vocabulary", folder / "words.txt", "--tokens-per-user", 16, "--port", port, "--json")
    assert call("federate", "init", folder / "federation", *devices, *arguments) == 0
    shutil.copytree(folder / "federation" / "devices", folder / "devices")
    world = World(folder)
    try:
        yield world
    finally:
        for process in world.started:
            process.terminate()
        for process in world.started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def with_own_keys(world: World) -> None:
    """Every device makes its key, and has the list of all."""
    federation = world.folder / "federation"
    for name in SHARES:
        made = world.folder / "made" / name
        assert call("federate", "key", made) == 0
        assert call("federate", "rekey", federation, name, "--public-key", made / keys.NODE_PUBLIC) == 0
        shutil.copy(made / keys.NODE_KEY, world.folder / "devices" / name / keys.NODE_KEY)
    for name in SHARES:
        shutil.copy(federation / "members.json", world.folder / "devices" / name)


def kill_superlink(world: World, server: subprocess.Popen) -> None:
    """The grandchild of the server: `die_with_parent` comes between. Until the server has noticed."""
    for wrapper in children(server.pid):
        for child in children(wrapper):
            if "flower-superlink" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGKILL)
                world.until("another SuperLink", lambda: "the SuperLink is gone" in world.said(server))
                return
    raise AssertionError("there is no SuperLink")


def children(process: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has just ended
            continue
        if parent == process:
            found.append(int(folder.name))
    return found
