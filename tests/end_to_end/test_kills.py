"""A run that is killed, or loses its power, before any change of any file, and goes on: what was shown, paid and drawn.

One run is watched. Its files are put back as each moment would have left them, and from there the run goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiny_run import make_recipe, make_store
from untrained_devices import Federation, train_nothing

import sottovoce
from fleets import InProcess, tiny_recipe
from power_cut import Disk, Tree, put_back, tree_of
from sottovoce.commands.helper import work_as_helper
from sottovoce.commands.live_line import Progress
from sottovoce.commands.train import RunResult
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.federation.aggregation.masked import MaskedAggregator
from sottovoce.federation.messages import Task, digest, read_request, unpack
from sottovoce.federation.rounds import Coordinator
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import NONE, Ledger, StoreLedger
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.recipe import Recipe
from thread_group import in_every_process

ROUNDS = 4
RUN = {"rounds": ROUNDS, "checkpoint_every": 3, "evaluate_every": 2, "evaluate_users": 2}  # checkpoints at 2, 3, 4
BANDED = {"noise": "banded", "noise_coefficients": (1.0, 0.5, 0.3), "sampling": "in_turn", "accountant": "pld"}
BLT = {**BANDED, "noise": "blt", "noise_coefficients": (0.3, 0.2), "noise_decays": (0.9, 0.4)}
ADAPTER = {"adapter_rank": 2, "adapter_trains": ["projection_bias"], "initial_is_public": True}
SHARES = {"phone": 1, "tablet": 1, "watch": 1, "silo": 9}  # users of devices
PEOPLE = {"users": sum(SHARES.values()), "cohort": 11, "accountant": "pld"}
IN_TURN = {**PEOPLE, **BANDED, "cohort": 6, "sampling": "min_separation", "min_separation": 2}
MASKED = {"aggregation": "masked", "survivors": 2}
NOISED = {**MASKED, "noise": "devices", "server_noise_multiplier": 0.8, "participations": 3}

Act = Callable[..., RunResult]


def alone(world: World, act: Act) -> RunResult:
    return act()


def in_two_processes(world: World, act: Act) -> RunResult:
    def play(group):
        if not group.is_leader:
            return work_as_helper(group)
        try:
            return act(group=group)
        finally:
            group.dismiss()

    result, _ = in_every_process(2, play)
    if isinstance(result, BaseException):
        raise result
    return result


def over_devices(world: World, act: Act) -> RunResult:
    """They begin with the server, and know what is in their records."""
    assert world.federation is not None
    return act(coordinator=Coordinator(world.federation.roster, Fleet(world, world.federation), 1.0))


class Kind(NamedTuple):
    """What the recipe of a run changes, and how it is played."""

    changes: dict[str, dict[str, Any]]
    play: Callable[[World, Act], RunResult] = alone

    @property
    def is_masked(self) -> bool:
        return self.changes.get("federation", {}).get("aggregation") == "masked"


KINDS = {
    "independent": Kind({}),
    "blt": Kind({"privacy": BLT}),
    "banded": Kind({"privacy": BANDED}),
    "adapter": Kind({"model": ADAPTER}),
    "two processes": Kind({}, in_two_processes),
    "plain devices": Kind({"privacy": PEOPLE}, over_devices),
    "plain devices in turn": Kind({"privacy": IN_TURN}, over_devices),
    "masked devices": Kind({"privacy": PEOPLE, "federation": MASKED}, over_devices),
    "masked devices with noise": Kind({"privacy": PEOPLE, "federation": NOISED}, over_devices),
}


class Event(NamedTuple):
    """What happens in a round.

    `keys` and `noise` are drawn. `shown` is to an observer. `checkpoint` has its name. `asked` are devices, with a
    task. A masked `vector` leaves its device. A masked sum is `opened`.
    """

    what: str
    round: int
    value: Any


class Fleet(InProcess):
    """A transport without a network, which notes what is sent."""

    def __init__(self, world: World, federation: Federation):
        super().__init__(federation.start_devices())
        self._events = world.events

    def exchange(self, exchange):
        number = int(exchange.name.removeprefix("round "))
        messages = set(exchange.messages.values())
        if any(isinstance(read_request(message), Task) for message in messages):
            asked = frozenset(exchange.messages), *map(digest, messages)
            self._events.append(Event("asked", number, asked))
        for name, answer in super().exchange(exchange):
            if b'"vector"' in answer:
                self._events.append(Event("vector", number, (name, answer)))
            yield name, answer


@dataclass
class World:
    """A store, a run on it, and what happens in its rounds."""

    root: Path
    recipe: Recipe
    kind: Kind
    federation: Federation | None = None  # its folder and the records of its devices are on the same disk
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        store = self.federation.path if self.federation else self.root / "store"
        self.run, self.people = RunFolder(self.root / "run"), StoreLedger(store / "ledger.jsonl")

    def train(self) -> RunResult:
        out = self.run.path
        return self.kind.play(self, lambda **given: sottovoce.train(self.recipe, out, observer=self.observe, **given))

    def resume(self) -> RunResult:
        return self.kind.play(self, lambda **given: sottovoce.resume(self.run.path, observer=self.observe, **given))

    def note_keys(self, patch: pytest.MonkeyPatch) -> None:
        def noted(what: str, draw: Callable[[Secrets, int], Any]) -> Callable[[Secrets, int], Any]:
            def drawn(secrets: Secrets, number: int) -> Any:
                self.events.append(Event(what, number, value := draw(secrets, number)))
                return value

            return drawn

        patch.setattr(Secrets, "keys", noted("keys", Secrets.keys))
        patch.setattr(Secrets, "noise_key", noted("noise", Secrets.noise_key))

    def note_sums(self, patch: pytest.MonkeyPatch) -> None:
        """The masked sums that the server opens."""
        real = MaskedAggregator.rest

        def rest(aggregator: MaskedAggregator) -> Iterator[Any]:
            yield from real(aggregator)
            if aggregator._sum is not None:
                facts, _, _ = unpack(next(iter(aggregator.first.messages.values())), 2**20)
                self.events.append(Event("opened", facts["round"], aggregator._in_sum))

        patch.setattr(MaskedAggregator, "rest", rest)

    def observe(self, progress: Progress) -> None:
        """The loss of a round follows from all noise before it."""
        if progress.users:
            self.events.append(Event("shown", progress.round, (progress.users, progress.loss)))
        saved = checkpoints.newest(self.run.checkpoints)
        assert saved is not None
        self.events.append(Event("checkpoint", saved.round, checkpoints.digest(saved.arrays)))
        self.check()

    def check(self) -> None:
        """Nothing is public that no committed checkpoint holds, and nobody was charged less than is public."""
        run, ledger = self.run, Ledger.open(self.run.ledger_file)
        committed = max((commit.round for commit in self.people.commits(ledger.run)), default=-1)
        public = {event.round for event in self.events if event.what in ("shown", "checkpoint")}
        public |= {line["round"] for lines in (run.record, run.diagnostics) for line in lines.read()}
        public |= {checkpoints.last_round(run.checkpoints) or 0}
        public |= {run.read_statement()["rounds_done"] if run.statement_file.exists() else 0}
        assert max(public) <= max(committed, 0)
        assert ledger.rounds >= committed
        charged = sum(count for _, count in self.people.spent(ledger.run))
        assert charged == self.charges or committed < 0
        assert not run.model.exists() or committed > 0
        # What goes to a device of a round follows from the model after the rounds before.
        assert max((event.round for event in self.events if event.what == "asked"), default=0) <= committed + 1

    @property
    def charges(self) -> int:
        """Of rounds with noise of their own. Those of a stream are one release."""
        return 1 if "noise" in self.kind.changes.get("privacy", {}) else ROUNDS

    def check_end(self, result: RunResult, whole: RunResult, starts: int) -> None:
        """No round was released twice, no noise was used twice, and all is charged, once."""
        self.check()
        found: dict[str, dict[int, set[Any]]] = defaultdict(lambda: defaultdict(set))
        for event in self.events:
            found[event.what][event.round].add(event.value)
        for what in ("keys", "shown", "checkpoint"):
            assert all(len(values) == 1 for values in found[what].values()), what
        noises = [event.value for event in self.events if event.what == "noise"]
        if self.recipe.privacy.secrets == "seeded":
            assert len(set(noises)) == len(found["noise"]) == ROUNDS
        else:
            assert len(set(noises)) == len(noises)
        assert [line["round"] for line in self.run.record.read()] == list(range(1, ROUNDS + 1))
        assert sorted(path.suffix for path in self.run.secrets.iterdir()) == ["", ".key"]
        assert (result.ended, result.statement.starts) == ("finished", starts)
        for facts in (result.statement, whole.statement):
            assert (facts.epsilon, facts.epsilon_server) == (whole.statement.epsilon, whole.statement.epsilon_server)
        if self.federation is not None:
            self.check_devices(self.federation, result)

    def check_devices(self, federation: Federation, result: RunResult) -> None:
        """A round asks the same devices with the same task; a masked one asks once, and a vector is in one sum."""
        asked = [event for event in self.events if event.what == "asked"]
        assert all(len(values) == 1 for values in by_round(asked).values())
        if self.kind.is_masked:
            assert len(asked) == len(by_round(asked))
            left = Counter((event.round, event.value[0]) for event in self.events if event.what == "vector")
            summed = Counter(event.round for event in self.events if event.what == "opened")
            assert max(left.values()) == max(summed.values()) == 1
        noised, privacy = result.statement.mechanism.devices, self.recipe.privacy
        for name, users in federation.shares.items():
            lines = federation.record_of(name)
            assert len({line["round"] for line in lines}) == len(lines)
            if noised is not None:
                rows = Counter(row for line in lines for row in line["rows"])
                assert max(rows.values(), default=0) <= noised.participations
            if users == 1 and privacy.sampling == "min_separation":
                rounds = sorted({event.round for event in asked if name in event.value[0]})
                assert (np.diff(rounds) >= privacy.min_separation).all()


def by_round(events: list[Event]) -> dict[int, set[Any]]:
    found: dict[int, set[Any]] = defaultdict(set)
    for event in events:
        found[event.round].add(event.value)
    return found


@pytest.fixture
def world_of(
    tmp_path: Path, store: Store, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., World]:
    def over_devices_of(kind: Kind, root: Path, privacy: dict[str, Any]) -> World:
        train_nothing(monkeypatch)
        federation = Federation(root, store, vocabulary, SHARES)
        federation.records.mkdir()
        recipe = tiny_recipe(federation.path, run={"rounds": ROUNDS}).replace(**kind.changes)
        world = World(root, recipe.replace(privacy={"secrets": "entropy", **privacy}), kind, federation)
        world.note_keys(monkeypatch)
        world.note_sums(monkeypatch)
        return world

    def make(name: str, **privacy: Any) -> World:
        kind, root = KINDS[name], tmp_path / "disk"
        root.mkdir()
        if kind.play is over_devices:
            return over_devices_of(kind, root, privacy)
        recipe = make_recipe(make_store(root)).replace(run=RUN, privacy={"secrets": "entropy"}).replace(**kind.changes)
        if kind.changes.get("model") is ADAPTER:
            other = make_store(tmp_path, seed=1, ids="v")
            plain = {"mode": "none", "noise_multiplier": None}
            sottovoce.train(make_recipe(other).replace(privacy=plain, run={"rounds": 1}), tmp_path / "base")
            recipe = recipe.replace(model={"initial": str(tmp_path / "base")})
        world = World(root, recipe.replace(privacy=privacy), kind)
        world.note_keys(monkeypatch)
        return world

    return make


End = tuple[Callable[[], None], int]  # what puts the files back as an end leaves them, and how many events were before


def watched(world: World, act: Callable[[], RunResult], flushed: Tree | None = None) -> tuple[RunResult, Disk]:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(world.root, patch, lambda: len(world.events), flushed)
        patch.setattr(World, "check", lambda _, check=World.check: (disk.look(), check(world)))
        result = act()
        disk.look()
        disk.close()
    return result, disk


def ends_of(disk: Disk, ways: tuple[str, ...] = ("killed", "cut")) -> Iterator[End]:
    for way in ways:
        back = partial(put_back, disk.root) if way == "killed" else disk.cut
        states = [(getattr(moment, way), moment.mark) for moment in disk.moments]
        for (state, mark), (following, _) in zip(states, [*states[1:], (None, 0)], strict=True):
            if state != following:  # with the same files, the last had told the most
                yield partial(back, state), mark


def die_everywhere(world: World, every: int = 1) -> int:
    """Go on from every so many-th end of a run; how many there were."""
    whole, disk = watched(world, world.train)
    events, weights, ends = list(world.events), world.run.load_weights(), list(ends_of(disk))
    unnamed = 0
    for put, mark in ends[::every]:
        put()
        world.events[:] = events[:mark]
        if world.run.recipe_file.exists():
            go_on(world, whole, weights)
            continue
        unnamed += 1
        assert not world.people.path.exists() or not world.people.spent()
        assert all(event.what == "keys" for event in world.events)
    assert unnamed
    return len(ends[::every])


def go_on(world: World, whole: RunResult, weights: dict[str, np.ndarray]) -> None:
    """To the end, which is that of the whole run."""
    world.check()
    ledger = Ledger.open(world.run.ledger_file)
    commits = world.people.commits(ledger.run)
    going_on = not commits or commits[-1].round < ROUNDS
    # A masked round that may have been asked is closed as a round of nobody.
    lost, before = {number for number in ledger.asked if number > max(commits, default=NONE).round}, len(world.events)
    world.check_end(world.resume(), whole, ledger.starts + going_on)
    new = {event.round for event in world.events[before:] if event.what == "asked"}
    assert not new & ledger.asked
    for line in world.run.diagnostics.read():
        if line["round"] in lost:
            assert (line["users"], line["weight"], line["answers"]) == (0, 0.0, {"away": len(SHARES)})
    if world.recipe.privacy.secrets == "seeded":
        again = world.run.load_weights()
        assert all(np.array_equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize(("kind", "every"), [("independent", 7), ("blt", 11)])
def test_killed_at_some_moments(kind, every, world_of):
    assert die_everywhere(world_of(kind), every) > 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_before_every_change_of_a_file(kind, world_of):
    assert die_everywhere(world_of(kind)) > 200


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.is_masked])
def test_a_seeded_run_ends_in_the_bits_of_one_that_was_never_interrupted(kind, world_of):
    die_everywhere(world_of(kind, secrets="seeded"), 4)


def is_of_lines(name: str) -> bool:
    """Of a ledger, the record, and what devices and server keep of who joined."""
    return name.endswith(("ledger.jsonl", "record.jsonl")) or (name.endswith(".jsonl") and not name.startswith("run/"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "moments", "every"),
    [("independent", 1, 4), ("plain devices in turn", 6, 40), ("masked devices", 9, 40)],
    ids=["independent", "plain devices in turn", "masked devices"],
)
def test_killed_and_then_without_power(kind, moments, every, world_of):
    """What a process had not flushed when it was killed is there for the next one, until the power fails.

    `moments`: every so many-th is tried, and `every` so many-th end after it.
    """
    world = world_of(kind)
    whole, disk = watched(world, world.train)
    events, weights, tried = list(world.events), world.run.load_weights(), 0
    for moment in disk.moments:
        disk.cut(moment.cut)
        flushed = tree_of(world.root)
        lines = {name: held for name, held in moment.killed.items() if is_of_lines(name)}
        if "run/recipe.toml" not in flushed or all(flushed.get(name) == held for name, held in lines.items()):
            continue
        tried += 1
        if tried % moments:
            continue
        put_back(world.root, moment.killed)
        world.events[:] = events[: moment.mark]
        _, again = watched(world, world.resume, flushed)
        told = list(world.events)
        for put, mark in list(ends_of(again, ("cut",)))[tried % every :: every]:
            put()
            world.events[:] = told[:mark]
            go_on(world, whole, weights)
    assert tried > 10
