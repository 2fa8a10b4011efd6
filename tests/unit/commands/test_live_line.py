"""The live line of a training in Python: on a terminal or in a notebook, and nowhere else."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest

from sottovoce.commands.live_line import duration, facts_of_rounds, live_line
from sottovoce.commands.train import Progress
from sottovoce.evaluation.figures import Evaluation

MEASURED = Evaluation(412, 98_765, 0.123456789, 0.2, 0.3, 0.1, 345.6789, 300.0, 0.05)


def progress(round: int, **more) -> Progress:
    given = {"epsilon": 1.234, "budget": 8.0, "users": 0, "seconds": 0.0, "evaluation": None} | more
    return Progress(round=round, rounds=2, **given)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_changes_in_place_and_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    with live_line("mine") as show:
        show(progress(0, seconds_left=125.0))
        show(progress(1, users=30, seconds=2.0, seconds_left=62.0, loss=5.4321))
        show(progress(2, users=30, seconds=2.0, seconds_left=0.0, evaluation=MEASURED))
    first, *lines = screen.getvalue().split("\r")
    assert (first, len(lines)) == ("", 3)
    assert lines[0].startswith("mine: round 0 of 2  2:05 left  ε 1.24 of 8")
    assert "1:02 left  ε 1.24 of 8  loss 5.43" in lines[1]
    assert lines[2].startswith("mine: round 2 of 2  ε 1.24 of 8  top-1 12.3%  15 users/s")
    assert lines[2].endswith("\n")
    assert len(lines[2].rstrip("\n")) >= len(lines[1].rstrip()), "what was longer before is covered"


def test_an_accuracy_of_an_earlier_round_is_called_so() -> None:
    facts = facts_of_rounds()
    assert "  top-1 12.3%" in facts(progress(1, evaluation=MEASURED))
    assert "  top-1 12.3% at round 1" in facts(progress(2))


def test_a_run_that_goes_on_says_from_where_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with live_line("mine") as show:
        show(progress(1, resumed="mine goes on from the checkpoint of round 1"))
    assert screen.getvalue().startswith("mine goes on from the checkpoint of round 1\n\rmine: round 1 of 2")


def test_where_examples_are_sampled_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    with live_line("mine") as show:
        for number in range(3):
            show(progress(number, users=30, seconds=2.0, sampled="examples"))
    assert "15 examples/s" in screen.getvalue()
    assert "users/s" not in screen.getvalue()


def test_a_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "30")
    with live_line("a name that is long by itself") as show:
        show(progress(1, users=30, seconds=2.0))
    assert len(screen.getvalue().strip("\r\n")) == 29


def test_an_error_in_the_run_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)

    def interrupted() -> None:
        with live_line("mine") as show:
            show(progress(1, users=30, seconds=2.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().endswith("\n")


@pytest.mark.parametrize("notebook", [True, False])
def test_a_notebook_shows_it_as_output_and_a_pipe_nothing(monkeypatch, capsys, notebook: bool) -> None:
    python = ModuleType("IPython")
    python.get_ipython = lambda: SimpleNamespace() if notebook else None
    monkeypatch.setitem(sys.modules, "IPython", python)
    with live_line("mine") as show:
        show(progress(1, users=30, seconds=2.0))
    shown = capsys.readouterr()
    assert ("round 1 of 2" in shown.out) is notebook
    assert shown.err == ""


def test_public_figures_are_those_of_the_record() -> None:
    """Neither how many joined, nor how long it took, nor their loss; and figures that do not give the targets away."""
    private = progress(2, users=31, seconds=2.5, loss=5.4, evaluation=MEASURED).public
    assert private["epsilon"] == 1.234
    assert (private["top1"], private["perplexity"]) == (0.1235, 345.7)
    assert not {"users", "seconds", "loss", "targets"} & set(private)
    assert progress(1, users=31, seconds=2.5, loss=5.4).public == {"epsilon": 1.234}


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 61.4, 3_600, 36_061)] == ["0:00", "1:01", "1:00:00", "10:01:01"]
    assert duration(1270, hours_too=True) == "0:21:10"
