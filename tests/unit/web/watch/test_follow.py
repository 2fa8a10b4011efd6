from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from sottovoce.commands.stores import prepare_demo
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.record import Lines
from sottovoce.web.watch import follow
from sottovoce.web.watch.follow import Follower, Message, describe_run, is_locked
from sottovoce_evidence.errors import SottoError

RECIPE = "[data]\nstore = 'demo:20'\n[run]\nrounds = 9\n[privacy]\nepsilon = 3.0\ndelta = 1e-6\n"


class Reader:
    """What a page knows after some events, as its script keeps it."""

    def __init__(self, paths: list[Path], **options: Any):
        self.paths, self.options, self.last = paths, options, ""
        self.known: dict[tuple[int, str], list[int]] = {}
        self.runs: list[dict[str, Any]] = []
        self.connect()

    def connect(self) -> None:
        self.follower = Follower(self.paths, last=self.last, **self.options)

    def poll(self) -> list[Message]:
        messages = self.follower.poll()
        for event, data, identity in messages:
            self.last = identity or self.last
            if event == "runs":
                self.runs = data["runs"]
                continue
            lines = self.known.setdefault((data["run"], event), [])
            if data["again"]:
                lines.clear()
            lines += [line["round"] for line in data["lines"]]
        return messages

    def rounds(self, run: int = 0, kind: str = "record") -> list[int]:
        self.poll()
        return self.known[run, kind]


@pytest.fixture
def run(tmp_path: Path, held_out: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text(RECIPE)
    shutil.copytree(held_out, folder / "store")
    play(folder, 1, 2, 3)
    return folder


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run, with people who are held out."""
    prepare_demo(store := tmp_path_factory.mktemp("population") / "store", 20)
    return store


def play(folder: Path, *rounds: int, **more: Any) -> None:
    for number in rounds:
        Lines(folder / "record.jsonl").append({"round": number, "epsilon": 0.5 * number, "delta": 1e-6, **more})


def test_lines_arrive_once_and_as_they_are_written(run):
    reader = Reader([run])
    assert reader.rounds() == [1, 2, 3]
    assert reader.poll() == []
    play(run, 4)
    assert reader.rounds() == [1, 2, 3, 4]
    (message,) = Reader([run]).poll()[1:]
    assert [line["round"] for line in message.data["lines"]] == [1, 2, 3, 4]


def test_a_line_that_is_being_written_waits(run):
    reader = Reader([run])
    with open(run / "record.jsonl", "ab") as file:
        file.write(b'{"round": 4, "epsi')
    assert reader.rounds() == [1, 2, 3]
    with open(run / "record.jsonl", "ab") as file:
        file.write(b'lon": 2.0}\n')
    assert reader.rounds() == [1, 2, 3, 4]


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path):
    reader = Reader([tmp_path / "later"])
    assert reader.rounds() == []
    assert reader.runs == [
        {
            **dict.fromkeys(("rounds", "budget", "delta", "rounds_done", "began", "first")),
            "name": "later",
            "there": False,
            "practice": False,
            "running": False,
            "baselines": [],
        }
    ]
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "recipe.toml").write_text(RECIPE)
    play(tmp_path / "later", 1)
    assert reader.rounds() == [1]
    assert reader.runs[0] | {"there": True, "rounds": 9, "budget": 3.0} == reader.runs[0]


@pytest.mark.parametrize("replayed", [(), (3,), (3, 4, 5)], ids=["cut", "as long as before", "longer than before"])
def test_a_run_that_was_resumed_is_told_again(run, replayed):
    reader = Reader([run])
    reader.poll()
    Lines(run / "record.jsonl").keep_up_to(2)
    play(run, *replayed, evaluation={"top1": 0.1})  # the round is played again, and comes out otherwise
    assert reader.rounds() == [1, 2, *replayed]


def test_who_was_cut_off_goes_on_from_there(run):
    reader = Reader([run])
    reader.poll()
    play(run, 4, 5)
    reader.connect()  # another server: nothing is left of the first
    *_, message = reader.poll()
    assert [line["round"] for line in message.data["lines"]] == [4, 5]
    assert reader.rounds() == [1, 2, 3, 4, 5]


def test_who_was_cut_off_within_a_long_record_misses_nothing(run, monkeypatch):
    monkeypatch.setattr(follow, "MAX_LINES", 2)
    reader = Reader([run])
    messages = reader.follower.poll()
    assert [bool(message.id) for message in messages] == [False, False, True]
    reader.connect()  # after the first piece, which had no id
    assert reader.rounds() == [1, 2, 3]


def test_diagnostics_are_not_opened_unless_internal(run, monkeypatch):
    exact = {"round": 1, "users": 7, "seconds": 0.5, "norm_quantiles": [1.0, 2.0, 3.0], "loss": 4.0, "weight": 6.5}
    Lines(run / "diagnostics.jsonl", private=True).append(exact)
    opened: list[str] = []
    read = follow.read_plain
    monkeypatch.setattr(follow, "read_plain", lambda path, *most: opened.append(path.name) or read(path, *most))
    told = b"".join(message.encode() for message in Follower([run]).poll())
    assert "record.jsonl" in opened
    assert "diagnostics.jsonl" not in opened
    assert b"norm" not in told
    assert b"seconds" not in told
    told = Follower([run], internal=True).poll()[-1].data
    assert told["lines"] == [{key: exact[key] for key in ("round", "users", "seconds", "norm_quantiles")}]


def test_of_a_record_only_what_is_shown_is_told(run):
    """A key that a later version puts into the record, or a person, does not reach the page by itself."""
    play(run, 4, cohort=17, evaluation={"top1": 0.2, "bits_per_byte": 2.5, "secret": 3})
    line = Follower([run]).poll()[-1].data["lines"][-1]
    assert line == {"round": 4, "epsilon": 2.0, "delta": 1e-6, "evaluation": {"top1": 0.2, "bits_per_byte": 2.5}}


def test_damaged_lines_are_left_out(run):
    with open(run / "record.jsonl", "ab") as file:
        file.write(b'nonsense\n[1]\n{"round": "4"}\n\xff\xfe\n{"round": 5, "epsilon": NaN}\n')
    *_, message = Follower([run]).poll()
    assert [line["round"] for line in message.data["lines"]] == [1, 2, 3, 5]
    assert json.loads(message.encode().split(b"data: ")[1]) == message.data


def test_a_process_that_trains_is_seen_and_not_disturbed(run: Path) -> None:
    folder = RunFolder(run)
    assert not describe_run("run", folder)["running"]
    with folder.locked():
        assert describe_run("run", folder)["running"]
        with pytest.raises(SottoError, match="is being trained"), folder.locked():
            pass
    assert not describe_run("run", folder)["running"]
    with folder.locked():  # a look at it does not keep a trainer out
        pass
    assert not is_locked(run / "recipe.toml")
    assert not is_locked(run / ".lock", run / "no-such-list")


def test_the_rounds_of_the_present_training_are_told_from_those_before(run: Path) -> None:
    """The time left comes from these alone."""

    def first(recipe: int, began: int, stated: int | None = None) -> int | None:
        (run / ".lock").touch()
        if stated is not None:
            (run / "privacy.json").write_text(json.dumps({"rounds_done": 2}))
            os.utime(run / "privacy.json", (stated, stated))
        os.utime(run / "recipe.toml", (recipe, recipe))
        os.utime(run / ".lock", (began, began))
        found = describe_run("run", RunFolder(run))
        assert found["began"] == began
        return found["first"]

    assert first(1000, 1005) == 0  # new
    assert first(1000, 9000) is None  # killed, and resumed: nobody knows
    assert first(1000, 9000, stated=5000) == 2  # stopped after two rounds, and resumed
    assert first(1000, 1005, stated=5000) == 0  # it has ended since
