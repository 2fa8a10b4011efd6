"""Real processes: a server, its SuperLink and proxy, and devices with theirs, some of them hostile, some killed.

One run goes through it all, since every process takes seconds to start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from real_processes import HOLDING, NO_HURRY, PATIENCE, World, kill_superlink

from fleets import tiny_recipe
from sottovoce.build.assembly import assemble
from sottovoce.data.store import Store
from sottovoce.local.keys import local_key
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.payments import Unpaid
from sottovoce.runs.record import Lines
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import release, sum_one_by_one
from sottovoce.training.types import Task
from sottovoce_evidence.recipe import Recipe

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A server whose keys the test knows. A recipe cannot ask for that: a private run over devices draws them from entropy.
# And one that leaves word when it has the rogue's answer: what it logs of a round waits for the checkpoint.
KNOWN_KEYS = """
from pathlib import Path
from sottovoce.federation.aggregation.plain import Aggregator
from sottovoce.runs.secrets import Secrets
known = Secrets.seeded(0)
noise_key, take = known.noise_key, Aggregator.take
Secrets.fresh = staticmethod(lambda: known)
Secrets.next = lambda self: self
Secrets.noise_key = lambda self, number: noise_key(number)

def taken(self, device, answer):
    code = take(self, device, answer)
    Path({folder!r}, device + "-" + code).touch()
    return code

Aggregator.take = taken
"""
# A device that sends what it should not: not a number, what no reader can read, an answer to another task, too long an
# update. At last it is an honest one, but of an old version.
ROGUE = """
import numpy as np
from dataclasses import replace
from types import SimpleNamespace
from safetensors.numpy import save
from sottovoce.federation import device as devices
from sottovoce.federation.messages import Contribution, digest

honest = devices.Device._contribute

def contribute(self, task, message):
    leaves = [np.full(leaf.shape, 2**30, np.int64) for leaf in task.leaves]
    sent = Contribution(digest(message), 1, 2**24, np.ones(1, np.int64), leaves)
    if task.round == 1:
        return replace(sent, leaves=[np.full(leaf.shape, np.nan, np.float32) for leaf in leaves])
    if task.round == 2:
        said = b'{"protocol": 1, "more": ' + b"[" * 20_000
        return SimpleNamespace(to_bytes=lambda: save({"facts": np.frombuffer(said, np.uint8)}))
    if task.round == 3:
        return replace(sent, task="0" * 32)
    if task.round == 4:
        return sent
    devices.VERSION = "0.0.1"
    return honest(self, task, message)

devices.Device._contribute = contribute
"""


def test_a_run_with_hostile_devices_through_every_fault(real_world, tmp_path):
    world: World = real_world
    recipe = tiny_recipe(tmp_path / "federation").replace(
        privacy={"users": 14, "cohort": 6}, run={"rounds": 6, "block": 0}
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    hold = HOLDING.format(folder=str(tmp_path))
    alice, clinic = world.device("alice", hold), world.device("clinic", hold)
    world.device("rogue", ROGUE)
    for number in (3, 4, 5):
        (tmp_path / f"hold-{number}").touch()
    run = tmp_path / "run"
    state = Path("/dev/shm") / f"sotto-{os.getpid()}"
    state.mkdir()
    try:
        _first_server(world, run, state, alice, hold)
    finally:
        shutil.rmtree(state)
    (tmp_path / "hold-5").unlink()

    # The server was killed in round 5, before it paid: it is resumed.
    resumed = world.server("resume", run, "--at-least", 3, *NO_HURRY)
    world.until("the end", lambda: resumed.poll() is not None)
    assert resumed.returncode == 0, world.logs()
    assert Ledger.open(run / "ledger.jsonl").rounds == 6
    answers = [line["answers"] for line in Lines(run / "diagnostics.jsonl").read()]
    assert answers[4:] == [{"version": 1, "joined": 2}] * 2
    weights = checkpoints.newest(run / "checkpoints")
    assert weights is not None
    assert all(np.isfinite(array).all() for array in weights.arrays.values())
    # No user was in a round twice, whatever was asked how often.
    for name in ("alice", "clinic"):
        seen = [(number, row) for number, rows in world.joined(name).items() for row in rows]
        assert len(seen) == len(set(seen))
    assert clinic.poll() is None
    assert not list((tmp_path / "federation").rglob("*.db"))
    # The app that Flower sent along was not even unpacked.
    assert not list((tmp_path / "devices").rglob("*sottovoce_app*"))


def _first_server(world: World, run: Path, state: Path, alice: subprocess.Popen, hold: str) -> None:
    folder = world.folder
    server = world.server(
        "server", folder / "recipe.toml", "--federation", folder / "federation", "--out", run, "--at-least", 3,
        "--state", state, *NO_HURRY, before=KNOWN_KEYS.format(folder=str(folder)),
    )  # fmt: skip
    held = lambda number, name: (folder / f"hold-{number}-{name}").exists  # noqa: E731
    # Until nobody is speaking to the SuperLink: a message that is on its way when that is killed is lost with it.
    world.until("round 3", held(3, "clinic"))
    world.until("round 3", held(3, "alice"))
    world.until("round 3", lambda: (folder / "rogue-twice").exists())
    assert "rogue contributes nothing: twice" not in world.said(server)
    answers = [line["answers"] for line in Lines(run / "diagnostics.jsonl").read()]
    assert answers == [{"malformed": 1, "joined": 2}] * 2
    _equal_to_simulated(world, run, 2)
    _only_the_fleet_is_reachable(folder)

    # The SuperLink is killed while a device works; its state is in memory of the machine, and the round goes on.
    kill_superlink(world, server)
    (folder / "hold-3").unlink()
    world.until("round 4", held(4, "alice"))

    # A device is killed while it works: Flower finds out, and the round goes on without it.
    alice.kill()
    (folder / "hold-4").unlink()
    world.until("the end of round 4", lambda: len(Lines(run / "diagnostics.jsonl").read()) == 4)
    world.device("alice", hold)  # and is let in again
    world.until("round 5", held(5, "clinic"))
    answers = [line["answers"] for line in Lines(run / "diagnostics.jsonl").read()]
    assert answers[2] == {"twice": 1, "joined": 2}
    assert answers[3] == {"away": 1, "joined": 2}  # the rogue's update, clipped, counts
    server.kill()
    server.wait()


def _equal_to_simulated(world: World, run: Path, last: int) -> None:
    """The model after some rounds is that of simulated rounds with the same cohorts, keys and text."""
    stores = [Store.open(world.folder / f"store-{name}") for name in ("alice", "clinic")]
    everybody = Store.from_users(
        [store[row] for store in stores for row in range(store.users)], stores[0].vocabulary, tokens_per_user=16
    )
    recipe = Recipe.load(run / "recipe.toml")
    assembly = assemble(recipe, everybody)
    payments = Unpaid(Secrets.seeded(0))
    state, drawn = assembly.start(assembly.model), 0
    for number in range(1, last + 1):
        payment = payments.begin(number)
        rows = [world.joined("alice").get(number, []), [1 + row for row in world.joined("clinic").get(number, [])]]
        cohort = np.array([row for some in rows for row in some], int)
        clip_norms = assembly.algorithm.mechanism.clip_norms(number, state.clip_norms)
        summed = sum_one_by_one(
            assembly.algorithm, Task(state.params, cohort, clip_norms, local_key(payment.keys.local)), everybody
        )
        state, _ = release(assembly.algorithm, state, summed, clip_norms, payment)
        drawn += len(cohort)
    assert drawn
    kept = checkpoints._read(run / "checkpoints" / f"round-{last:08d}.safetensors")
    assert kept is not None
    for index, leaf in enumerate(jax.tree.leaves(state.params)):
        np.testing.assert_allclose(kept.arrays[f"{index:04d}"], np.asarray(leaf), rtol=0, atol=2e-6)


def _only_the_fleet_is_reachable(folder: Path) -> None:
    """From outside nobody can start a run, and a device that is not on the roster is not let in."""
    import httpx
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.control import ControlHttpClient

    from sottovoce.federation import keys
    from sottovoce.federation.flower.subprocesses import QUIET, free_port
    from sottovoce.federation.roster import Roster

    roster = Roster.open(folder / "federation")
    address, authority = f"127.0.0.1:{roster.port}", folder / "federation" / "keys" / keys.AUTHORITY
    client = ControlHttpClient.from_server_address(address, False, authority.read_bytes(), [])
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        client.StartRun(StartRunRequest())
    client.close()
    stranger = folder / "stranger"
    stranger.mkdir()
    keys.write_node_key(stranger)
    refused = subprocess.run(
        [
            Path(sys.executable).parent / "flower-supernode", "--superlink", address, "--root-certificates", authority,
            "--isolation", "process", "--auth-supernode-private-key", stranger / keys.NODE_KEY, "--host", "127.0.0.1",
            "--port", str(free_port()),
        ],
        env={**os.environ, **QUIET, "FLWR_HOME": str(stranger)}, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "SuperNode ID" not in refused.stdout + refused.stderr
