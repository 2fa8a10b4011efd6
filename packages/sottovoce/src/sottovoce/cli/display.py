"""How results reach a terminal: tables, one JSON object, a live bar or plain lines, and a gentle Ctrl-C."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from sottovoce.commands.live_line import duration, facts_of_rounds, fitting
from sottovoce_evidence.errors import printable
from sottovoce_evidence.files import Json

if TYPE_CHECKING:
    from rich.table import Table

    from sottovoce.commands.train import Progress


class Printable(logging.Formatter):
    """Messages of a log as lines for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def at_terminal() -> bool:
    """Is there a person who can be asked?"""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str, otherwise: str) -> bool:
    """Ask a person who sits at a terminal. Without one nothing is asked, and the answer is yes.

    After Ctrl-C it says what holds `otherwise`, as callers do after a no.
    """
    if not at_terminal():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        print(f"\n{otherwise}", file=sys.stderr)
        raise


def print_json(value: Mapping[str, Any] | Sequence[Json]) -> None:
    print(json.dumps(value, allow_nan=False, ensure_ascii=False))


def print_table(title: str, rows: Mapping[str, str]) -> None:
    print_columns(title, {"": rows})


def print_columns(title: str, columns: Mapping[str, Mapping[str, str]]) -> None:
    """A table of several columns with the same rows. The first column has all rows; others may lack some."""
    with _printed_table(title, show_header=any(columns)) as table:
        table.add_column(style="cyan", no_wrap=True)
        for name in columns:
            table.add_column(printable(name), justify="right")
        for name in next(iter(columns.values())):
            table.add_row(*map(_cell, (name, *(rows.get(name, "") for rows in columns.values()))))


def print_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Rows of the same columns."""
    with _printed_table(title, box=None, padding=(0, 2, 0, 0)) as table:
        for name in rows[0]:
            table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
        for row in rows:
            table.add_row(*map(_cell, row.values()))


def _cell(text: str) -> str:
    """A cell, which may have several lines."""
    return "\n".join(map(printable, text.split("\n")))


@contextmanager
def _printed_table(title: str, **style: Any) -> Iterator[Table]:
    """A table to fill, which is printed at the end of the block."""
    from rich.console import Console
    from rich.table import Table

    table = Table(header_style="cyan", **style)
    yield table
    console = Console(highlight=False, markup=False)  # a path may hold [brackets]
    with console.capture() as capture:
        console.print(printable(title), style="bold")  # a title of the table would be as narrow as the table
        console.print(table)
    print(capture.get(), end="", flush=True)  # by itself the console would handle a closed pipe, and `main` does


def shown_epsilon(epsilon: float | str, digits: int = 3) -> str:
    """An ε that is claimed: an upper bound, rounded up."""
    from sottovoce_evidence.accounting import rounded_up

    return rounded_up(float("inf") if isinstance(epsilon, str) else epsilon, digits)


def at_once(ask: Callable[[], bool]) -> bool:
    """Ask, where Ctrl-C stops at once and not after a round."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return ask()
    finally:
        signal.signal(signal.SIGINT, before)


class Asked:
    """Was a run asked to stop, and by which signal?"""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status of a command that was stopped, as shells have it: 130 after Ctrl-C, 143 after SIGTERM.

        Where another process of the run was asked, it is that of Ctrl-C.
        """
        return 128 + (self.signal or signal.SIGINT)


class AskedTwice(KeyboardInterrupt):
    """A second signal: stop at once."""

    def __init__(self, number: int):
        super().__init__()
        self.status = 128 + number


@contextmanager
def gentle_stop(
    message: str = "finishing this round, then saving; once more stops at once, to be resumed from the last checkpoint",
) -> Iterator[Asked]:
    """The first Ctrl-C (or SIGTERM, or SIGHUP) asks to stop after this round; a second one stops at once.

    A terminal that is closed sends SIGHUP, and writing to it is an error from then on: that output is dropped.
    Under `nohup` SIGHUP is ignored, and stays so. Standard error whose reader is gone (`sotto train … 2>&1 | head`) is
    dropped too, and asks to stop: nobody sees what a run says, and none of its rounds is lost.
    """
    asked = Asked()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def ask(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _redirect_closed(terminals)
        elif asked():
            raise AskedTwice(number)
        if not asked():
            print(f"\n{message}", file=sys.stderr)
            asked.signal = number

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        with redirect_stderr(cast("TextIO", _UntilClosed(sys.stderr, asked))):
            yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _UntilClosed:
    """Standard error: what is written after its reader is gone is dropped, and a run is asked to stop."""

    def __init__(self, stream: TextIO, asked: Asked) -> None:
        self._stream, self._asked = stream, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BrokenPipeError:
            _drop(self._stream.fileno())
            self._asked.signal = self._asked.signal or signal.SIGPIPE


def _redirect_closed(terminals: Sequence[int]) -> None:
    """Drop what is written to a closed terminal."""
    for number in terminals:
        try:
            os.write(number, b"\n")
        except OSError:
            _drop(number)


def _drop(number: int) -> None:
    """Drop what is written to a file from now on."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


@contextmanager
def progress_of_rounds(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Show rounds: time left, ε spent of the budget, loss, accuracy next to the baselines, and rate."""
    facts = facts_of_rounds()

    def round_done(progress: Progress) -> None:
        if progress.resumed and not quiet:
            print(progress.resumed, file=sys.stderr, flush=True)
        shown = Shown(facts(progress), progress.seconds_left, progress.evaluation is not None)
        show(progress.round, progress.rounds, shown)

    with _progress(f"{name}: round", quiet) as show:
        yield round_done


def progress_on_terminal(name: str, *, quiet: bool = False) -> AbstractContextManager[Callable[..., None]]:
    """Show steps on a terminal, and nothing elsewhere."""
    return progress_of_steps(name, quiet=quiet or not sys.stderr.isatty())


@contextmanager
def progress_of_steps(name: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show steps that are all alike."""
    with _progress(f"{name}:", quiet) as show:
        yield show


class Shown(NamedTuple):
    """What is shown of a step next to its number. Without a terminal, a step that is `due` has a line of its own."""

    facts: Sequence[str] = ()  # on a narrow terminal the last ones are left out
    seconds_left: float | None = None
    due: bool = False


NOTHING_MORE = Shown()
SHORTEST_BAR, LONGEST_BAR = 8, 40  # cells


@contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Callable[..., None]]:
    """A live bar; without a terminal a line at the start, the first step and the end, when due, every ten seconds."""
    if quiet:
        yield lambda done, total, shown=NOTHING_MORE: None
        return
    if not sys.stderr.isatty():
        last = -math.inf

        def print_line(done: int, total: int, shown: Shown = NOTHING_MORE) -> None:
            nonlocal last
            if shown.due or done == total or time.monotonic() - last > 10:
                left = f"  {duration(shown.seconds_left)} left" if shown.seconds_left and done < total else ""
                print(f"{name} {done} of {total}  {''.join(shown.facts)}{left}".rstrip(), file=sys.stderr, flush=True)
                last = (
                    time.monotonic() if done else last
                )  # what has begun has a line of its own, and so has its first step

        yield print_line
        return
    with _live_bar(name) as update:
        yield update


@contextmanager
def _live_bar(name: str) -> Iterator[Callable[..., None]]:
    """A bar that counts down the time left between two steps: as the steps say, or else by the time they took.

    Step and time left are always shown. On a narrow terminal the last facts are left out, and a long name is cut. The
    bar has the cells that are free.
    """
    from rich import progress as bars
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    begun = before = time.monotonic()
    ends, last = math.nan, 0
    console = Console(stderr=True)

    class Line(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Table:
            step = f"{int(task.completed)}/{'?' if task.total is None else int(task.total)}"
            left = "" if math.isnan(ends) else f"{duration(max(ends - time.monotonic(), 0))} left"
            rest = Text.assemble((step, "progress.download"), " ", (left, "progress.remaining"), " ")
            room = max(console.width - rest.cell_len - 3, 0)
            shown = Text(name)
            shown.truncate(room, overflow="ellipsis")
            room -= shown.cell_len
            rest.append(fitting(task.fields["facts"], room))
            cells = console.width - shown.cell_len - rest.cell_len - 3
            bar = [ProgressBar(task.total, task.completed, min(cells, LONGEST_BAR))] if cells >= SHORTEST_BAR else []
            table = Table.grid(padding=(0, 1))
            table.add_row(shown, *bar, rest)
            return table

    bar = bars.Progress(Line(), console=console)
    task = bar.add_task(name, total=None, facts=())

    def update(done: int, total: int | None, shown: Shown = NOTHING_MORE) -> None:
        nonlocal begun, before, ends, last
        now, left = time.monotonic(), shown.seconds_left
        if done < last:  # the steps begin again
            begun = before
        before, last = now, done
        if left is None and total and 0 < done < total:
            left = (now - begun) / done * (total - done)
        ends = math.nan if left is None or done == total else now + left
        bar.update(task, completed=done, total=total, facts=shown.facts)
        bar.start()  # at the first step: there may be a question before it

    try:
        yield update
    finally:
        try:
            bar.stop()
        except IndexError:  # Ctrl-C while it started: rich takes back a hook that it had not set yet
            console.show_cursor(True)
