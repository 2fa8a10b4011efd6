"""How results reach a terminal."""

from __future__ import annotations

import io
import os
import re
import signal
import sys

import pytest
from rich.cells import cell_len

from scores import score
from sottovoce.cli.display import (
    gentle_stop,
    print_json,
    progress_of_rounds,
    progress_of_steps,
    shown_epsilon,
)
from sottovoce.commands.train import Progress
from sottovoce.evaluation.figures import Evaluation
from sottovoce.runs.baselines import Baselines


def test_a_cost_is_rounded_up_and_what_was_shown_down():
    assert float(shown_epsilon(1.2341)) >= 1.2341
    assert shown_epsilon("infinity") == shown_epsilon(float("inf"))


def test_no_number_that_is_none_gets_into_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"epsilon": float("nan")})


def test_the_first_signal_asks_and_the_second_stops(capsys):
    before = signal.getsignal(signal.SIGTERM)
    with gentle_stop("finishing") as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert stop.status == 143
        with pytest.raises(KeyboardInterrupt) as twice:
            os.kill(os.getpid(), signal.SIGTERM)
    assert twice.value.status == 143
    assert str(twice.value) == ""  # other processes are told that it was interrupted
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err.count("finishing") == 1


def test_a_reader_who_goes_asks_to_stop(monkeypatch):
    """As with `sotto train 2>&1 | head`, or with a `tee` that Ctrl-C ends first: no round is lost."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        with gentle_stop("finishing") as stop, progress_of_rounds("run") as show:
            show(Progress(0, 9, 0.0, 2.0, 0, 0.0, None))
            assert stop()
            assert stop.status == 141
            show(Progress(1, 9, 0.5, 2.0, 10, 1.0, None))
        assert sys.stderr is closed
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        with gentle_stop("finishing") as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.status == 130


def test_rounds_are_shown_as_lines_where_there_is_no_terminal(capsys):
    with progress_of_rounds("run") as show:
        show(Progress(0, 9, 0.0, 2.0, 0, 0.0, None))
        show(Progress(1, 9, 0.5, 2.0, 10, 1.0, None))
        show(Progress(9, 9, 1.5, 2.0, 10, 0.5, None))
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "run: round 0 of 9  ε 0 of 2  compiling"
    assert "round 1 of 9  ε 0.5 of 2" in err
    assert "round 9 of 9" in err
    assert "20 users/s" in err
    assert "left" not in err
    with progress_of_rounds("run", quiet=True) as show:
        show(Progress(9, 9, 1.5, 2.0, 10, 0.5, None))
    with progress_of_steps("audit") as step:
        step(3, 3)
    assert capsys.readouterr().err == "audit: 3 of 3\n"


BASELINES = Baselines("base english", score(200, 0.117, 0.2, 0.3, 180.0), "text", ".", score(200, 0.05, 0.1, 0.2, 1.0))
SCORES = Evaluation(200, 900, 0.123, 0.2, 0.3, 0.1, 210.0, 200.0, 0.05)


@pytest.mark.parametrize(
    ("width", "there", "gone"),
    [
        (160, ("━━━━━━━━", "loss 5.31", "top-1 12.3% (start 11.7%, “.” 5.0%)", "10 users/s"), ()),
        (80, ("loss 5.31", "top-1 12.3%"), ("start", "users/s")),
        (44, ("ε 2.5 of 8",), ("━", "loss")),
        (24, (), ("ε",)),
    ],
)
def test_on_a_narrow_terminal_round_and_time_left_stay(monkeypatch, width, there, gone):
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    with progress_of_rounds("run") as show:
        for _ in range(3):  # the rate is known from the third on
            show(Progress(10, 40, 2.5, 8.0, 50, 5.0, SCORES, 5.312, 3725.0, BASELINES))
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).strip().splitlines()[-1]
    assert cell_len(line) <= width
    assert "10/40 1:02:05 left" in line
    assert [words for words in there if words not in line] == []
    assert [words for words in gone if words in line] == []


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True
