"""`sotto train`: the recipe that is trained, and what is printed of the result."""

from __future__ import annotations

import io
import json
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sottovoce.cli.options import Processes
from sottovoce.cli.train import confirm, print_result, show_forecast
from sottovoce.commands.forecast import Declined, Forecast
from sottovoce.planning.grid import Choice

TRAIN = "sottovoce.commands.train.train"
TRAFFIC = {"down": 2e6, "up": 1e6, "round": 3e8, "total": 6e9}


def test_settings_and_start_are_in_the_recipe_that_is_trained(sotto, stub, result, tmp_path, capsys):
    train = stub(TRAIN, result())
    options = ["--set", "run.rounds=7", "--set", "run.seed=5", "--from", "before"]
    sotto(["train", "demo", "--out", str(tmp_path / "new"), *options])
    recipe, out = train.places
    assert out == tmp_path / "new"
    assert (recipe.run.rounds, recipe.run.seed, recipe.model.initial) == (7, 5, "before")
    assert train.names["group"] is None
    train.names["before_timing"]()
    assert "timing this machine" in capsys.readouterr().err
    assert train.names["stop"]() is False


def test_a_practice_asks_nobody_and_says_how_to_train_for_real(sotto, stub, result, tmp_path, capsys):
    train = stub(TRAIN, result())
    sotto(["train", "demo", "--practice", "--out", "trial", "--set", "run.rounds=3", "--set", "local.epochs=2"])
    out, err = capsys.readouterr()
    assert "6,000 made-up people" in err
    # Three rounds of the real run would cost all of its ε.
    assert out.endswith("for real: sotto train demo --out RUN --set local.epochs=2\n")
    assert train.names["practice"]
    assert train.names["confirm"](FORECAST) is True
    assert "charges" not in capsys.readouterr().err


def test_the_result_is_one_json_object(stub, result, answer, tmp_path):
    stub(TRAIN, result(notes=("a note",), traffic=TRAFFIC))
    found = answer("train", "demo", "--out", tmp_path / "new")
    assert (found["run"], found["round"], found["ended"]) == (str(tmp_path / "run"), 60, "finished")
    assert (found["private"], found["epsilon"], found["delta"]) == (True, 4.624, 1e-6)
    assert (found["epsilon_spent"], found["epsilon_store"]) == (4.624, 6.918)
    assert (found["notes"], found["bytes"]) == (["a note"], TRAFFIC)
    assert (found["evaluation"]["top1"], found["baselines"]) == (0.25, None)


@pytest.mark.parametrize("json", [False, True])
def test_a_process_other_than_the_first_helps_and_trains_no_run_of_its_own(
    sotto, stub, capsys, monkeypatch, tmp_path, json
):
    group = SimpleNamespace(is_leader=False, rank=2, count=3)
    monkeypatch.setattr(Processes, "join", lambda self: nullcontext(group))
    helped, train = stub("sottovoce.commands.helper.work_as_helper"), stub(TRAIN)
    sotto(["train", "demo", "--out", str(tmp_path / "new"), "--set", "data.store=here", *(["--json"] if json else [])])
    assert helped.places == (group, "here")
    assert train.calls == []
    out = capsys.readouterr().out
    text = "process 2 of 3 is done; process 0 has the run"
    assert out == ('{"process": 2, "processes": 3}\n' if json else f"{text}\n")


FORECAST = Forecast(
    start="base english", store="people", private=True, epsilon=3.991, delta=1e-5, epsilon_store=6.651, users=3900,
    cohort=500.0, rounds=40, noise_std=0.005, seconds=1500.0,
    shorter=Choice(3.991, 500, 10, 1.0, 0.006, None), warnings=("too noisy",),
    mismatches=("not 9,000",),
)  # fmt: skip


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and what a person types there."""

    def at(*, typed: str) -> None:
        for name, stream in (("stdin", io.StringIO(typed)), ("stderr", sys.stderr)):
            monkeypatch.setattr(stream, "isatty", lambda: True)
            monkeypatch.setattr(sys, name, stream)

    return at


def test_before_a_run_its_cost_and_what_does_not_fit_are_shown(capsys):
    show_forecast(FORECAST, print)
    page = capsys.readouterr().out
    for words in ("charges: ε = 4 at δ = 1e-5 to people, whose total becomes 6.66", "warning: not 9,000"):
        assert words in page
    show_forecast(replace(FORECAST, private=False), print)
    assert "charges: nobody" in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "wanted"), [("y\n", True), ("YES\n", True), ("n\n", False), ("", False)])
def test_at_a_terminal_the_owner_is_asked(terminal, typed, wanted):
    terminal(typed=typed)
    assert confirm(FORECAST, yes=False, json=False) is wanted


def test_ctrl_c_at_the_question_says_that_nobody_was_charged(sotto, terminal, monkeypatch, capsys):
    def train(*given, confirm, **more):
        confirm(FORECAST)

    def ctrl_c():
        raise KeyboardInterrupt

    terminal(typed="")
    monkeypatch.setattr(sys.stdin, "readline", ctrl_c)
    monkeypatch.setattr(TRAIN, train)
    sotto(["train", "demo", "--out", "new"], status=130)
    assert capsys.readouterr().err.endswith("[y/N] \nnobody was charged, and no run was made\ninterrupted\n")


def test_nobody_is_asked_with_yes_or_away_from_a_terminal(terminal, capsys):
    assert confirm(FORECAST, yes=False, json=False)
    assert "start training?" not in capsys.readouterr().err
    terminal(typed="n\n")
    assert confirm(FORECAST, yes=True, json=False)
    assert confirm(FORECAST, yes=False, json=True)
    assert "[y/N]" not in capsys.readouterr().err


def test_a_dry_run_trains_nothing(sotto, stub, answer, capsys):
    train, forecast = stub(TRAIN), stub("sottovoce.commands.new_run.forecast", FORECAST)
    sotto(["train", "demo", "--dry-run"])
    assert "whose total becomes 6.66" in capsys.readouterr().out
    assert answer("train", "demo", "--dry-run", "--out", "here")["epsilon_store"] == 6.651
    assert (train.calls, [places[1] for places, _ in forecast.calls]) == ([], [None, Path("here")])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("arguments", [("train", "demo", "--out", "here"), ("resume", "here")])
def test_a_run_that_was_stopped_is_no_success(sotto, monkeypatch, result, capsys, arguments, number, status):
    """Else `sotto train … && sotto release …` would release a part of the run."""

    def played(ended):
        def play(*places, stop, **names):
            signal.raise_signal(number)
            assert stop()
            return result(ended)

        monkeypatch.setattr(f"sottovoce.commands.train.{arguments[0]}", play)

    played("stopped")
    sotto([*arguments], status=status)
    assert "stopped; go on with" in capsys.readouterr().out
    for ended in ("finished", "budget"):  # the signal came in the last round
        played(ended)
        sotto([*arguments], status=0)
    if arguments[0] == "train":  # before anybody was charged
        monkeypatch.setattr(TRAIN, lambda *places, **names: signal.raise_signal(number) or decline())
        sotto([*arguments], status=status)


def decline():
    raise Declined("no")


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_is_stopped_at_once_says_how_to_go_on_and_from_which_round(
    sotto, monkeypatch, capsys, tmp_path, begun
):
    run = tmp_path / "run"

    def play(*places, **names):
        if begun:
            (run / "checkpoints").mkdir(parents=True)
            for name in ("recipe.toml", "checkpoints/round-00000007.safetensors"):
                (run / name).touch()
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TRAIN, play)
    sotto(["train", "demo", "--out", str(run)], status=143)
    err = capsys.readouterr().err
    assert (f"stopped; go on with: sotto resume {run} (from round 7)\n" in err) is begun
    assert err.endswith("interrupted\n")


def test_what_follows_from_who_takes_part_is_marked_as_the_owners(result, capsys):
    print_result(result(epsilon_realised=1.5), json=False)
    shown = "for the owner only: ε = 1.5 for the rounds that users joined; it depends exactly on who takes part"
    assert shown in capsys.readouterr().out
    print_result(result(epsilon_realised=1.5), json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["for_the_owner_only"]["epsilon_realised"] == 1.5
    assert "epsilon_realised" not in found
    print_result(result(), json=True)
    assert "for_the_owner_only" not in json.loads(capsys.readouterr().out)
