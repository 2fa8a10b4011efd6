"""What was spent: a round's line is on disk before anything of the round is shown.

The first line of a run's ledger is a header. Each further line is a round, or says that a process began to train. No
line is ever changed or removed (`hash_chain.py`).

The ledger of a store has what its people were charged by all runs, and a line for each checkpoint that a run committed.
A checkpoint is committed if the one before it is the last that was: that append decides between two processes, and
between two copies of a run's folder.
"""

from __future__ import annotations

import fcntl
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sottovoce.files import FULL, sync_file, sync_folder, write_aside
from sottovoce.runs.hash_chain import Chain, damaged, readable
from sottovoce_evidence.accounting import Event, NonPrivate, total_of
from sottovoce_evidence.accounting.events import HELD_OUT
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import Json
from sottovoce_evidence.ledger import RELEASE

log = logging.getLogger("sottovoce.ledger")

RUN = 1  # the format of a run's ledger
PREPARATION = "prepare"  # in place of a run's name, where a store was charged for its vocabulary
COUNT = "count"  # the same, for a noisy number of its users
EVALUATION = "evaluate"  # the same, for a private evaluation on its held-out users
NO_RUNS = (PREPARATION, COUNT, EVALUATION)


class Commit(NamedTuple):
    """A checkpoint that a run committed: its round, and the SHA-256 of its file."""

    round: int
    checkpoint: str


NONE = Commit(-1, "")  # before the first
NEW_RUN = "start another run from its model (model.initial), which is charged as one"  # where one cannot go on


class Ledger:
    """The ledger of one run. Where nothing is promised, it has the run's commits too."""

    def __init__(self, chain: Chain):
        """From a ledger that was read.

        Raises:
            DamagedRun: it is not the ledger of a run, or a line cannot be understood.
        """
        if not chain.lines or chain.lines[0].get("ledger") != RUN:
            raise damaged(f"{chain.path} does not begin like the ledger of a run")
        self.header, self.notes, self.path = chain.lines[0], chain.notes, chain.path
        self.chain = chain
        self.events: list[Event] = []  # of rounds 1, 2, ...
        self.starts = 0  # of processes that trained
        self.asked: set[int] = set()  # masked rounds of which a device was asked
        for number, line in enumerate(chain.lines[1:], 2):
            with readable(chain.path, number):
                self._note(line)

    @staticmethod
    def create(path: Path, header: Json) -> Ledger:
        path.touch(exist_ok=False)
        chain = Chain(path)
        chain.append({"ledger": RUN, **header})
        sync_folder(path.parent)
        return Ledger(chain)

    @staticmethod
    def open(path: Path) -> Ledger:
        """Read a ledger and repair its end. A last line torn by a crash is cut off: nothing was released for it.

        `notes` says so.
        """
        return Ledger(Chain.read(path, repair=True))

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.header["run"]

    @property
    def rounds(self) -> int:
        """The rounds that have a line."""
        return len(self.events)

    def spend(self, events: Sequence[Event], first: int) -> None:
        """Put the lines of rounds on disk, from the round `first` on, where the ledger does not have them.

        It has them where a process died before it committed. Nothing of these rounds was shown, so they are done again.
        """
        self._catch_up()
        rounds = enumerate(events, first)
        self._append(*({"round": number, "event": event.to_json()} for number, event in rounds if number > self.rounds))

    def start(self, done: int) -> None:
        """Note that a process begins to train after round `done`."""
        self._append({"start": done})

    def ask(self, round_number: int) -> bool:
        """Note that devices are asked for a masked round. False: they were before."""
        self._catch_up()
        if first := round_number not in self.asked:
            self._append({"asked": round_number})
        return first

    def spent(self) -> list[tuple[Event, int]]:
        """Every event with the number of rounds that it was charged for."""
        return list(Counter(self.events).items())

    @property
    def commits(self) -> list[Commit]:
        """Of a run without a guarantee, in their order."""
        return _commits(self.chain, self.run)

    def commit(self, run: str, commit: Commit, parent: Commit, first: Callable[[], None]) -> None:
        """Commit a checkpoint of a run without a guarantee."""
        self._catch_up()
        _check_parent(self.chain, run, parent)
        first()
        self._append(_line_of(run, commit, parent))

    def _append(self, *lines: Json) -> None:
        self._catch_up()
        if lines := tuple(lines):
            self.chain.append(*lines)
        for line in lines:
            self._note(line)

    def _catch_up(self) -> None:
        known = len(self.chain.lines)
        self.chain.catch_up()
        for line in self.chain.lines[known:]:
            self._note(line)

    def _note(self, line: Json) -> None:
        if "start" in line:
            self.starts += 1
        elif "asked" in line:
            self.asked.add(int(line["asked"]))
        elif "commit" not in line:
            if line["round"] != self.rounds + 1:
                raise ValueError(f"round {line['round']} follows round {self.rounds}")
            self.events.append(Event.from_json(line["event"]))


class StoreLedger:
    """All that was spent on the people of a store, by all runs: one line for each charge, and one for each commit.

    The users to train on and those held out are two groups, and a user's id alone decides the group. So what is spent
    on one group costs the other nothing, and each has a total of its own.
    """

    def __init__(self, path: Path):
        self.path = path
        self._chain = Chain(path)

    def charge(self, run: str, what: str, event: Event, count: int) -> None:
        """Put a charge on disk before returning. A round without a guarantee charges nothing.

        A ledger that cannot be read takes no more.
        """
        if isinstance(event, NonPrivate):
            return
        with self._alone() as chain:
            _charges(chain)
            chain.append({"run": run, "what": what, "event": event.to_json(), "count": count})

    def commit(self, run: str, commit: Commit, parent: Commit, first: Callable[[], None]) -> None:
        """Commit a checkpoint of a run, after what is to be done `first`.

        Raises:
            FellBehind: another process, or another copy of the run, committed since `parent`.
        """
        with self._alone() as chain:
            _check_parent(chain, run, parent)
            first()
            chain.append(_line_of(run, commit, parent))

    def commits(self, run: str) -> list[Commit]:
        """What a run committed, in its order: on disk, also where a process was killed before it flushed its line."""
        chain = self._read()
        if chain.lines:
            sync_file(self.path)
        return _commits(chain, run)

    def spent(self, run: str | None = None) -> list[tuple[Event, int]]:
        """Every event with the number of times the users to train on were charged: by all runs, or by one."""
        return _of_trained(each for each in _charges(self._read()) if run in (None, each[0]))

    def spent_on_held_out(self) -> list[tuple[Event, int]]:
        """The same for the held-out users."""
        return _of_held_out(_charges(self._read()))

    @contextmanager
    def _alone(self) -> Iterator[Chain]:
        """The ledger, while no other run writes to it."""
        try:
            with open(self.path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self._chain.lines and file.tell():
                    self._chain = Chain.read(self.path, repair=True)
                self._chain.catch_up()
                while self._chain.notes:
                    log.warning("note: %s", self._chain.notes.pop())
                _refuse_emptied(self._chain)
                yield self._chain
                sync_folder(self.path.parent)
                self._leave_trace()
        except OSError as error:
            if error.errno in FULL:  # it may be another disk, whose file the error names
                raise
            raise SottoError(
                f"cannot write the store's ledger {self.path} ({error}); private training must be charged to it"
            ) from None

    def _leave_trace(self) -> None:
        """A mark beside the ledger, so that a ledger that is lost is missed.

        The people are charged. Where there is no room for the mark, the next charge leaves it.
        """
        with suppress(OSError):
            if not _mark_of(self.path).exists():
                write_aside(_mark_of(self.path), b"")

    def _read(self) -> Chain:
        # A line without an end may be one that another run is writing: the next writer repairs it.
        chain = Chain.read(self.path) if self.path.exists() else Chain(self.path)
        _refuse_emptied(chain)
        return chain


class FellBehind(SottoError):
    """Another process, or another copy of a run, committed a checkpoint since."""


def _line_of(run: str, commit: Commit, parent: Commit) -> Json:
    return {"run": run, "commit": commit.round, "checkpoint": commit.checkpoint, "parent": parent.checkpoint}


def _check_parent(chain: Chain, run: str, parent: Commit) -> None:
    last = next(_newest_first(chain, run), NONE)
    if last != parent:
        raise FellBehind(
            f"another process or another copy of this run went on, to round {last.round}: this one ends, and nothing "
            f"of its rounds after round {max(parent.round, 0)} was shown; go on with that one, or {NEW_RUN}"
        )


def _commits(chain: Chain, run: str) -> list[Commit]:
    return list(_newest_first(chain, run))[::-1]


def _newest_first(chain: Chain, run: str) -> Iterator[Commit]:
    for line in reversed(chain.lines):
        if "commit" in line and line.get("run") == run:
            yield Commit(int(line["commit"]), str(line["checkpoint"]))


def _mark_of(ledger: Path) -> Path:
    return ledger.with_suffix(".charged")


def _refuse_emptied(chain: Chain) -> None:
    """The ledger of a store that was charged has lines."""
    if not chain.lines and (mark := _mark_of(chain.path)).exists():
        raise damaged(f"{chain.path} has no charge, though its people were charged before ({mark.name} says so)")


def _charges(chain: Chain, header: Json | None = None) -> list[tuple[str, Event, int]]:
    """The run, event and count of each charge: of a store, or of a release, whose header names the run."""
    charges = []
    for number, line in enumerate(chain.lines[1:] if header else chain.lines, 2 if header else 1):
        if "commit" in line:
            continue
        with readable(chain.path, number):
            count = line["count"]
            if type(count) is not int or count < 0:
                raise ValueError(f"count={count!r}")
            charges.append((str((header or line)["run"]), Event.from_json(line["event"]), count))
    return charges


def _of_trained(charges: Iterable[tuple[str, Event, int]]) -> list[tuple[Event, int]]:
    return list(total_of((event, count) for _, event, count in charges if event.people != HELD_OUT).items())


def _of_held_out(charges: Iterable[tuple[str, Event, int]]) -> list[tuple[Event, int]]:
    return list(total_of((event, count) for _, event, count in charges if event.people == HELD_OUT).items())


@dataclass(frozen=True)
class LedgerContents:
    """What a ledger of any kind says, read without a change to the file."""

    path: Path
    kind: str  # `run`, `store` or `release`
    runs: tuple[str, ...]
    spent: list[tuple[Event, int]]  # on users to train on
    held_out: list[tuple[Event, int]]  # on held-out users, who are others
    lines: list[Json]
    notes: list[str]


def read_ledger(path: Path) -> LedgerContents:
    """Read the ledger of a run, a store or a release. The file is not repaired, and may be a copy."""
    chain = Chain.read(path)
    _refuse_emptied(chain)
    if not chain.lines:
        raise SottoError(f"{path} holds no charge; give the ledger.jsonl of a run, a store or a release, or its folder")
    first, count = chain.lines[0], len(chain.lines) - 1
    with readable(path, 1):
        run, written = str(first["run"]), first["charges"] if first.get("ledger") == RELEASE else count
    if "ledger" not in first:
        kind, charges = "store", _charges(chain)
    elif first["ledger"] == RELEASE:
        kind, charges = RELEASE, _charges(chain, first)
        if written != count:
            raise damaged(f"{path} was written with {written} charges and has {count}")
    else:
        kind, charges = "run", [(run, event, count) for event, count in Ledger(chain).spent()]
    runs = tuple(dict.fromkeys(run for run, _, _ in charges)) or (run,)
    return LedgerContents(path, kind, runs, _of_trained(charges), _of_held_out(charges), chain.lines, chain.notes)


def first_line(path: Path) -> Json:
    """The header of a run's ledger, which may be in use."""
    return next(iter(Chain.read(path).lines), {})
