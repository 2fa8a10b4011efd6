"""What was spent, written ahead: a round's event is on disk before its noise exists.

The first line of a run's ledger is a header; every other line is one release. A line is never changed or removed
(`hash_chain.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections import Counter
from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sottovoce.files import make_folder, sync_folder, write_aside
from sottovoce.runs.hash_chain import Chain, damaged, readable
from sottovoce_evidence.accounting import Event, NonPrivate, event_from_json, total_of
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
HOLDERS, CHARGED = "holders", "charged"  # a folder of a store, with the leases of its runs, and a mark in it


@dataclass(frozen=True)
class Entry:
    """One release: the round, the attempt at it, its event, and its lineage."""

    round: int
    attempt: int
    event: Event
    lineage: str

    def to_json(self) -> Json:
        return {"round": self.round, "attempt": self.attempt, "event": self.event.to_json(), "lineage": self.lineage}


def lineage(parent: str, fingerprint: str, attempt: int) -> str:
    """Names a round by all that made it: the round before, the code, data and machine, and the attempt.

    Two rounds of one lineage should have the same un-noised sum to the bit: then they are one release, not two. The sum
    itself is checked as well (`secrets.Sums`).
    """
    return hashlib.sha256(f"{parent} {fingerprint} {attempt}".encode()).hexdigest()[:16]


class Ledger:
    """The ledger of one run."""

    def __init__(self, chain: Chain):
        """From a ledger that was read.

        Raises:
            DamagedRun: it is not the ledger of a run, or a line cannot be understood.
        """
        if not chain.lines or chain.lines[0].get("ledger") != RUN:
            raise damaged(f"{chain.path} does not begin like the ledger of a run")
        self.header, self.notes, self.path = chain.lines[0], chain.notes, chain.path
        self.chain = chain
        self.entries: list[Entry] = []
        self._of_round: dict[int, list[Entry]] = {}
        self._spent: Counter[Event] = Counter()
        for number, line in enumerate(chain.lines[1:], 2):
            with readable(chain.path, number):
                event = event_from_json(line["event"])
                self._note(Entry(int(line["round"]), int(line["attempt"]), event, str(line["lineage"])))

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

    def _note(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._of_round.setdefault(entry.round, []).append(entry)
        self._spent[entry.event] += 1

    @property
    def rounds(self) -> int:
        """The last round up to which every round was paid for."""
        return next(number for number in range(len(self._of_round) + 1) if number + 1 not in self._of_round)

    def of_round(self, round_number: int) -> list[Entry]:
        """The releases of a round: several, if it was done again."""
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
        """Was this release paid for before a crash?"""
        return any(entry.lineage == name for entry in self.of_round(round_number))

    def spend(self, entry: Entry) -> None:
        """Put an entry on disk before returning."""
        self.chain.append(entry.to_json())
        self._note(entry)

    def spent(self) -> list[tuple[Event, int]]:
        """Every event with the number of times it was released."""
        return list(self._spent.items())

    def spent_up_to(self, round_number: int) -> list[tuple[Event, int]]:
        if round_number >= max(self._of_round, default=0):
            return self.spent()
        return list(Counter(entry.event for entry in self.entries if entry.round <= round_number).items())

    def repeated(self) -> list[tuple[Event, int]]:
        """Of what was spent, the releases of rounds that were done again."""
        return list(Counter(entry.event for entry in self.entries if entry.attempt > 0).items())


@dataclass(frozen=True)
class StoreLedger:
    """All that was spent on the people of a store, by all runs: one line for each charge.

    The users to train on and those held out are two groups, and a user's id alone decides the group. So what is spent
    on one group costs the other nothing, and each has a total of its own.
    """

    path: Path

    def charge(self, run: str, what: str, event: Event, count: int) -> None:
        """Put a charge on disk before returning. A round without a guarantee charges nothing.

        A ledger that cannot be read takes no more.
        """
        if isinstance(event, NonPrivate):
            return
        try:
            with open(self.path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other runs charge the same people
                chain = self._read(repair=True)
                _charges(chain)
                for note in chain.notes:
                    log.warning("note: %s", note)
                chain.append({"run": run, "what": what, "event": event.to_json(), "count": count})
            sync_folder(self.path.parent)
            self._leave_trace()
        except OSError as error:
            raise SottoError(
                f"cannot write the store's ledger {self.path} ({error}); private training must be charged to it"
            ) from None

    def _leave_trace(self) -> None:
        """Where the holders of leases are, so that a ledger that is lost is missed: `_refuse_emptied` looks there.

        The people are charged. Where there is no room for the trace, the next charge leaves it.
        """
        folder = self.path.parent / HOLDERS
        with suppress(OSError):
            make_folder(folder, 0o700)
            if not (folder / CHARGED).exists():
                write_aside(folder / CHARGED, b"", private=True)

    def spent(self, run: str | None = None) -> list[tuple[Event, int]]:
        """Every event with the number of times the users to train on were charged: by all runs, or by one."""
        return _of_trained(each for each in self._charges() if run in (None, each[0]))

    def spent_on_held_out(self) -> list[tuple[Event, int]]:
        """The same for the held-out users."""
        return _of_held_out(self._charges())

    def _charges(self) -> list[tuple[str, Event, int]]:
        # A line without an end may be one that another run is writing: the next writer repairs it.
        return _charges(self._read(repair=False))

    def _read(self, *, repair: bool) -> Chain:
        chain = Chain.read(self.path, repair=repair) if self.path.exists() else Chain(self.path)
        _refuse_emptied(chain)
        return chain


def _refuse_emptied(chain: Chain) -> None:
    """The ledger of a store that was charged has lines."""
    holders = chain.path.parent / HOLDERS
    if not chain.lines and holders.is_dir() and any(holders.iterdir()):
        raise damaged(f"{chain.path} has no charge, though its people were charged before ({holders.name}/ says so)")


def _charges(chain: Chain, header: Json | None = None) -> list[tuple[str, Event, int]]:
    """The run, event and count of each line: of a store, or of a release, whose header names the run."""
    charges = []
    for number, line in enumerate(chain.lines[1:] if header else chain.lines, 2 if header else 1):
        with readable(chain.path, number):
            count = line["count"]
            if type(count) is not int or count < 0:
                raise ValueError(f"count={count!r}")
            charges.append((str((header or line)["run"]), event_from_json(line["event"]), count))
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
