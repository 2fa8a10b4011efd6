"""Runs of two real processes against runs of one: the same end, and an end when one of them is killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_run import make_recipe, make_store

import sottovoce
from sottovoce.runs.checkpoint import last_round
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.recipe import Recipe

pytestmark = pytest.mark.slow

MAIN = "from sottovoce.cli.main import main\nmain(sys.argv[1:])\n"
# What a process opens to write, makes, renames or removes, and every file with a secret or a charge in it.
WATCHED = """
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # tests have one, and jax writes there

def watch(event, arguments):
    path = str(arguments[0]) if arguments else ""
    written = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and path != os.devnull
    changed = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
    secret = event == "open" and any(part in path for part in ("/secrets/", "ledger.jsonl", "/checkpoints/"))
    if written or changed or secret:
        os.write(2, f"TOUCHED {event} {path}\\n".encode())

sys.addaudithook(watch)
"""
# The process is killed in its sixth round: round 5 was paid for after the checkpoint of round 4.
KILLED = """
from sottovoce.multiprocess import cohort_sum
real, calls = cohort_sum._sum_together, []

def summed(*arguments):
    calls.append(1)
    if len(calls) == 6:
        os.kill(os.getpid(), 9)
    return real(*arguments)

cohort_sum._sum_together = summed
"""


def start(number: int, address: str, arguments: list[str], before: str = "", devices: int = 1) -> subprocess.Popen:
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["SOTTO_SECRET"] = "known to both processes"
    environment.pop("JAX_NUM_CPU_DEVICES", None)  # of a command that another test ran in this process
    command = [sys.executable, "-c", "import os, sys\n" + before + MAIN, *arguments, "--coordinator", address]
    command += ["--processes", "2", "--process-id", str(number), "--wait", "100"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def together(first: list[str], second: list[str], befores=("", ""), devices: int = 1):
    """Run both processes to their ends: status, standard output and standard error of each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pair = [start(number, address, [first, second][number], befores[number], devices) for number in (1, 0)][::-1]
    try:
        ends = [process.communicate(timeout=200) for process in pair]
    finally:
        for process in pair:
            process.kill()
    return [(process.returncode, *end) for process, end in zip(pair, ends, strict=True)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A store with a copy, its recipe, and the run of one process."""
    folder = tmp_path_factory.mktemp("world")
    recipe = make_recipe(make_store(folder))
    (folder / "mine.toml").write_text(recipe.to_toml())
    shutil.copytree(folder / "store", folder / "copy")
    sottovoce.train(recipe, folder / "one")
    return folder


def train_arguments(world: Path, out: str, *more: str) -> list[str]:
    return ["train", str(world / "mine.toml"), "--out", str(world / out), "--json", *more]


def weights(run: Path) -> np.ndarray:
    return np.concatenate([np.ravel(part) for _, part in sorted(load_file(run / "model/weights.safetensors").items())])


def test_two_processes_train_what_one_does_and_the_second_touches_nothing(world):
    copy = f"data.store={world / 'copy'}"
    first, second = together(
        train_arguments(world, "two"), train_arguments(world, "unused", "--set", copy), befores=("", WATCHED)
    )
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert first[1].count("\n") == 1  # one JSON object: nothing else speaks on standard output
    assert "TOUCHED" not in second[2]
    assert not (world / "unused").exists()
    assert not (world / "copy" / "ledger.jsonl").exists()
    # The same cohorts, noise and updates: the very same weights.
    assert (weights(world / "one") == weights(world / "two")).all()
    one, two = (RunFolder(world / name).diagnostics.read() for name in ("one", "two"))
    for line in (*one, *two):
        line.pop("seconds")
    assert one == two


def test_adapters_on_two_processes_are_those_of_one(world):
    """The weights that a run starts from are read by process 0 alone."""
    plain = {"mode": "none", "noise_multiplier": None}
    recipe = Recipe.load(world / "mine.toml").replace(
        model={"adapter_rank": 2, "initial": str(world / "one")}, privacy=plain, run={"rounds": 2}
    )
    (world / "adapted.toml").write_text(recipe.to_toml())
    sottovoce.train(recipe, world / "alone, adapted")
    arguments = ["train", str(world / "adapted.toml"), "--out", str(world / "adapted"), "--json"]
    ends = together(arguments, arguments)
    assert [end[0] for end in ends] == [0, 0], ends
    found = weights(world / "adapted")
    assert (found == weights(world / "alone, adapted")).all()
    assert found.size > weights(world / "one").size


def test_after_a_killed_process_the_run_ends_and_goes_on_with_two_or_with_one(world):
    """With two devices each, whose sums are joined too."""
    out = world / "killed"
    first, second = together(
        train_arguments(world, "killed"), train_arguments(world, "killed"), befores=("", KILLED), devices=2
    )
    assert second[0] == -signal.SIGKILL
    assert first[0] == 1
    assert "error: process 1 is gone" in first[2]
    assert "Traceback" not in first[2]
    assert not list(out.rglob("*.partial"))
    # Round 5 was done when the process was lost. Whom a round draws may lose it, so that moves no checkpoint.
    assert last_round(out / "checkpoints") == Ledger.open(out / "ledger.jsonl").rounds == 4
    shutil.copytree(out, world / "alone")

    ends = together(["resume", str(out), "--json"], ["resume", str(out), "--json"], devices=2)
    assert [end[0] for end in ends] == [0, 0], ends
    assert [end[1].count("\n") for end in ends] == [1, 1]  # one JSON object each: devices that meet say nothing
    assert Ledger.open(out / "ledger.jsonl").rounds == 6
    np.testing.assert_allclose(weights(out), weights(world / "one"), atol=1e-5)
    with pytest.raises(DamagedRun, match="fell behind"):  # of two copies one goes on
        sottovoce.resume(world / "alone")


def test_when_process_0_is_killed_the_others_end(world):
    out = ["train", str(world / "mine.toml"), "--out", str(world / "orphan")]
    first, second = together(out, out, befores=(KILLED, ""))
    assert first[0] == -signal.SIGKILL
    assert second[0] == 1
    assert "error: process 0 is gone" in second[2]
    assert "Traceback" not in second[2]


def test_another_store_is_refused_before_anybody_is_charged(world, tmp_path):
    other = make_store(tmp_path, seed=1)
    charged = StoreLedger(world / "store" / "ledger.jsonl").spent()
    first, second = together(
        train_arguments(world, "refused"), train_arguments(world, "refused", "--set", f"data.store={other}")
    )
    for status, _, said in (first, second):
        assert status == 2
        assert "error: process 1 has another store than process 0" in said
    assert not (world / "refused").exists()
    assert not list(world.glob(".refused*"))
    assert StoreLedger(world / "store" / "ledger.jsonl").spent() == charged
