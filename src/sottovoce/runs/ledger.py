"""What was spent, written ahead: a round's event is on disk before anything noised can be seen.

The first line says whose ledger it is; every other line is one release. A line is never changed or removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import DamagedRun, SottoError
from sottovoce.files import sync_folder
from sottovoce.privacy.accounting import Event, event_from_json


@dataclass(frozen=True)
class Entry:
    """One release: which round of which run, the attempt at it, its event, and how it came to be."""

    round: int
    attempt: int
    event: Event
    lineage: str

    def to_json(self) -> dict[str, Any]:
        return {"round": self.round, "attempt": self.attempt, "event": self.event.to_json(), "lineage": self.lineage}


def lineage(parent: str, fingerprint: str, attempt: int) -> str:
    """Names a round by all that made it: the round before, the code, data and machine, and the attempt.

    Two rounds of one lineage have the same un-noised sum and the same noise to the bit: one release, not two.
    """
    return hashlib.sha256(f"{parent} {fingerprint} {attempt}".encode()).hexdigest()[:16]


class Ledger:
    """The ledger of one run."""

    def __init__(self, path: Path, header: dict[str, Any], entries: list[Entry]):
        self.path, self.header, self.entries = path, header, entries
        self._of_round: dict[int, list[Entry]] = {}
        self._spent: Counter[Event] = Counter()
        for entry in entries:
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        self._of_round.setdefault(entry.round, []).append(entry)
        self._spent[entry.event] += 1

    @staticmethod
    def create(path: Path, header: dict[str, Any]) -> Ledger:
        with open(path, "xb") as file:
            _write_line(file, {"ledger": 1, **header})
        sync_folder(path.parent)
        return Ledger(path, {"ledger": 1, **header}, [])

    @staticmethod
    def open(path: Path) -> Ledger:
        """Read a ledger. A last line torn by a crash is cut off: nothing was released on its account."""
        lines = read_lines(path)
        if not lines or "ledger" not in lines[0]:
            raise DamagedRun(f"{path} does not begin like a ledger: what was spent cannot be told")
        entries = []
        for number, line in enumerate(lines[1:], 2):
            with _readable(path, number):
                event = event_from_json(line["event"])
                entries.append(Entry(int(line["round"]), int(line["attempt"]), event, str(line["lineage"])))
        return Ledger(path, lines[0], entries)

    @property
    def rounds(self) -> int:
        """The last round up to which every one was paid for."""
        return next(number for number in range(len(self._of_round) + 1) if number + 1 not in self._of_round)

    def spent_up_to(self, round_number: int) -> list[tuple[Event, int]]:
        """Every event with the number of times it was released, up to a round."""
        if round_number >= max(self._of_round, default=0):
            return self.spent()
        return list(Counter(entry.event for entry in self.entries if entry.round <= round_number).items())

    def attempt(self, round_number: int, parent: str, fingerprint: str) -> int:
        """Which attempt at a round this is: one that was paid for if it will be the same to the bit, else a new one."""
        before = self._of_round.get(round_number, [])
        for entry in before:
            if entry.lineage == lineage(parent, fingerprint, entry.attempt):
                return entry.attempt
        return 1 + max((entry.attempt for entry in before), default=-1)

    def knows(self, round_number: int, name: str) -> bool:
        """Was this very release paid for before a crash?"""
        return any(entry.lineage == name for entry in self._of_round.get(round_number, []))

    def spend(self, entry: Entry) -> None:
        """Put an entry on disk before returning."""
        append_line(self.path, entry.to_json())
        self.entries.append(entry)
        self._note(entry)

    def spent(self) -> list[tuple[Event, int]]:
        """Every event with the number of times it was released."""
        return list(self._spent.items())

    def repeated(self) -> list[tuple[Event, int]]:
        """Of these, the releases of rounds that were done again."""
        return list(Counter(entry.event for entry in self.entries if entry.attempt > 0).items())


PREPARATION = "prepare"  # stands for the name of a run where a store was charged for its vocabulary
RELEASE = "release"  # in the first line, where the ledger of a run has a number


@dataclass(frozen=True)
class StoreLedger:
    """What was ever spent on the people of a store, over all runs: one line a charge."""

    path: Path

    def charge(self, run: str, what: str, event: Event, count: int) -> None:
        """A run is charged for all its planned rounds before the first. A ledger that cannot be read takes no more."""
        try:
            with open(self.path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other runs charge the same people
                self._spent(None, repair=True)
                _write_line(file, {"run": run, "what": what, "event": event.to_json(), "count": count})
            sync_folder(self.path.parent)
        except OSError as error:
            raise SottoError(
                f"cannot write the store's ledger {self.path} ({error}); private training must be charged to it"
            ) from None

    def spent(self, run: str | None = None) -> list[tuple[Event, int]]:
        """Every event with the number of times it was released to, or planned for, a run on this store (or one run)."""
        return self._spent(run, repair=False)  # a line without an end may be one that another run is writing

    def _spent(self, run: str | None, *, repair: bool) -> list[tuple[Event, int]]:
        total: Counter[Event] = Counter()
        for number, line in enumerate(read_lines(self.path, repair=repair) if self.path.exists() else [], 1):
            with _readable(self.path, number):
                if run is None or line["run"] == run:
                    total[event_from_json(line["event"])] += int(line["count"])
        return list(total.items())


@dataclass(frozen=True)
class LedgerContents:
    """What a ledger of any kind says, read without touching it."""

    path: Path
    kind: str
    """`run`, `store` or `release`"""
    runs: tuple[str, ...]
    spent: list[tuple[Event, int]]
    lines: list[dict[str, Any]]


def read_ledger(path: Path) -> LedgerContents:
    """Read the ledger of a run, a store or a release as it lies: the file is not repaired, and may be a copy."""
    lines = read_lines(path, repair=False)
    of_run = bool(lines) and "ledger" in lines[0]
    kind = ("release" if lines[0]["ledger"] == RELEASE else "run") if of_run else "store"
    total: Counter[Event] = Counter()
    runs = [str(lines[0].get("run", ""))] if of_run else []
    for number, line in enumerate(lines[of_run:], 1 + of_run):
        with _readable(path, number):
            total[event_from_json(line["event"])] += 1 if kind == "run" else int(line["count"])
            if not of_run:
                runs.append(str(line["run"]))
    return LedgerContents(path, kind, tuple(dict.fromkeys(runs)), list(total.items()), lines)


def write_release(path: Path, run: str, spent: Iterable[tuple[Event, int]]) -> None:
    """What a released model was charged for, its words and all planned rounds, as its statement counts them."""
    append_line(path, {"ledger": RELEASE, "run": run})
    for event, count in spent:
        append_line(path, {"event": event.to_json(), "count": count})


def read_lines(path: Path, *, repair: bool = True) -> list[dict[str, Any]]:
    """The lines of a ledger; a damaged one is an error. A torn last one counts for nothing; `repair` cuts it off."""
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise DamagedRun(f"cannot read the ledger {path}: {error}") from None
    whole, _, torn = contents.rpartition(b"\n")
    if torn and repair:
        with open(path, "r+b") as file:
            file.truncate(len(contents) - len(torn))
            file.flush()
            os.fsync(file.fileno())
    lines = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        with _readable(path, number):
            lines.append(dict(json.loads(line)))
    return lines


@contextmanager
def _readable(path: Path, number: int) -> Iterator[None]:
    """A line that cannot be understood is never skipped."""
    try:
        yield
    except (KeyError, TypeError, ValueError, SottoError) as error:
        raise DamagedRun(f"line {number} of {path} is damaged ({error}): what was spent cannot be told") from None


def append_line(path: Path, line: dict[str, Any], *, private: bool = False) -> None:
    """Put a line on disk before returning, or nothing of it. `private`: for its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600 if private else 0o666)
    with os.fdopen(descriptor, "ab") as file:
        before = os.fstat(descriptor).st_size
        try:
            _write_line(file, line)
        except OSError:  # the disk is full, say; a part of a line would spoil the next one
            os.truncate(descriptor, before)
            raise


def _write_line(file: Any, line: dict[str, Any]) -> None:
    left = json.dumps(line).encode() + b"\n"
    while left:  # past the file's buffer, which would try again what failed
        left = left[os.write(file.fileno(), left) :]
    os.fsync(file.fileno())
