"""Masked rounds over real processes whose devices add the noise: keys made on devices, five exchanges over TLS."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("flwr")

from real_processes import NO_HURRY, SHARES, World, with_own_keys
from small_world import call

from fleets import tiny_recipe
from sottovoce.runs.ledger import Ledger
from sottovoce.runs.record import Lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NOISED = {
    "survivors": 2,
    "noise": "devices",
    "server_noise_multiplier": 0.8,
    "participations": 2,
}


def test_devices_add_the_noise_and_the_server_opens_sums_that_have_it(real_world, tmp_path, capsys):
    world: World = real_world
    recipe = tiny_recipe(tmp_path / "federation").replace(
        privacy={"users": 14, "cohort": 13, "accountant": "pld"}, run={"rounds": 3, "block": 0}, federation=NOISED
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    serve = ("federate", "server", tmp_path / "recipe.toml", "--federation", tmp_path / "federation")
    # With the keys that `init` made nothing begins: the server could be all its devices.
    assert call(*serve, "--out", tmp_path / "refused") == 2
    assert "the server made the keys of 3 devices" in capsys.readouterr().err
    with_own_keys(world)
    for name in SHARES:
        world.device(name)
    run = tmp_path / "run"
    server = world.server("server", *serve[2:], "--out", run, "--at-least", 3, *NO_HURRY)
    world.until("the end of the server", lambda: server.poll() is not None)
    assert server.returncode == 0, world.logs()

    lines = Lines(run / "diagnostics.jsonl").read()
    ledger = Ledger.open(run / "ledger.jsonl")
    assert (ledger.rounds, ledger.asked) == (3, {1, 2, 3})
    # Nearly all coins fall for everybody; two rounds are what a user may join, and no count leaves a device.
    assert lines[0]["answers"].get("joined", 0) >= 2, world.logs()
    assert [(line["users"], line["weight"]) for line in lines] == [(0, 0.0)] * 3
    for name in SHARES:
        record = (tmp_path / "devices" / name / "participation.jsonl").read_text()
        written = [json.loads(line) for line in record.splitlines()]
        rows = [row for line in written for row in line.get("rows", ())]
        assert max((rows.count(row) for row in rows), default=0) <= 2
        left = [line["round"] for line in written if "masked" in line]
        assert len(left) == len(set(left)), "two vectors of a round left"
    said = json.loads((run / "privacy.json").read_text())
    assert math.inf > said["epsilon_server"] > said["epsilon"]
    assert said["mechanism"]["devices"]["participations"] == 2
    assert said["registered"].get("keys_made_by_server", 0) == 0
