"""The demonstration of a federation, with its processes replaced."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from sottovoce.commands import federate, federate_demo
from sottovoce.commands.federate_demo import Seen, comparison
from sottovoce.federation import keys
from sottovoce.federation.masking.messages import Masked
from sottovoce.federation.members import Members
from sottovoce.federation.messages import Code, Contribution, Nothing
from sottovoce.federation.transport import Exchange
from sottovoce_evidence.errors import LostProcess, SottoError
from sottovoce_evidence.recipe import Recipe


class Devices(list):
    """The names of the devices that run now; `lost` ends by itself."""

    lost = ""

    def __init__(self) -> None:
        self.runs: list[SimpleNamespace] = []
        self.compiled: list[str] = []


@dataclass(frozen=True)
class Server:
    transport: object


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    running = Devices()

    class Device(SimpleNamespace):
        def __init__(self, name, command, folder):
            super().__init__(name=name, start=lambda: running.append(name), stop=lambda: running.remove(name))

        def check_running(self):
            assert self.name in running
            if self.name == running.lost:
                raise LostProcess(f"{self.name} ended (status 1)")

    def train(recipe, out, *, observer, stop, coordinator):
        kept = os.environ.get("JAX_COMPILATION_CACHE_DIR")
        running.runs.append(SimpleNamespace(recipe=recipe, out=out, devices=list(running), programs=kept))
        assert not stop()
        return SimpleNamespace(path=out)

    monkeypatch.setattr(federate_demo, "prepare_demo", lambda *_, **__: SimpleNamespace(train_users=20))
    monkeypatch.setattr(federate_demo.Roster, "held_out_users", lambda self: None)
    monkeypatch.setattr(federate_demo, "Child", Device)
    monkeypatch.setattr(federate_demo, "connected", lambda *_: nullcontext(Server(object())))
    monkeypatch.setattr(federate_demo, "train", train)
    monkeypatch.setattr(federate_demo, "compile_for_silos", lambda recipe, public: running.compiled.append(public.name))
    monkeypatch.setattr(federate_demo, "comparison", lambda plain, masked: ["seen"])
    return running


def run(out: Path, said: list[str] | None = None) -> object:
    said = [] if said is None else said
    return federate_demo.run_federation_demo(out, users=60, notify=said.append, progress=lambda name: nullcontext())


def test_a_demonstration_trains_a_plain_round_and_masked_ones_and_writes_a_report(devices, monkeypatch, tmp_path):
    reports, said = [], []
    monkeypatch.setattr(federate_demo, "report_run", reports.append)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    run(tmp_path / "demo", said)
    plain, masked = devices.runs
    assert plain.devices == masked.devices == ["north", "south", "east"]
    assert (plain.recipe.federation.survivors, plain.recipe.run.rounds) == (0, 1)
    assert masked.recipe.federation.survivors == 2
    assert (masked.recipe.privacy.users, masked.recipe.privacy.cohort) == (60, 15)
    assert reports == [masked.out] == [tmp_path / "demo" / "run"]
    assert said[-1] == "seen"
    assert devices == []  # all are stopped
    assert devices.compiled == ["held-out"]  # with the people of no silo
    assert plain.programs == str(tmp_path / "demo" / "programs")
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_blocks_of_all_sizes_are_compiled_for_the_recipe_that_a_device_gets(monkeypatch, tmp_path):
    asked, mechanism = [], SimpleNamespace(start=lambda: None, clip_norms=lambda number, norms: [1.0])

    def assembled(recipe, store):
        add_up = lambda algorithm, task, people: asked.append((recipe, len(task.cohort), people))  # noqa: E731
        return SimpleNamespace(algorithm=SimpleNamespace(mechanism=mechanism), params=(), sum_updates=add_up)

    monkeypatch.setattr(federate_demo, "assemble", assembled)
    monkeypatch.setattr(federate_demo.Store, "open", staticmethod(lambda path: path))
    recipe = Recipe.load("demo").replace(privacy={"cohort": 100}, run={"seed": 7, "block": 3})
    federate_demo.compile_for_silos(recipe, tmp_path)
    assert sorted(users for _, users, _ in asked) == [8, 16, 33]
    assert {people for _, _, people in asked} == {tmp_path}
    assert {(recipe.run.seed, recipe.run.block) for recipe, _, _ in asked} == {(0, 0)}


def test_each_silo_made_its_own_key_and_has_the_whole_list(devices, monkeypatch, tmp_path):
    monkeypatch.setattr(federate_demo, "report_run", lambda run: None)
    run(tmp_path / "demo")
    lists = [Members.load(tmp_path / "demo" / "devices" / name) for name in federate_demo.SILOS]
    assert list(lists[0].devices) == sorted(federate_demo.SILOS)
    assert len({each.fingerprint for each in lists}) == 1
    assert lists[0].made_by_server == []
    assert not list((tmp_path / "demo" / "federation").rglob(keys.NODE_KEY))  # none at the server


def test_a_demonstration_whose_device_ended_says_so(devices, tmp_path):
    """It would be waited for."""
    devices.lost = "south"
    with pytest.raises(LostProcess, match="south ended"):
        run(tmp_path / "demo")
    assert devices == []


def test_a_folder_that_exists_is_left_alone(devices, tmp_path):
    with pytest.raises(SottoError, match="exists; delete it"):
        run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_demonstration_without_flower_makes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(federate, "find_spec", lambda name: None)
    with pytest.raises(SottoError, match=r"pip install 'sottovoce\[federation\]'"):
        run(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


class Answers:
    """A transport whose devices send what they are told."""

    def __init__(self, *answers: tuple[str, bytes]):
        self.answers = answers

    def here(self) -> set[str]:
        return {name for name, _ in self.answers}

    def exchange(self, exchange: Exchange):
        yield from self.answers


def seen(*answers: tuple[str, bytes]) -> Seen:
    watched = Seen(Answers(*answers))
    assert list(watched.exchange(Exchange("round 1", {}, 1.0, 1))) == list(answers)
    assert watched.here() == {name for name, _ in answers}
    return watched


def test_the_same_numbers_are_shown_in_the_clear_and_under_masks():
    update = np.array([0, 7, -9, 0, 11], np.int64)
    sent = Contribution("task", 1, 5, np.zeros(1, np.int64), [update]).to_bytes()
    vector = np.arange(2**31 - 3, 2**31 + 2, dtype="<u4").tobytes() + bytes(5)
    plain = seen(("south", b"x" * 10_000), ("north", b"short"), ("north", sent))
    lines = comparison(plain, seen(("north", Masked("context", vector).to_bytes())))
    assert lines[0] == "what the server saw of north: 5 numbers, of which 3"
    assert lines[1].split()[:4] == ["plain", "7", "-9", "11"]
    assert lines[2].split()[:5] == ["masked", "2147483646", "2147483647", "2147483649", "40.0%"]


def test_a_round_in_which_nothing_was_seen_is_said():
    nothing = Nothing(Code.FAILED).to_bytes()
    nobody = Contribution("task", 0, 0, np.zeros(1, np.int64), [np.zeros(3, np.int64)]).to_bytes()
    for answer in (nothing, nobody):
        assert "nobody was drawn in north" in comparison(seen(("north", answer)), seen())[0]
    sent = Contribution("task", 1, 5, np.zeros(1, np.int64), [np.ones(3, np.int64)]).to_bytes()
    assert "masked  nothing" in comparison(seen(("north", sent)), seen(("north", nothing)))[2]
