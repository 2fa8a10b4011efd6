"""An aggregation over a transport: phases follow one another, and lost devices are left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np
import pytest

from fleets import InProcess, make_roster, some_of, tiny_recipe
from free import AllFree
from sottovoce.build.assembly import assemble
from sottovoce.federation import rounds
from sottovoce.federation.aggregation.phases import DeviceSum
from sottovoce.federation.messages import Code, Nothing
from sottovoce.federation.rounds import Coordinator, aggregate, for_devices
from sottovoce.federation.silence import Silence
from sottovoce.federation.transport import Exchange
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import LostProcess
from sottovoce_evidence.recipe import Recipe


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


@pytest.fixture(scope="module")
def assembly(store):
    return assemble(tiny_recipe("nowhere", run={"rounds": 9}), store)


@pytest.mark.parametrize("said", [None, Code.LIMITS, Code.VERSION, Code.FAILED], ids=str)
def test_a_server_that_no_device_answers_stops_and_pays_no_more(assembly, vocabulary, tmp_path, said):
    """Whether its devices are silent or refuse: a round of noise alone is charged like any other."""
    roster = make_roster(tmp_path / "federation", vocabulary, 50, {"phone": 1, "silo": 7})
    devices = {name: Says(said) for name in roster.registered}
    paid = Paid()
    rounds = Coordinator(roster, InProcess(devices), 1.0).rounds(assembly, "r", assembly.start(assembly.model), paid)
    assert [state.round for state, _ in islice(rounds, 3)] == [1, 2, 3]
    with pytest.raises(LostProcess, match=r"last 3 rounds \(.*: 2\)"):
        next(rounds)
    assert paid.rounds == [1, 2, 3]


def test_one_device_that_takes_part_is_enough_and_who_is_asked_for_nothing_is_not_silent():
    silence = Silence()
    for answers in ({"away": 3}, {"away": 2, "joined": 1}, {"limits": 3}, {"away": 3}):
        silence.check()
        silence.note(answers, wanted=True)
    for _ in range(5):
        silence.check()
        silence.note({}, wanted=False)
    silence.note({}, wanted=True)  # all who are connected were asked in vain a moment ago
    with pytest.raises(LostProcess, match="none was free to be asked"):
        silence.check()


class Says:
    """A device that says the same to everything, or nothing."""

    def __init__(self, code: Code | None):
        self.code = code

    def answer(self, message: bytes) -> bytes | None:
        return None if self.code is None else Nothing(self.code).to_bytes()


class Paid(AllFree):
    """Payments that are counted."""

    def __init__(self):
        super().__init__(lambda number: Secrets.seeded(3).keys(number))
        self.rounds: list[int] = []

    def begin(self, round_number: int):
        self.rounds.append(round_number)
        return super().begin(round_number)


def test_devices_get_the_recipe_without_the_servers_paths_and_seed():
    recipe = Recipe.from_dict({
        "data": {"store": "/server/store"}, "model": {"kind": "gru", "initial": "/server/model"},
        "local": {"public": "/server/public"}, "run": {"seed": 1234, "rounds": 7},
    })  # fmt: skip
    sent = for_devices(recipe)
    assert "/server" not in sent.to_toml()
    assert "1234" not in sent.to_toml()
    assert (sent.model.kind, sent.run.rounds) == ("gru", 7)


SHARES = {"silo": 4, "away": 1, **{f"phone-{number}": 1 for number in range(6)}}
SEPARATED = {"sampling": "min_separation", "min_separation": 2, "users": 11, "cohort": 4}
SEPARATED |= {"noise": "banded", "noise_coefficients": (1.0, 0.5)}


class Here(InProcess):
    """All devices but one are connected. They answer with these bytes, if any."""

    def __init__(self, answer: bytes | None = None):
        super().__init__(dict.fromkeys(name for name in SHARES if name != "away"))
        self.answer = answer

    def exchange(self, exchange: Exchange) -> Iterator[tuple[str, bytes]]:
        self.asked.append(set(exchange.messages))
        yield from ((name, self.answer) for name in exchange.messages if self.answer is not None)


@pytest.fixture
def play(store, vocabulary, tmp_path, monkeypatch):
    """A run of six rounds over a transport, under a name of its own, in which nobody trains."""
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, SHARES)
    people = some_of(store, 0, 11)
    monkeypatch.setattr("sottovoce.federation.silence.MOST_SILENT", 6)

    def rounds_over(transport: Here, name: str, federation: dict | None = None) -> list[set[str]]:
        sections = {
            "privacy": SEPARATED,
            "run": {"rounds": 6},
            "federation": federation or {},
        }
        assembly = assemble(tiny_recipe(tmp_path, **sections), people)
        payments = AllFree(lambda number: Secrets.seeded(3).keys(number))
        coordinator = Coordinator(roster, transport, 1.0)
        list(coordinator.rounds(assembly, name, assembly.start(assembly.model), payments))
        return transport.asked

    return rounds_over


def test_what_devices_answer_does_not_change_who_is_asked(play):
    """A phone that was asked counts as one that joined, whether or not its user has text: nobody takes its place."""
    asked = play(Here(), "spring")
    assert asked == play(Here(Nothing(Code.FAILED).to_bytes()), "summer") == play(Here(b"no message"), "autumn")
    assert all("silo" in each and "away" not in each for each in asked)
    for phone in SHARES:
        numbers = [number for number, each in enumerate(asked, 1) if phone in each]
        assert phone == "silo" or all(later - earlier >= 2 for earlier, later in pairwise(numbers))
    assert {len(each) - 1 for each in asked} <= {2, 3}  # 4 · 7 / 11 of the phones


def test_the_server_bounds_a_sum_by_all_registered_users_whoever_is_asked(play, monkeypatch):
    """A bound that one user moves would tell of them, where a device spoils the sum."""
    found, asked = [], rounds.Asked

    def noted(*args) -> rounds.Asked:
        found.append(asked(*args))
        return found[-1]

    monkeypatch.setattr(rounds, "Asked", noted)
    play(Here(), "spring", {"survivors": 2})
    assert {sum(each.registered.values()) for each in found} <= {6, 7}
    assert {each.users for each in found} == {11}
