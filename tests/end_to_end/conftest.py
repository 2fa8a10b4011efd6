"""A world for the command line: a store, a run that finished, and commands called in this process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import real_processes
from small_world import RECIPE, WORDS, Outcome, Refused, Sotto, World, call, files_of, write_corpus
from tiny_run import crash_after

from sottovoce_evidence.recipe import Recipe


@pytest.fixture
def sotto(capfd: pytest.CaptureFixture[str]) -> Sotto:
    """Run a command in this process and catch what it prints, from Python or from below."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        status = call(*arguments)
        out, err = capfd.readouterr()
        return Outcome(status, out, err)

    return run


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    write_corpus(world.corpus)
    world.words.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    assert call(*world.prepare(world.store, "--test-users", 0.2, "--json")) == 0
    world.recipe.write_text(RECIPE.format(store=world.store), encoding="utf-8")
    assert call("train", world.recipe, "--out", world.run, "--json") == 0
    return world


@pytest.fixture
def real_world(tmp_path: Path) -> Iterator[real_processes.World]:
    """Devices and servers in processes of their own, ended with the test."""
    with real_processes.world_of(tmp_path) as world:
        yield world


@pytest.fixture
def run(world: World, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(world.run, tmp_path / "run"))


@pytest.fixture
def unfinished(world: World, tmp_path: Path) -> Path:
    """A run as a crash leaves it in round 4: its last checkpoint is of round 2, and it has no model."""
    crash_after(Recipe.load(world.recipe), tmp_path / "run", 4)
    return tmp_path / "run"


@pytest.fixture
def own_store(world: World, tmp_path: Path) -> Path:
    """A store of one's own, to whose ledger nothing was charged yet."""
    store = Path(shutil.copytree(world.store, tmp_path / "own-store"))
    for name in ("ledger.jsonl", "ledger.head", "ledger.charged"):
        (store / name).unlink()
    return store


@pytest.fixture
def refused(sotto: Sotto, world: World, tmp_path: Path) -> Refused:
    """Run a command that must be refused: status 2, one line of error, and not a byte changed. The line is returned."""

    def run(*arguments: object) -> str:
        before = files_of(tmp_path), files_of(world.store)
        outcome = sotto(*arguments)
        assert outcome.status == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")
        assert outcome.err.count("\n") == 1, outcome.err
        assert outcome.err.endswith("\n")
        assert "Traceback" not in outcome.err
        after = files_of(tmp_path), files_of(world.store)
        assert sorted(after[0]) == sorted(before[0])
        assert after == before
        return outcome.err

    return run
