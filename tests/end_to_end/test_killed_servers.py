"""A server of devices is killed in a round, and goes on: a vector counts in one opened sum, and ε is that of the plan.

Killed is an exception that nothing catches: what was in memory is gone, and what is on disk stays.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict

import pytest
from untrained_devices import Federation, train_nothing

import sottovoce
from fleets import InProcess, tiny_recipe
from masked_fleets import PHASES
from sottovoce.federation import rounds
from sottovoce.federation.aggregation.masked import MaskedAggregator
from sottovoce.federation.messages import unpack
from sottovoce.federation.rounds import Coordinator
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce.runs.record import Lines

SHARES = {"phone": 1, "tablet": 1, "clinic": 3, "silo": 7}
NOISED = {
    "survivors": 2,
    "noise": "devices",
    "server_noise_multiplier": 0.8,
    "participations": 2,
}
TWO = "round 2"
OPENED = "opened"  # killed after the sum is opened, before its checkpoint has its name on disk


class Killed(BaseException):
    """Nothing catches it."""


class Fleet(InProcess):
    """Devices in this process, and what they and the server of a run do."""

    def __init__(self, federation):
        super().__init__(federation.devices)
        self.federation = federation
        self.exchanges: list[str] = []  # the rounds
        self.kill = ""  # the phase of round 2 after which the server is killed
        self.messages: list[tuple[str, bytes]] = []  # the round and message of an exchange

    def exchange(self, exchange):
        # What goes to a device of a round follows from the model after the rounds before: they are committed.
        assert exchange.name == f"round {len(self.federation.commits)}"
        self.exchanges.append(exchange.name)
        self.messages += [(exchange.name, each) for each in set(exchange.messages.values())]
        phase = PHASES[self.exchanges.count(exchange.name) - 1]
        for name, answer in super().exchange(exchange):
            if phase == "mask" and b'"vector"' in answer:
                self.federation.left[exchange.name, name].add(answer)
            yield name, answer
        if (exchange.name, phase) == (TWO, self.kill):
            raise Killed


class Killable(Federation):
    """A federation with one run, whose server is killed."""

    def __init__(self, folder, store, vocabulary):
        super().__init__(folder, store, vocabulary, SHARES)
        self.run, self.devices = folder / "run", self.start_devices()
        self.left: dict[tuple[str, str], set[bytes]] = defaultdict(set)  # masked vectors, by round and device

    @property
    def commits(self) -> list:
        return StoreLedger(self.path / "ledger.jsonl").commits("spring")

    def coordinator(self, fleet: Fleet) -> Coordinator:
        return Coordinator(self.roster, fleet, 1.0)


@pytest.fixture
def federation(tmp_path, store, vocabulary, monkeypatch) -> Killable:
    monkeypatch.setattr("sottovoce.commands.new_run.new_name", lambda: "spring")
    train_nothing(monkeypatch)
    return Killable(tmp_path, store, vocabulary)


@pytest.fixture
def opened(monkeypatch) -> list[tuple[str, tuple[str, ...]]]:
    """The sums that servers opened: of which round and which devices."""
    found, real = [], MaskedAggregator.rest

    def rest(self):
        yield from real(self)
        if self._sum is not None:
            facts, _, _ = unpack(next(iter(self.first.messages.values())), 2**20)
            found.append((f"round {facts['round']}", self._in_sum))

    monkeypatch.setattr(MaskedAggregator, "rest", rest)
    return found


@pytest.fixture
def noised(monkeypatch) -> dict[int, bool]:
    """The rounds whose noise the server drew alone."""
    found, real = {}, rounds.release

    def release(algorithm, state, *others):
        found[state.round + 1] = algorithm.mechanism.modulus is None
        return real(algorithm, state, *others)

    monkeypatch.setattr(rounds, "release", release)
    return found


def private_facts(run) -> tuple:
    said = json.loads((run / "privacy.json").read_text())
    return said["epsilon"], said["epsilon_server"], said["rounds_planned"], said["rounds_done"]


def masked_recipe(federation):
    return tiny_recipe(
        federation.path, privacy={"users": 12, "cohort": 11, "accountant": "pld"}, federation=NOISED, run={"rounds": 3}
    )


@pytest.mark.parametrize("after", [*PHASES, OPENED])
def test_a_masked_round_of_a_killed_server_is_closed_as_a_round_of_nobody(
    federation, opened, noised, monkeypatch, after
):
    """No device's vector is in two opened sums of a round; charges and ε, also against the server, are the plan's."""
    fleet, run, save = Fleet(federation), federation.run, checkpoints.save_draft
    fleet.kill = after

    def killed(folder, checkpoint):
        if checkpoint.round == 2:
            raise Killed
        return save(folder, checkpoint)

    monkeypatch.setattr(checkpoints, "save_draft", killed if after == OPENED else save)
    with pytest.raises(Killed):
        sottovoce.train(masked_recipe(federation), run, coordinator=federation.coordinator(fleet))
    monkeypatch.setattr(checkpoints, "save_draft", save)
    assert len(federation.commits) == 2  # the start and round 1
    before = len(fleet.exchanges)
    fleet.kill = ""
    result = sottovoce.resume(run, coordinator=federation.coordinator(fleet))
    assert (result.round, result.ended) == (3, "finished")
    assert TWO not in fleet.exchanges[before:]

    assert {len(vectors) for vectors in federation.left.values()} == {1}
    assert Counter(name for name, _ in opened) == {"round 1": 1, "round 3": 1, **({TWO: 1} if after == OPENED else {})}
    line = Lines(run / "diagnostics.jsonl").read()[1]
    assert (line["users"], line["weight"], line["answers"]) == (0, 0.0, {"away": 4})
    assert noised == {1: False, 2: True, 3: False}

    ledger, plan = Ledger.open(run / "ledger.jsonl"), result.statement
    assert (ledger.rounds, ledger.asked, plan.starts) == (3, {1, 2, 3}, 2)
    assert sum(count for _, count in StoreLedger(federation.path / "ledger.jsonl").spent("spring")) == 3
    # What left is within what the statement says of the server: no user in more rounds than it counts.
    joined = Counter((name, row) for name in SHARES for line in federation.record_of(name) for row in line["rows"])
    assert max(joined.values()) <= plan.mechanism.devices.participations == 2


@pytest.mark.parametrize("restarted", [False, True], ids=["devices go on", "devices start again"])
@pytest.mark.parametrize("after", ["mask", "unmask"])
def test_a_server_that_asks_for_a_masked_round_again_gets_no_second_vector(
    federation, opened, monkeypatch, after, restarted
):
    """Devices do not trust it with that. One that is in the round still gives the same bytes, for the same sum."""
    fleet = Fleet(federation)
    fleet.kill = after
    monkeypatch.setattr(Coordinator, "_may_ask", lambda self, assembly, payment: True)
    with pytest.raises(Killed):
        sottovoce.train(masked_recipe(federation), federation.run, coordinator=federation.coordinator(fleet))
    if restarted:
        federation.devices = federation.start_devices()
    again = Fleet(federation)
    sottovoce.resume(federation.run, coordinator=federation.coordinator(again))
    assert again.messages[0] in fleet.messages  # the same task
    assert {len(vectors) for vectors in federation.left.values()} == {1}
    assert [name for name, _ in opened] == (["round 1", "round 3"] if restarted else ["round 1", TWO, "round 3"])
    answers = Lines(federation.run / "diagnostics.jsonl").read()[1]["answers"]
    assert answers == ({"twice": 4} if restarted else {"joined": 4})


def test_epsilon_of_a_run_that_was_killed_is_that_of_a_run_that_was_not(federation, tmp_path, store, vocabulary):
    whole = Killable(tmp_path / "whole", store, vocabulary)
    sottovoce.train(masked_recipe(whole), whole.run, coordinator=whole.coordinator(Fleet(whole)))
    fleet = Fleet(federation)
    fleet.kill = "confirm"
    with pytest.raises(Killed):
        sottovoce.train(masked_recipe(federation), federation.run, coordinator=federation.coordinator(fleet))
    sottovoce.resume(federation.run, coordinator=federation.coordinator(fleet))
    assert private_facts(federation.run) == private_facts(whole.run)


def test_a_server_that_was_stopped_while_it_waited_for_devices_asks_them_later(federation):
    """It wrote nothing of the round: nobody was asked."""

    class Waiting(Fleet):
        def here(self):
            if len(federation.commits) == 2:
                raise KeyboardInterrupt
            return super().here()

    with pytest.raises(KeyboardInterrupt):
        sottovoce.train(
            masked_recipe(federation), federation.run, coordinator=federation.coordinator(Waiting(federation))
        )
    fleet = Fleet(federation)
    sottovoce.resume(federation.run, coordinator=federation.coordinator(fleet))
    assert fleet.exchanges[0] == TWO


@pytest.mark.parametrize("sampling", ["poisson", "min_separation"])
def test_a_plain_round_is_asked_again_with_the_same_task_of_the_same_devices(federation, sampling):
    """To the byte: it follows from the checkpoint and the keys beside it."""
    privacy = {"users": 12, "cohort": 6, "sampling": sampling}
    if sampling == "min_separation":
        privacy |= {"min_separation": 2, "noise": "banded", "noise_coefficients": (1.0, 0.5)}
    recipe = tiny_recipe(federation.path, privacy=privacy, run={"rounds": 4})
    fleet = Fleet(federation)
    fleet.kill = "join"
    with pytest.raises(Killed):
        sottovoce.train(recipe, federation.run, coordinator=federation.coordinator(fleet))
    again = Fleet(federation)
    result = sottovoce.resume(federation.run, coordinator=federation.coordinator(again))
    assert (result.round, result.statement.starts) == (4, 2)
    assert [name for name, _ in fleet.messages] == ["round 1", TWO]
    assert again.messages[0] == fleet.messages[1]
    assert again.asked[0] == fleet.asked[1]
    # Devices know it again: all who were asked are in the sum.
    answers = Lines(federation.run / "diagnostics.jsonl").read()[1]["answers"]
    assert answers["joined"] == len(again.asked[0])


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_what_is_logged_of_a_round_waits_for_its_checkpoint(federation, aggregation):
    """Also that of the last round. Of a round that a crash took away nothing was logged."""
    seen: list[tuple[str, int]] = []  # what was logged, and the rounds that were committed then

    class Seen(logging.Handler):
        def emit(self, record):
            seen.append((record.getMessage(), len(federation.commits) - 1))

    recipe = tiny_recipe(federation.path, privacy={"users": 12, "cohort": 6}, run={"rounds": 3})
    if aggregation == "masked":  # three of four devices: nothing is unmasked
        recipe = recipe.replace(federation={"survivors": 4})
    fleet = Fleet(federation)
    fleet.spoil = lambda name, answer: answer[:9] if name == "phone" else answer
    fleet.kill = "join"
    handler = Seen()
    log = logging.getLogger("sottovoce.rounds")
    log.addHandler(handler)
    try:
        with pytest.raises(Killed):
            sottovoce.train(recipe, federation.run, coordinator=federation.coordinator(fleet))
        assert {done for _, done in seen} == {1}
        fleet.kill = ""
        sottovoce.resume(federation.run, coordinator=federation.coordinator(fleet))
    finally:
        log.removeHandler(handler)
    malformed = [done for line, done in seen if line == "phone contributes nothing: malformed"]
    assert malformed == ([1, 2, 3] if aggregation == "plain" else [1, 3])
    only_noise = [done for line, done in seen if "only noise" in line]
    assert only_noise == ([] if aggregation == "plain" else [1, 2, 3])
