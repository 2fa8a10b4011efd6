"""An aggregation over a transport: phases follow one another, and lost devices are left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fleets import InProcess, make_roster, some_of, tiny_recipe
from free import AllFree
from sottovoce.build.assembly import assemble
from sottovoce.federation import rounds
from sottovoce.federation.aggregation.phases import DeviceSum
from sottovoce.federation.rounds import Coordinator, aggregate, for_devices
from sottovoce.federation.transport import Exchange
from sottovoce.recipe import Recipe
from sottovoce.runs.secrets import Secrets


class Echo:
    """A transport over which devices answer their own message; those in `lost` answer one exchange and are gone."""

    def __init__(self, *lost: str):
        self.lost, self.exchanges = lost, []

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        self.exchanges.append(exchange)
        for name, message in exchange.messages.items():
            if name not in self.lost or len(self.exchanges) == 1:
                yield name, message


class Phase:
    max_answer_bytes = 7

    def __init__(self, messages: dict[str, bytes]):
        self.messages, self.answers = messages, {}

    def take(self, device: str, answer: bytes) -> str:
        self.answers[device] = answer
        return "limits" if device == "rogue" else "joined"


class TwoPhases:
    """Each device is asked first for a number, then for the sum of all numbers that came."""

    def phases(self) -> Iterator[Phase]:
        first = Phase({"alice": b"1", "clinic": b"2", "rogue": b"4"})
        yield first
        numbers = sum(map(int, first.answers.values()))
        self.last = Phase({name: b"%d" % numbers for name in first.answers if name != "rogue"})
        yield self.last

    def total(self) -> DeviceSum:
        return DeviceSum(sum(map(int, self.last.answers.values())), np.float64(0), [], 0, {})


def test_what_a_phase_asks_may_depend_on_the_answers_to_the_one_before(caplog):
    transport = Echo()
    assert aggregate(TwoPhases(), transport, "round 3", 5.0).total == 14
    first, second = transport.exchanges
    assert (first.name, first.seconds, first.max_answer_bytes) == ("round 3", 5.0, 7)
    assert second.messages == {"alice": b"7", "clinic": b"7"}
    assert (first.begins, second.begins) == (True, False)
    assert [record.getMessage() for record in caplog.records] == ["rogue contributes nothing: limits"]


def test_where_nobody_is_asked_nothing_is_waited_for():
    class Nobody(TwoPhases):
        def phases(self) -> Iterator[Phase]:
            self.last = Phase({})
            yield self.last

    transport = Echo()
    assert aggregate(Nobody(), transport, "round 3", 5.0).total == 0
    assert not transport.exchanges


def test_a_device_that_is_lost_between_phases_is_left_out():
    assert aggregate(TwoPhases(), Echo("clinic"), "round 3", 5.0).total == 7


def test_devices_get_the_recipe_without_the_servers_paths_and_seed():
    recipe = Recipe.from_dict({
        "data": {"store": "/server/store"}, "model": {"kind": "gru", "initial": "/server/model"},
        "local": {"public": "/server/public"}, "run": {"seed": 1234, "rounds": 7},
    })  # fmt: skip
    sent = for_devices(recipe)
    assert "/server" not in sent.to_toml()
    assert "1234" not in sent.to_toml()
    assert (sent.model.kind, sent.run.rounds) == ("gru", 7)


def test_the_server_bounds_a_sum_by_all_registered_users_whoever_is_asked(store, vocabulary, tmp_path, monkeypatch):
    """A bound that one user moves would tell of them, where a device spoils the sum."""
    shares = {"alice": 1, "bob": 1, "silo": 4}
    separated = {"sampling": "min_separation", "min_separation": 2, "users": 6, "cohort": 3, "noise": "tree"}
    masked = {"aggregation": "masked", "survivors": 2}
    assembly = assemble(tiny_recipe(tmp_path, privacy=separated, federation=masked), some_of(store, 0, 6))
    found, asked = [], rounds.Asked

    def noted(*args) -> rounds.Asked:
        found.append(asked(*args))
        return found[-1]

    class Silent(InProcess):
        def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
            yield from ()

    monkeypatch.setattr(rounds, "Asked", noted)
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, shares)
    coordinator = Coordinator(roster, Silent(dict.fromkeys(shares)), 1.0)
    payments = AllFree(lambda number: Secrets.seeded(3).keys(number, "a"))
    list(coordinator.rounds(assembly, "spring", assembly.start(assembly.model), payments))
    assert {sum(each.registered.values()) for each in found} == {5}
    assert {each.users for each in found} == {6}
