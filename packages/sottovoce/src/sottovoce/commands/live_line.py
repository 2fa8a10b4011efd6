"""The rounds of a run in one line: time left, ε spent of the budget, loss, accuracy next to the baselines, and rate."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from sottovoce.evaluation.figures import Evaluation
    from sottovoce.runs.baselines import Baselines


@dataclass(frozen=True)
class Progress:
    """Where a run is after a round, and once before the first (with `users` and `seconds` 0).

    `users`, `seconds` and `loss` are private: show them to the owner only.
    """

    round: int
    rounds: int
    epsilon: float
    budget: float | None
    users: int
    seconds: float
    evaluation: Evaluation | None
    loss: float | None = None  # of the round's users, while they trained
    seconds_left: float | None = None  # from all rounds so far
    baselines: Baselines | None = None
    sampled: str = "users"  # what `users` counts: examples where they are sampled
    resumed: str = ""  # before the first round of a run that goes on: from where, and which rounds come again

    @property
    def public(self) -> dict[str, float]:
        """The figures that the run's public record has of this round: ε and, where it was measured, accuracy."""
        measured = self.evaluation.public.to_json() if self.evaluation else {}
        return {"epsilon": self.epsilon} | {name: value for name, value in measured.items() if isinstance(value, float)}


def duration(seconds: float, *, hours_too: bool = False) -> str:
    """Hours, minutes and seconds: 1:02:03, or 2:03, with `hours_too` 0:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours or hours_too else f"{minutes}:{seconds:02}"


def fitting(facts: Sequence[str], width: int) -> str:
    """As many of the facts as fit, from the first on: those that matter less come last."""
    from rich.cells import cell_len

    line = ""
    for fact in facts:
        if cell_len(line + fact) > width:
            break
        line += fact
    return line


def facts_of_rounds() -> Callable[[Progress], list[str]]:
    """The first round of a process compiles, so its rate would mislead. The last accuracy stays, with its round."""
    from sottovoce_evidence.accounting import rounded_up

    rounds, accuracy, measured = -1, ("", ""), 0

    def facts(progress: Progress) -> list[str]:
        nonlocal rounds, accuracy, measured
        rounds += 1
        rate = "  compiling" if rounds == 0 else ""
        if rounds > 1:
            rate = f"  {progress.users / progress.seconds:.3g} {progress.sampled}/s"
        baselines = progress.baselines.short if progress.baselines else ""
        if progress.evaluation:
            accuracy = (f"  top-1 {progress.evaluation.top1:.1%}", baselines and f" ({baselines})")
            measured = progress.round
        loss = "" if progress.loss is None else f"  loss {progress.loss:.3g}"
        budget = ""
        if progress.budget is not None and math.isfinite(progress.epsilon):
            budget = f" of {rounded_up(progress.budget, 6)}"
        top1, beside = accuracy
        top1 += f" at round {measured}" if top1 and measured != progress.round else ""
        return [f"ε {rounded_up(progress.epsilon)}{budget}", loss, top1, beside, rate]

    return facts


class LiveLine:
    """The rounds of a run in a line that changes. A round that begins is shown by its number alone."""

    def __init__(self, name: str, output: TextIO | None):
        self._name, self._output = name, output
        self._facts, self._shown = facts_of_rounds(), 0
        self._last: tuple[Progress, list[str]] | None = None

    def __call__(self, progress: Progress) -> None:
        if progress.resumed and self._output:
            self._output.write(f"{progress.resumed}\n")
        self._last = progress, self._facts(progress)
        self._show(progress.round)

    def playing(self, round_number: int) -> None:
        """A round begins: what is shown of the rounds before stays."""
        self._show(round_number)

    def end(self) -> None:
        if self._shown and self._output:
            self._output.write("\n")

    def _show(self, round_number: int) -> None:
        if self._last is None or self._output is None:
            return
        progress, facts = self._last
        left = progress.seconds_left
        time = f"  {duration(left)} left" if left is not None and progress.round < progress.rounds else ""
        line = f"{self._name}: round {round_number} of {progress.rounds}{time}"
        width = shutil.get_terminal_size((120, 24)).columns - 1
        line = fitting([line[:width], "  ", *facts], width)
        self._output.write("\r" + line.ljust(self._shown))
        self._output.flush()
        self._shown = len(line)


@contextmanager
def live_line(name: str) -> Iterator[LiveLine]:
    """Show the rounds of a run on a terminal or in a notebook; elsewhere nothing."""
    line = LiveLine(name, _where())
    try:
        yield line
    finally:
        line.end()


def _where() -> TextIO | None:
    """A notebook shows standard output as text, and standard error as an alarm."""
    notebook = sys.modules.get("IPython")
    if notebook is not None and notebook.get_ipython() is not None:
        return sys.stdout
    return sys.stderr if sys.stderr.isatty() else None
