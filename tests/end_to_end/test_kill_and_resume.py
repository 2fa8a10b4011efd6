"""A run that the system kills or stops, by signals: it goes on to the bits of one that was never stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from small_world import results_of
from tiny_run import make_recipe, make_store

import sottovoce
from sottovoce.runs import checkpoint
from sottovoce_evidence.recipe import Recipe

# Takes the terminal it was given for its own, as a shell's command has.
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from sottovoce.cli.main import main
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped, beside its recipe."""
    folder = tmp_path_factory.mktemp("tiny")
    recipe = make_recipe(make_store(folder)).replace(run={"rounds": 8, "checkpoint_every": 2})
    (folder / "tiny.toml").write_text(recipe.to_toml())
    return sottovoce.train(recipe, folder / "unbroken").path


def test_entropy_and_seed_are_kept_apart(unbroken, tmp_path):
    out, recipe = tmp_path / "run", Recipe.load(unbroken.with_name("tiny.toml"))
    sottovoce.train(recipe.replace(privacy={"secrets": "entropy"}), out)
    assert results_of(out)["model/weights.safetensors"] != results_of(unbroken)["model/weights.safetensors"]
    statements = [json.loads((run / "privacy.json").read_text()) for run in (out, unbroken)]
    assert [statement["privacy"]["secrets"] for statement in statements] == ["entropy", "seeded"]
    assert oct((out / "secrets").stat().st_mode)[-3:] == "700"
    assert all(oct(path.stat().st_mode)[-3:] == "600" for path in (out / "secrets").iterdir())
    assert oct((out / "diagnostics.jsonl").stat().st_mode)[-3:] == "600"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_killed_from_outside_and_stopped_by_ctrl_c(unbroken, tmp_path):
    out = tmp_path / "run"
    arguments = ["train", str(unbroken.with_name("tiny.toml")), "--out", str(out), "--yes"]
    for rounds, number in ((2, signal.SIGKILL), (4, signal.SIGINT), (6, signal.SIGKILL)):
        process = subprocess.Popen(
            [sys.executable, "-m", "sottovoce.cli.main", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        while process.poll() is None and lines_of(out / "record.jsonl") < rounds:
            time.sleep(0.002)
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
        if number == signal.SIGINT:
            # Clean: the round is finished, the state saved, and the way on is told; or it was over already.
            ended = lines_of(out / "record.jsonl") == 8
            assert process.returncode == (0 if ended else 130), errors
            assert f"sotto resume {out}" in output.decode() or ended
        arguments = ["resume", str(out)]
    result = sottovoce.resume(out)
    assert 1 < result.statement.starts <= 4
    whole = json.loads((unbroken / "privacy.json").read_text())
    assert result.statement.to_json()["epsilon"] == whole["epsilon"]
    for name in ("model/weights.safetensors", "record.jsonl"):
        assert (out / name).read_bytes() == (unbroken / name).read_bytes()


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["terminal", "signal", "nohup"])
def test_a_run_whose_terminal_is_closed_finishes_its_round_and_saves(unbroken, tmp_path, request, ends):
    """It is sent SIGHUP, and nothing can be written to the terminal any more. Under nohup it goes on."""
    out = tmp_path / "run"
    mine, terminal = os.openpty()
    changes = ("run.rounds=30000", "run.checkpoint_every=3", "run.evaluate_every=0")
    arguments = [
        "train",
        str(unbroken.with_name("tiny.toml")),
        "--yes",
        "--out",
        str(out),
        *(part for change in changes for part in ("--set", change)),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, ends, *arguments],
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
    assert 2 < statement["rounds_done"] < 30000
    assert checkpoint.last_round(out / "checkpoints") == statement["rounds_done"]
