"""A federation of a few devices in this process that do not train: it is what they send, and keep, that counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fleets import FEDERATION, Seat, make_roster, seated_device
from masked_fleets import node_key
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation import device as devices
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.messages import Contribution
from sottovoce.federation.roster import Enrolment


class Federation:
    """Devices with keys and records of their own, and a server's folder. `shares`: the users of each device."""

    def __init__(self, folder: Path, store: Store, vocabulary: Vocabulary, shares: Mapping[str, int]):
        self.path, self.records = folder / "federation", folder / "devices"
        self.shares, self._store = dict(shares), store
        self._before: dict[str, devices.Device] = {}
        self._public = {name: node_key(number)[1] for number, name in enumerate(shares)}
        self.roster = make_roster(self.path, vocabulary, store.tokens_per_user, self.shares, self._public)

    def start_devices(self) -> dict[str, devices.Device]:
        """The devices, as they begin: all that they know of earlier rounds is in their records."""
        members = {name: KnownMember(users, self._public[name], BY_DEVICE) for name, users in self.shares.items()}
        started, first = {}, 0
        for number, (name, users) in enumerate(self.shares.items()):
            seat = Seat(membership=Membership(node_key(number)[0], members))
            started[name] = seated_device(self.records, self._store, Enrolment(FEDERATION, name, first, users), seat)
            if name in self._before:  # what it makes of a recipe is the same again, and takes long
                started[name]._assemblies = self._before[name]._assemblies
            first += users
        self._before = started
        return started

    def record_of(self, name: str) -> list[dict]:
        """The tasks that a device answered."""
        record = self.records / f"{name}.jsonl"
        lines = record.read_text().splitlines() if record.exists() else []
        return [line for line in map(json.loads, lines) if "rows" in line]


def train_nothing(patch: pytest.MonkeyPatch) -> None:
    """The sums of devices are ones from now on."""
    patch.setattr(devices.Device, "_check_seats", lambda self, assembly: None)
    patch.setattr(devices.Device, "_train", _sums_of_ones)


def _sums_of_ones(self, task, assembly, params, rows, name) -> Contribution:
    leaves = [np.ones(leaf.shape, np.int64) for leaf in task.leaves]
    return Contribution(name, len(rows), len(rows), np.zeros(1, np.int64), leaves)
