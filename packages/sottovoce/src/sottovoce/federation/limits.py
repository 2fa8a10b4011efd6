"""What the owner of a device allows a server to ask, and the record of what was asked so far."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.federation.messages import Code, Facts, Refused, Task, Which, digest
from sottovoce.files import sync_folder, write_aside
from sottovoce.runs.hash_chain import Chain
from sottovoce_evidence.accounting import Event, NonPrivate, Spent
from sottovoce_evidence.accounting.matrices import Participation as Allowed
from sottovoce_evidence.errors import DamagedRun, SottoError, did_you_mean
from sottovoce_evidence.files import LINES, parse_json, read_plain


@dataclass(frozen=True)
class Limits:
    """A task beyond any of these is refused, and nothing is computed for it."""

    clip_norm: float = 20.0  # S, of the whole update
    user_rate: float = 1.0  # q
    steps: int = 10_000  # of local training, for a user with as much text as the store allows
    parameters: int = 20_000_000  # that are trained
    frozen_parameters: int = 500_000_000  # that are not, and are kept on the device's disk
    rounds: int = 0  # that one user joins in all runs together; 0 is any number
    min_separation: int = 1  # rounds of a run between two that the same user joins; 1 is "each round at most once"
    silos: int = 1  # that a person of this device may be a user of: a run that declares fewer (`max_silos`) is refused
    private_only: bool = True  # refuse a run without a privacy guarantee
    masked_only: bool = False  # refuse a run whose server sees what this device adds
    survivors: int = 0  # devices in a masked sum: refuse a run that declares fewer
    colluding: int = 0  # devices that may collude with the server: refuse a masked run that declares fewer
    server_epsilon: float = 0.0  # against the server, at δ = 1e-6, of all runs together; 0 is any, also without noise

    @staticmethod
    def load(path: Path) -> Limits:
        """From a TOML file. A limit that is not in it has its default."""
        if not path.exists():
            return Limits()
        try:
            values = tomllib.loads(read_plain(path).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise SottoError(f"cannot read the limits {path}: {error}") from None
        known: dict[str, type] = {field.name: type(field.default) for field in fields(Limits)}
        for name, value in values.items():
            if name not in known:
                raise SottoError(f"{path}: unknown limit {name!r}{did_you_mean(name, known)}")
            if not _fits(value, known[name]):
                raise SottoError(f"{path}: {name}={value!r} must be a {known[name].__name__} that is not negative")
        if values.get("min_separation", 1) < 1:
            raise SottoError(f"{path}: min_separation must be 1 or more: a user joins a round at most once")
        if values.get("silos", 1) < 1:
            raise SottoError(f"{path}: silos must be 1 or more: every person of this device is in one silo at least")
        return Limits(**values)

    def save(self, path: Path) -> None:
        import tomli_w

        write_aside(path, tomli_w.dumps(asdict(self)).encode())


def _fits(value: Any, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return type(value) is kind
    return isinstance(value, (int, float) if kind is float else kind) and value >= 0


class Participation:
    """Which rounds the users of a device joined, by their places: with text or without.

    It is written before an answer leaves, and never removed.
    Guarantee: a round of a run has one task, the first that was answered. It is answered again only to the byte, so no
    user joins a round twice, whatever the server calls it.
    Where a run bounds how often and how close together a user joins, no user joins beyond that, whatever the server
    asks. A run keeps the bounds, the noise against the server, and the frozen part that its first task had.
    """

    def __init__(self, path: Path):
        self.path = path
        self._answered: dict[Which, str] = {}  # the digest of the task that was answered
        self._joined: dict[Which, list[int]] = {}  # rows
        self._rounds: dict[int, list[Which]] = {}  # that a user joined, by row
        self._allowed: dict[str, Allowed] = {}  # by run
        self._seen: dict[str, Event] = {}  # what the server sees of a user in a round that they join, by run
        self._frozen: dict[str, str] = {}  # the hash of what is not trained, by run
        self._masked: set[Which] = set()  # whose masked vector left
        self._chain = Chain.read(path, repair=True, private=True) if path.exists() else Chain(path, private=True)
        for number, line in enumerate(self._chain.lines, 1):
            try:
                which = run, _ = str(line["run"]), int(line["round"])
                if "masked" in line:
                    self._masked.add(which)
                    continue
                allowed = Allowed(**line["allowed"]) if "allowed" in line else None
                self._note(which, str(line["task"]), [int(row) for row in line["rows"]], allowed)
                self._seen[run], self._frozen[run] = Event.from_json(line["seen"]), str(line["frozen"])
            except (KeyError, TypeError, ValueError, SottoError):
                raise DamagedRun(f"line {number} of {path} is damaged; restore the file from a backup") from None

    def join(
        self,
        task: Task,
        message: bytes,
        drawn: np.ndarray,
        limits: Limits,
        allowed: Allowed | None = None,
        seen: Event = NonPrivate(),  # noqa: B008 -- frozen
    ) -> np.ndarray:
        """The drawn users who may join; on disk before this returns.

        `allowed`: by the run, besides the limits. `seen`: what the server sees of each of them.
        """
        name = digest(message)
        known = self._allowed.get(task.run, allowed)
        if known != allowed or (allowed is not None and task.round > allowed.rounds):
            raise Refused(Code.LIMITS)
        if self._frozen.get(task.run, task.frozen) != task.frozen:
            raise Refused(Code.LIMITS)  # another frozen part in the middle of a run
        if self._seen.get(task.run, seen) != seen:
            raise Refused(Code.LIMITS)  # another noise, which the earlier rounds were not added up with
        if task.which in self._answered:
            if self._answered[task.which] != name:
                raise Refused(Code.TWICE)
            return np.array(self._joined[task.which], np.int64)
        rows = [row for row in drawn.tolist() if self._may_join(task, row, limits, allowed)]
        new = not self.path.exists()
        line: Facts = {"run": task.run, "round": task.round, "task": name, "rows": rows}
        line |= {"seen": seen.to_json(), "frozen": task.frozen}
        self._chain.append(line if allowed is None else {**line, "allowed": allowed.to_json()})
        if new:
            sync_folder(self.path.parent)
        self._note(task.which, name, rows, allowed)
        self._frozen[task.run], self._seen[task.run] = task.frozen, seen
        return np.array(rows, np.int64)

    def seen_before(self, run: str) -> Spent:
        """What the server saw of any one user in all runs but this: of each run the rounds that were answered, and no
        more than a user may join.

        It follows from what left this device alone: not from who was drawn, who has text, or who is in which place now.
        """

        answered = Counter(other for other, _ in self._answered)

        def most(other: str) -> int:
            bound, rounds = self._allowed.get(other), answered[other]
            return rounds if bound is None else min(rounds, bound.participations)

        return tuple((self._seen[other], most(other)) for other in sorted(answered) if other != run)

    def refuse_masked(self, which: Which) -> None:
        """Refuse a round whose masked vector left already."""
        if which in self._masked:
            run, number = which
            raise Refused(Code.TWICE, f"the masked vector of round {number} of {run} left already, and leaves once")

    def note_masked(self, which: Which, list_digest: str) -> None:
        """Write that the masked vector of a round leaves now. A second one, under other masks, could tell it."""
        self.refuse_masked(which)
        run, number = which
        self._chain.append({"run": run, "round": number, "masked": list_digest})
        self._masked.add(which)

    def _may_join(self, task: Task, row: int, limits: Limits, allowed: Allowed | None) -> bool:
        joined = self._rounds.get(row, [])
        if limits.rounds and len(joined) >= limits.rounds:
            return False
        rounds = [number for run, number in joined if run == task.run]
        if allowed is not None and len(rounds) >= allowed.participations:
            return False
        apart = max(limits.min_separation, 1 if allowed is None else allowed.min_separation)
        return all(abs(task.round - number) >= apart for number in rounds)

    def _note(self, which: Which, task: str, rows: list[int], allowed: Allowed | None) -> None:
        if allowed is not None:
            self._allowed[which[0]] = allowed
        self._answered[which], self._joined[which] = task, rows
        for row in rows:
            self._rounds.setdefault(row, []).append(which)


def read_json(path: Path) -> Facts:
    try:
        return dict(parse_json(read_plain(path, LINES)))
    except (OSError, ValueError, TypeError) as error:
        raise SottoError(f"cannot read {path}: {error}") from None
