"""A run that is killed at any moment ends, resumed, with the same bytes as one that was never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jax
import pytest
from small_world import results_of
from tiny_run import make_recipe, make_store

import sottovoce
from forks import LIBRARIES, Forks
from sottovoce.runs import checkpoint
from sottovoce_evidence.recipe import Recipe

RECIPE = """
[data]
store = "demo:40"
[model]
embedding = 4
hidden = 5
[local]
batch = 4
unroll = 10
learning_rate = 1.0
[server]
optimiser = "adam"
learning_rate = 0.05
[privacy]
users = 40
cohort = 9
clip_norm = 0.3
noise_multiplier = 1.1
delta = 1e-3
accountant = "rdp"
secrets = "seeded"
[run]
rounds = 8
seed = 5
evaluate_every = 3
evaluate_users = 4
checkpoint_every = 3
block = 6
"""

# Replaces one function by a version that kills its own process, as kill -9 does, at its nth call.
KILLER = """
import os, signal, sys
import sottovoce.runs.checkpoint as checkpoint, sottovoce_evidence.ledger as ledger, sottovoce.runs.folder as folder
import sottovoce.runs.record as record, sottovoce.runs.secrets as secrets
place, nth, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
owner, name = {
    "spend": (ledger.Ledger, "spend"), "record": (record.Lines, "append"), "secrets": (secrets.Secrets, "save"),
    "checkpoint": (checkpoint, "save"), "model": (folder.RunFolder, "save_model"),
    "forget": (secrets.Secrets, "forget"),
}[place]
original, calls = getattr(owner, name), 0
def deadly(*arguments, **named):
    global calls
    calls += 1
    if calls == nth and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*arguments, **named)
    if calls == nth and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(owner, name, staticmethod(deadly) if place == "forget" else deadly)
"""
KILLED_COMMAND = KILLER + "from sottovoce.cli.main import main; main(sys.argv[4:])"
KILLED_TRAINING = KILLER + "import sottovoce; sottovoce.train(*sys.argv[4:])"

# Takes the terminal it was given for its own, as a shell's command has.
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from sottovoce.cli.main import main
main(sys.argv[2:])
"""

COMMAND = "import sys; from sottovoce.cli.main import main; main(sys.argv[1:])"

# Where to die, in turn, resuming in between: n counts calls of that process alone.
DEATHS = [
    ("spend", 2, "after"),  # paid for, nothing noised yet
    ("record", 3, "after"),  # the record has a round that the diagnostics do not
    ("checkpoint", 1, "before"),  # the keys are saved, the checkpoint is not
    ("checkpoint", 1, "after"),  # the checkpoint is saved, the old keys are not forgotten
    ("spend", 1, "before"),  # not paid for
    ("secrets", 1, "after"),
    ("forget", 1, "after"),
    ("model", 1, "before"),  # all rounds done, the model not written
]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}


@pytest.fixture(scope="module")
def forks(environment) -> Iterator[Forks]:
    with Forks(
        f"{LIBRARIES} sottovoce.cli.main sottovoce.commands.train sottovoce.commands.evaluate", environment
    ) as forks:
        yield forks


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def unbroken(recipe, forks, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    done = forks.run(COMMAND, "train", str(recipe), "--out", str(out))
    assert done.returncode == 0, done.stdout
    return out


def bytes_of(run: Path) -> dict[str, bytes]:
    names = ["model/weights.safetensors", "record.jsonl", "ledger.jsonl", "privacy.json", "recipe.toml"]
    return {name: (run / name).read_bytes() for name in names}


def assert_same(run: Path, unbroken: Path) -> None:
    for name, contents in bytes_of(run).items():
        assert contents == bytes_of(unbroken)[name], f"{name} differs from the run that was never stopped"
    assert len((run / "record.jsonl").read_text().splitlines()) == 8
    assert len((run / "ledger.jsonl").read_text().splitlines()) == 9  # a header and a charge a round


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """The folder of a recipe, and of a run of it in this process that was never stopped."""
    folder = tmp_path_factory.mktemp("tiny")
    recipe = make_recipe(make_store(folder))
    (folder / "tiny.toml").write_text(recipe.to_toml())
    sottovoce.train(recipe, folder / "unbroken")
    return folder


@pytest.mark.slow
def test_killed_after_a_checkpoint_and_a_charge(tiny, tmp_path):
    """The checkpoint is at round 4. Round 6 is paid for and not done: it is done once more, and not paid for again."""
    out = tmp_path / "run"
    command = [sys.executable, "-c", KILLED_TRAINING, "spend", "6", "after", str(tiny / "tiny.toml"), str(out)]
    # As many devices as in this process, where a command that was tested may have set the variable too late: the
    # number is part of the fingerprint, and this process resumes the run.
    devices = {"JAX_NUM_CPU_DEVICES": str(jax.config.values["jax_num_cpu_devices"])}
    dead = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **devices})
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    assert lines_of(out / "ledger.jsonl") == 7
    assert sottovoce.resume(out).statement.charged_again == 0
    assert lines_of(out / "ledger.jsonl") == 7
    assert results_of(out) == results_of(tiny / "unbroken")


def test_a_finished_run_resumed_stays_as_it_is(tiny):
    before = results_of(tiny / "unbroken")
    sottovoce.resume(tiny / "unbroken")
    assert results_of(tiny / "unbroken") == before


def test_entropy_and_seed_are_kept_apart(tiny, tmp_path):
    out = tmp_path / "run"
    sottovoce.train(Recipe.load(tiny / "tiny.toml").replace(privacy={"secrets": "entropy"}), out)
    assert bytes_of(out)["model/weights.safetensors"] != bytes_of(tiny / "unbroken")["model/weights.safetensors"]
    statement = json.loads((out / "privacy.json").read_text())
    assert statement["privacy"]["secrets"] == "entropy"
    assert json.loads((tiny / "unbroken/privacy.json").read_text())["privacy"]["secrets"] == "seeded"
    assert oct((out / "secrets").stat().st_mode)[-3:] == "700"
    assert all(oct(path.stat().st_mode)[-3:] == "600" for path in (out / "secrets").iterdir())
    assert oct((out / "diagnostics.jsonl").stat().st_mode)[-3:] == "600"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_killed_at_every_delicate_moment(recipe, forks, unbroken, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", str(recipe), "--out", str(out)]
    for place, nth, when in DEATHS:
        dead = forks.run(KILLED_COMMAND, place, str(nth), when, *arguments)
        assert dead.returncode == -signal.SIGKILL, f"did not die at {when} {place}: {dead.stdout}"
        arguments = ["resume", str(out)]
    done = forks.run(COMMAND, *arguments)
    assert done.returncode == 0, done.stdout
    assert_same(out, unbroken)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_killed_from_outside_and_stopped_by_ctrl_c(recipe, environment, forks, unbroken, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", str(recipe), "--out", str(out)]
    for rounds, number in ((2, signal.SIGKILL), (4, signal.SIGINT), (6, signal.SIGKILL)):
        process = subprocess.Popen(
            [sys.executable, "-m", "sottovoce.cli.main", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while process.poll() is None and lines_of(out / "record.jsonl") < rounds:
            time.sleep(0.002)
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
        if number == signal.SIGINT:
            # Clean: the round is finished, the state saved, and the way on is told; or it was over already.
            ended = lines_of(out / "record.jsonl") == 8
            assert process.returncode == (0 if ended else 130), errors
            assert f"sotto resume {out}" in output or ended
        arguments = ["resume", str(out)]
    done = forks.run(COMMAND, *arguments)
    assert done.returncode == 0, done.stdout
    assert_same(out, unbroken)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["terminal", "signal", "nohup"])
def test_a_run_whose_terminal_is_closed_finishes_its_round_and_saves(recipe, environment, tmp_path, request, ends):
    """It is sent SIGHUP, and nothing can be written to the terminal any more. Under nohup it goes on."""
    out = tmp_path / "run"
    mine, terminal = os.openpty()
    changes = ("run.rounds=30000", "run.checkpoint_every=30000", "run.evaluate_every=0")
    arguments = [
        "train",
        str(recipe),
        "--yes",
        "--out",
        str(out),
        *(part for change in changes for part in ("--set", change)),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, ends, *arguments], env=environment,
        stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    request.addfinalizer(process.wait)
    request.addfinalizer(process.kill)  # it would train for an hour
    os.close(terminal)
    os.set_blocking(mine, False)
    deadline = time.monotonic() + 120
    while lines_of(out / "diagnostics.jsonl") < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
        with suppress(BlockingIOError):
            os.read(mine, 2**16)
    assert lines_of(out / "diagnostics.jsonl") >= 3
    if ends == "signal":
        for _ in range(2):  # a shell sends it to its jobs, and the system to the whole terminal
            process.send_signal(signal.SIGHUP)
    else:
        os.close(mine)
    if ends == "nohup":
        before = lines_of(out / "diagnostics.jsonl")
        while lines_of(out / "diagnostics.jsonl") < before + 3 and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.05)
        return
    assert process.wait(timeout=120) == 129
    statement = json.loads((out / "privacy.json").read_text())
    saved, damaged = checkpoint.latest(out / "checkpoints")
    assert saved is not None
    assert saved.round == statement["rounds_done"] == statement["charges"]
    assert 2 < saved.round < 30000
    assert not damaged
