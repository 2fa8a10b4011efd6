"""A run that is killed, or loses its power, before any change of any file, and goes on: what was shown, paid and drawn.

One run is watched. Its files are put back as each moment would have left them, and from there the run goes on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiny_run import make_recipe, make_store

import sottovoce
from power_cut import Disk, Tree, put_back, tree_of
from sottovoce.commands.helper import work_as_helper
from sottovoce.commands.live_line import Progress
from sottovoce.commands.train import RunResult
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import Ledger, StoreLedger
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.recipe import Recipe
from thread_group import in_every_process

ROUNDS = 4
RUN = {"rounds": ROUNDS, "checkpoint_every": 3, "evaluate_every": 2, "evaluate_users": 2}  # checkpoints at 2, 3, 4
BANDED = {"noise": "banded", "noise_coefficients": (1.0, 0.5, 0.3), "sampling": "in_turn", "accountant": "pld"}
BLT = {**BANDED, "noise": "blt", "noise_coefficients": (0.3, 0.2), "noise_decays": (0.9, 0.4)}
ADAPTER = {"adapter_rank": 2, "adapter_trains": ["projection_bias"], "initial_is_public": True}


def alone(act: Callable[..., RunResult]) -> RunResult:
    return act()


def in_two_processes(act: Callable[..., RunResult]) -> RunResult:
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


class Kind(NamedTuple):
    """What the recipe of a run changes, and how it is played. One over devices gives `act` its coordinator."""

    changes: dict[str, dict[str, Any]]
    play: Callable[[Callable[..., RunResult]], RunResult] = alone


KINDS = {
    "independent": Kind({}),
    "blt": Kind({"privacy": BLT}),
    "banded": Kind({"privacy": BANDED}),
    "adapter": Kind({"model": ADAPTER}),
    "two processes": Kind({}, in_two_processes),
}


class Event(NamedTuple):
    what: str  # `keys` and `noise`: drawn for a round; `shown`: to an observer; `checkpoint`: it has its name
    round: int
    value: Any


@dataclass
class World:
    """A store, a run on it, and what happens in its rounds."""

    root: Path
    recipe: Recipe
    kind: Kind
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run, self.people = RunFolder(self.root / "run"), StoreLedger(self.root / "store/ledger.jsonl")

    def train(self) -> RunResult:
        out = self.run.path
        return self.kind.play(lambda **given: sottovoce.train(self.recipe, out, observer=self.observe, **given))

    def resume(self) -> RunResult:
        return self.kind.play(lambda **given: sottovoce.resume(self.run.path, observer=self.observe, **given))

    def note_keys(self, patch: pytest.MonkeyPatch) -> None:
        def noted(what: str, draw: Callable[[Secrets, int], Any]) -> Callable[[Secrets, int], Any]:
            def drawn(secrets: Secrets, number: int) -> Any:
                self.events.append(Event(what, number, value := draw(secrets, number)))
                return value

            return drawn

        patch.setattr(Secrets, "keys", noted("keys", Secrets.keys))
        patch.setattr(Secrets, "noise_key", noted("noise", Secrets.noise_key))

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
        assert result.statement.epsilon == whole.statement.epsilon


@pytest.fixture
def world_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def make(name: str, **privacy: Any) -> World:
        kind, root = KINDS[name], tmp_path / "disk"
        root.mkdir()
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
    world.check_end(world.resume(), whole, ledger.starts + going_on)
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
@pytest.mark.parametrize("kind", KINDS)
def test_a_seeded_run_ends_in_the_bits_of_one_that_was_never_interrupted(kind, world_of):
    die_everywhere(world_of(kind, secrets="seeded"), 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_and_then_without_power(world_of):
    """What a process had not flushed when it was killed is there for the next one, until the power fails."""
    world = world_of("independent")
    whole, disk = watched(world, world.train)
    events, weights, tried = list(world.events), world.run.load_weights(), 0
    lines = ("store/ledger.jsonl", "run/ledger.jsonl", "run/record.jsonl")
    for moment in disk.moments:
        disk.cut(moment.cut)
        flushed = tree_of(world.root)
        if "run/recipe.toml" not in flushed or all(moment.killed.get(name) == flushed.get(name) for name in lines):
            continue
        put_back(world.root, moment.killed)
        world.events[:] = events[: moment.mark]
        _, again = watched(world, world.resume, flushed)
        told = list(world.events)
        for put, mark in list(ends_of(again, ("cut",)))[tried % 4 :: 4]:
            put()
            world.events[:] = told[:mark]
            go_on(world, whole, weights)
        tried += 1
    assert tried > 10
