"""What was spent, written ahead: a round's event is on disk before anything noised can be seen.

The first line says whose ledger it is; every other line is one release. A line is never changed or removed, and
carries a checksum that says so (`hash_chain.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.accounting import Event, event_from_json
from sottovoce.errors import DamagedRun, SottoError
from sottovoce.files import sync_folder, write_aside
from sottovoce.runs.hash_chain import Chain, chained, readable
from sottovoce.runs.lease import LedgerState

log = logging.getLogger("sottovoce.ledger")

_UNCHECKED, _CHECKED = 1, 2  # how the ledgers of runs are written: by version 0.1, and with checksums


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

    Two rounds of one lineage should have the same un-noised sum to the bit: then they are one release, not two. That
    the sum is the same is seen by itself (`sums.py`).
    """
    return hashlib.sha256(f"{parent} {fingerprint} {attempt}".encode()).hexdigest()[:16]


class Ledger:
    """The ledger of one run."""

    def __init__(self, chain: Chain, entries: list[Entry]):
        self.header, self.notes, self.entries = chain.lines[0], chain.notes, entries
        self._chain = chain
        self._of_round: dict[int, list[Entry]] = {}
        self._spent: Counter[Event] = Counter()
        for entry in entries:
            self._note(entry)

    @property
    def path(self) -> Path:
        return self._chain.path

    @property
    def state(self) -> LedgerState:
        """How far the ledger goes, and how far it ever went."""
        return LedgerState(self._chain.last_check, self._chain.checks)

    @property
    def is_old(self) -> bool:
        """Was it begun by version 0.1, which bound less to it?"""
        return self.header["ledger"] == _UNCHECKED

    def _note(self, entry: Entry) -> None:
        self._of_round.setdefault(entry.round, []).append(entry)
        self._spent[entry.event] += 1

    @staticmethod
    def create(path: Path, header: dict[str, Any]) -> Ledger:
        path.touch(exist_ok=False)
        chain = Chain(path)
        chain.append({"ledger": _CHECKED, **header})
        sync_folder(path.parent)
        return Ledger(chain, [])

    @staticmethod
    def open(path: Path) -> Ledger:
        """Read a ledger and mend its end. A last line torn by a crash is cut off: nothing was released on its account.

        `notes` says so.
        """
        chain = Chain.read(path, repair=True)
        if not chain.lines or chain.lines[0].get("ledger") not in (_UNCHECKED, _CHECKED):
            raise DamagedRun(
                f"{path} does not begin like a ledger of a run: what was spent cannot be told; put it back"
            )
        if chain.unchecked and chain.lines[0]["ledger"] == _CHECKED:
            raise DamagedRun(f"{path} has lost its checksums: what was spent cannot be told; put it back")
        entries = []
        for number, line in enumerate(chain.lines[1:], 2):
            with readable(path, number):
                event = event_from_json(line["event"])
                entries.append(Entry(int(line["round"]), int(line["attempt"]), event, str(line["lineage"])))
        return Ledger(chain, entries)

    @property
    def rounds(self) -> int:
        """The last round up to which every one was paid for."""
        return next(number for number in range(len(self._of_round) + 1) if number + 1 not in self._of_round)

    def spent_up_to(self, round_number: int) -> list[tuple[Event, int]]:
        """Every event with the number of times it was released, up to a round."""
        if round_number >= max(self._of_round, default=0):
            return self.spent()
        return list(Counter(entry.event for entry in self.entries if entry.round <= round_number).items())

    def of_round(self, round_number: int) -> list[Entry]:
        """What was released of a round: more than once, where it was done again."""
        return list(self._of_round.get(round_number, []))

    def attempt(self, round_number: int, parent: str, fingerprint: str, given_up: Container[int] = ()) -> int:
        """Which attempt at a round this is: one that was paid for if it may be the same to the bit, else a new one."""
        before = self.of_round(round_number)
        for entry in before:
            if entry.lineage == lineage(parent, fingerprint, entry.attempt) and entry.attempt not in given_up:
                return entry.attempt
        attempt = 1 + max((entry.attempt for entry in before), default=-1)
        while attempt in given_up:
            attempt += 1
        return attempt

    def knows(self, round_number: int, name: str) -> bool:
        """Was this very release paid for before a crash?"""
        return any(entry.lineage == name for entry in self._of_round.get(round_number, []))

    def spend(self, entry: Entry) -> None:
        """Put an entry on disk before returning."""
        self._chain.append(entry.to_json())
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
                chain = self._read(repair=True)
                _spent_of(chain, None)
                for note in chain.notes:
                    log.warning("note: %s", note)
                chain.append({"run": run, "what": what, "event": event.to_json(), "count": count})
            sync_folder(self.path.parent)
        except OSError as error:
            raise SottoError(
                f"cannot write the store's ledger {self.path} ({error}); private training must be charged to it"
            ) from None

    def spent(self, run: str | None = None) -> list[tuple[Event, int]]:
        """Every event with the number of times it was released to, or planned for, a run on this store (or one run)."""
        # A line without an end may be one that another run is writing: whoever writes next mends it.
        return _spent_of(self._read(repair=False), run)

    def _read(self, *, repair: bool) -> Chain:
        chain = Chain.read(self.path, repair=repair) if self.path.exists() else Chain(self.path)
        _refuse_emptied(chain)
        return chain


def _refuse_emptied(chain: Chain) -> None:
    """The ledger of a store that knows of runs has lines, since they were charged before they began."""
    holders = chain.path.parent / "holders"
    if not chain.lines and holders.is_dir() and any(holders.iterdir()):
        raise DamagedRun(
            f"{chain.path} has no charge, though runs were charged to it ({holders.name}/ knows them): it was lost or "
            f"emptied, and what was spent on these people cannot be told; put it back"
        )


def _count(line: dict[str, Any]) -> int:
    count = line["count"]
    if type(count) is not int or count < 0:
        raise ValueError(f"count={count!r}")
    return count


def _spent_of(chain: Chain, run: str | None) -> list[tuple[Event, int]]:
    total: Counter[Event] = Counter()
    for number, line in enumerate(chain.lines, 1):
        with readable(chain.path, number):
            charged_to, event, count = line["run"], event_from_json(line["event"]), _count(line)
            if run is None or charged_to == run:
                total[event] += count
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
    notes: list[str]


def read_ledger(path: Path) -> LedgerContents:
    """Read the ledger of a run, a store or a release as it lies: the file is not repaired, and may be a copy."""
    chain = Chain.read(path)
    _refuse_emptied(chain)
    if not chain.lines:
        raise SottoError(f"{path} holds no charge; give the ledger.jsonl of a run, a store or a release, or its folder")
    first = chain.lines[0]
    of_run = "ledger" in first
    kind = ("release" if first["ledger"] == RELEASE else "run") if of_run else "store"
    if kind == "release" and first.get("charges", len(chain.lines) - 1) != len(chain.lines) - 1:
        raise DamagedRun(
            f"{path} was written with {first['charges']} charges and has {len(chain.lines) - 1}: what was spent cannot "
            f"be told; put it back"
        )
    if kind == "run" and first["ledger"] == _CHECKED and chain.unchecked:
        raise DamagedRun(f"{path} has lost its checksums: what was spent cannot be told; put it back")
    total: Counter[Event] = Counter()
    runs = [str(first.get("run", ""))] if of_run else []
    for number, line in enumerate(chain.lines[of_run:], 1 + of_run):
        with readable(path, number):
            total[event_from_json(line["event"])] += 1 if kind == "run" else _count(line)
            if not of_run:
                runs.append(str(line["run"]))
    return LedgerContents(path, kind, tuple(dict.fromkeys(runs)), list(total.items()), chain.lines, chain.notes)


def write_release(path: Path, run: str, charged: Iterable[tuple[Event, int]]) -> None:
    """What a released model was charged for, as its statement lists it."""
    lines = [{"event": event.to_json(), "count": count} for event, count in charged]
    write_aside(path, chained([{"ledger": RELEASE, "run": run, "charges": len(lines)}, *lines]))


def first_line(path: Path) -> dict[str, Any]:
    """Whose ledger it is. It may be in use."""
    return next(iter(Chain.read(path).lines), {})
