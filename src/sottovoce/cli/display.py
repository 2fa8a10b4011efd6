"""How results reach a terminal: tables, one JSON object, a live bar or plain lines, and a gentle Ctrl-C."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from sottovoce.files import Json

if TYPE_CHECKING:
    from rich.table import Table

    from sottovoce.commands.train import Progress


def print_json(value: Mapping[str, Any] | Sequence[Json]) -> None:
    print(json.dumps(value, allow_nan=False, ensure_ascii=False))


def print_table(title: str, rows: Mapping[str, str]) -> None:
    print_columns(title, {"": rows})


def print_columns(title: str, columns: Mapping[str, Mapping[str, str]]) -> None:
    """A table of several columns with the same rows. The first column has all rows; others may lack some."""
    from rich.table import Table

    table = Table(title=title, show_header=any(columns), title_justify="left", title_style="bold", header_style="cyan")
    table.add_column(style="cyan", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for name in next(iter(columns.values())):
        table.add_row(name, *(rows.get(name, "") for rows in columns.values()))
    _print(table)


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Rows of the same columns."""
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="cyan", box=None, padding=(0, 2, 0, 0)
    )
    for name in rows[0]:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    _print(table)


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(table)
    print(capture.get(), end="", flush=True)  # not through the console, which has ways of its own with a closed pipe


def shown_epsilon(epsilon: float | str, digits: int = 3) -> str:
    from sottovoce.accounting import rounded_up

    return rounded_up(float("inf") if isinstance(epsilon, str) else epsilon, digits)


def least_epsilon(epsilon: float) -> str:
    """An ε that an attack has shown: a lower bound, rounded down."""
    from sottovoce.accounting import rounded_down

    return rounded_down(epsilon)


def _redirect_closed(terminals: Sequence[int]) -> None:
    """What is written to a closed terminal goes nowhere."""
    for number in terminals:
        try:
            os.write(number, b"\n")
        except OSError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), number)


@contextmanager
def gentle_stop(
    message: str = "finishing this round, then saving; once more stops at once",
) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C (or SIGTERM, or SIGHUP) asks to stop after this round; a second one stops at once.

    A terminal that is closed sends SIGHUP, and writing to it is an error from then on: that output is dropped.
    Under `nohup` SIGHUP is ignored, and stays so.
    """
    asked = False
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP:
            _redirect_closed(terminals)
        elif asked:
            raise KeyboardInterrupt
        if not asked:
            print(f"\n{message}", file=sys.stderr)
        asked = True

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_of_rounds(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """A live bar with rate, time left and ε spent of the budget; plain lines where there is no terminal."""
    if quiet:
        yield lambda progress: None
    elif sys.stderr.isatty():
        with _bar(name) as show:
            yield show
    else:
        yield _plain_lines(name)


@contextmanager
def progress_of_steps(name: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar over steps that are all alike; where there is no terminal, a line every ten seconds."""
    if quiet:
        yield lambda done, total: None
        return
    if not sys.stderr.isatty():
        last = -math.inf

        def line(done: int, total: int) -> None:
            nonlocal last
            if done == total or time.monotonic() - last > 10:
                print(f"{name}: {done} of {total}", file=sys.stderr, flush=True)
                last = time.monotonic()

        yield line
        return
    from rich import progress as bars
    from rich.console import Console

    with bars.Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[Progress], None]]:
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=None),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[facts]}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None, facts="reading")
        accuracy, rate = "", _rate()

        def show(progress: Progress) -> None:
            nonlocal accuracy
            if progress.evaluation:
                accuracy = f"  top-1 {progress.evaluation.top1:.1%}"
            bar.update(
                task, completed=progress.round, total=progress.rounds, facts=_facts(progress, rate(progress)) + accuracy
            )

        yield show


def _plain_lines(name: str) -> Callable[[Progress], None]:
    """A line at the first round, at evaluations, at the end, and otherwise every ten seconds."""
    last, rate = -math.inf, _rate()

    def show(progress: Progress) -> None:
        nonlocal last
        now, speed = time.monotonic(), rate(progress)
        if not progress.seconds:
            return
        if progress.evaluation or progress.round == progress.rounds or now - last > 10:
            accuracy = f"  top-1 {progress.evaluation.top1:.1%}" if progress.evaluation else ""
            line = f"{name}: round {progress.round} of {progress.rounds}  {_facts(progress, speed)}{accuracy}"
            print(line, file=sys.stderr, flush=True)
            last = now

    return show


def _rate() -> Callable[[Progress], str]:
    """Users a second of a round; the first round of a process compiles, so its rate would mislead."""
    rounds = -1

    def users_a_second(progress: Progress) -> str:
        nonlocal rounds
        rounds += 1
        return "compiling" if rounds == 0 else "" if rounds == 1 else f"{progress.users / progress.seconds:.3g} users/s"

    return users_a_second


def _facts(progress: Progress, rate: str) -> str:
    budget = ""
    if progress.budget is not None and math.isfinite(progress.epsilon):
        budget = f" of {shown_epsilon(progress.budget, 6)}"
    return f"ε {shown_epsilon(progress.epsilon)}{budget}  {rate}".rstrip()
