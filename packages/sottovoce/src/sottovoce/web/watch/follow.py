"""Follow the files of runs that other processes write, truncate and write again.

Only the keys that the page shows are sent. Diagnostics are opened for an internal page only.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

from sottovoce.data.store import store_facts
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.folder import RunFolder, names_of
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import LINES, Json, parse_json, read_plain
from sottovoce_evidence.recipe import SYNTHETIC

MAX_LINES = 500  # in one message
_NEW = 120  # seconds between a recipe and its training, at most
_SHOWN = {
    "record": ("round", "epsilon", "delta", "clip_norm", "evaluation"),
    "diagnostics": ("round", "users", "seconds", "norm_quantiles", "clipped_share"),
    "evaluation": ("top1", "top3", "top5", "top1_words", "perplexity", "bits_per_byte", "users"),  # a part of a record
}

Row = dict[str, object]  # one line of a record or of diagnostics, reduced to the keys that the page shows
Kind = Literal["record", "diagnostics"]


class RunInfo(TypedDict):
    """What is planned, and how far the run came; unknown while there is no recipe. Times are in seconds."""

    name: str
    there: bool
    practice: bool  # on synthetic people, by `sotto train --practice`
    rounds: int | None
    budget: float | None
    delta: float | None
    rounds_done: int | None  # written when a run ends or is stopped
    running: bool  # a process of this machine trains it
    began: float | None  # when a process last began to train it
    first: int | None  # rounds that were done by then, where that is known
    baselines: list[Json]  # evaluations, each with its label


class RunsData(TypedDict):
    runs: list[RunInfo]
    internal: bool


class LinesData(TypedDict):
    """Lines of one file. `again`: they replace all lines before. `live`: they were written while the page was open.

    `time` is when the file was last written.
    """

    run: int
    again: bool
    live: bool
    time: float | None
    lines: list[Row]


class Message(NamedTuple):
    """An event of the stream. A reader that reconnects sends the `id` of the last event it received."""

    event: str
    data: RunsData | LinesData
    id: str = ""

    def encode(self) -> bytes:
        identity = f"id: {self.id}\n" if self.id else ""
        data = json.dumps(self.data, ensure_ascii=False, allow_nan=False)
        return f"event: {self.event}\n{identity}data: {data}\n\n".encode()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Position(NamedTuple):
    """How far a file was read: the length and the digest of its whole lines. A rewritten file has another digest."""

    size: int = 0
    digest: str = _digest(b"")


class NewLines(NamedTuple):
    """`again`: the file was rewritten, and `lines` are all its lines."""

    position: Position
    again: bool
    lines: list[Row]


def read_new_lines(path: Path, position: Position) -> NewLines:
    """The whole lines after a position. An unfinished line is read later; a damaged line is skipped."""
    try:
        data = read_plain(path, LINES)
    except OSError:  # not written yet, or deleted
        data = b""
    whole = data[: data.rfind(b"\n") + 1]
    again = _digest(whole[: position.size]) != position.digest
    new = whole if again else whole[position.size :]
    lines = [entry for line in new.splitlines() if (entry := _parse(line)) is not None]
    return NewLines(Position(len(whole), _digest(whole)), again, lines)


def _parse(line: bytes) -> Row | None:
    try:
        entry = json.loads(line, parse_constant=lambda word: None)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("round"), int) else None


def _shown(kind: str, line: Row) -> Row:
    """The part of a line that the page shows."""
    row = {key: line[key] for key in _SHOWN[kind] if key in line}
    if isinstance(evaluation := row.get("evaluation"), dict):
        row["evaluation"] = _shown("evaluation", evaluation)
    return row


def describe_run(name: str, folder: RunFolder) -> RunInfo:
    recipe, statement = _read(folder.recipe_file, tomllib.loads), _read(folder.statement_file, parse_json)
    run, privacy = recipe.get("run", {}), recipe.get("privacy", {})
    return {
        "name": name,
        "there": bool(recipe),
        "practice": _is_practice(folder, recipe),
        "rounds": run.get("rounds"),
        "budget": privacy.get("epsilon"),
        "delta": privacy.get("delta"),
        "rounds_done": statement.get("rounds_done"),
        "running": is_locked(folder.lock_file),
        "began": (began := _changed(folder.lock_file)),
        "first": _rounds_before(folder, began, statement.get("rounds_done")),
        "baselines": _baselines(folder),
    }


def _is_practice(folder: RunFolder, recipe: dict) -> bool:
    try:
        store = str(recipe["data"]["store"])
        where = folder.own_store if store.startswith(SYNTHETIC) else Path(store)
        return bool(store_facts(where)["practice"])
    except (SottoError, OSError, KeyError, TypeError):  # no recipe yet, or its store is elsewhere
        return False


def is_locked(path: Path, locks: Path = Path("/proc/locks")) -> bool:
    """Does a process of this machine hold the lock on a file? Reading the kernel's list disturbs nobody.

    False where it cannot be known: on other systems, and for a folder that another machine writes.
    """
    try:
        found = path.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        return any(place in line.split() for line in locks.read_text().splitlines())
    except OSError:
        return False


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _rounds_before(folder: RunFolder, began: float | None, done: int | None) -> int | None:
    """Rounds that were done before the present training began: by the statement of then, or none if it is new."""
    made, stated = _changed(folder.recipe_file), _changed(folder.statement_file)
    if began is None or made is None:
        return None
    if stated is not None and stated < began:
        return done
    return 0 if began - made < _NEW else None


def _baselines(folder: RunFolder) -> list[Json]:
    try:
        found = Baselines.of(folder)
    except SottoError:  # half written, or damaged: the run itself says so
        return []
    scores = found.scores if found else {}
    return [{"label": name.removeprefix("the start, "), **score.to_json()} for name, score in scores.items()]


def _read(path: Path, parse: Callable[[str], object]) -> dict:
    try:
        values = parse(read_plain(path).decode())
    except (OSError, ValueError, RecursionError):  # not written yet
        return {}
    return values if isinstance(values, dict) else {}


@dataclass
class _File:
    """One file that one reader follows."""

    run: int
    kind: Kind
    path: Path
    position: Position = field(default_factory=Position)
    known: bool = False  # does the reader have the lines before `position`?
    status: tuple[int, int, int] | None = None  # inode, size and time of the file when it was last read

    @property
    def written(self) -> float | None:
        return self.status[2] / 1e9 if self.status and self.status[2] else None

    def read(self) -> NewLines | None:
        """None while the file has not changed."""
        status = _status(self.path)
        if status == self.status:
            return None
        before, known = self.position, self.known
        new = read_new_lines(self.path, before if known else Position())
        self.status, self.position, self.known = status, new.position, True
        if not known:
            return new._replace(again=True)
        return new if new.again or new.position != before else None


def _status(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


class Follower:
    """What one reader of the page has received, and what is new to it. `last` is the id of its last event."""

    def __init__(self, paths: Sequence[Path], *, internal: bool = False, last: str = ""):
        self._runs = [RunFolder(path) for path in paths]
        self._names = names_of(paths)
        runs = list(enumerate(self._runs))
        self._files = [_File(number, "record", run.record.path) for number, run in runs]
        if internal:
            self._files += [_File(number, "diagnostics", run.diagnostics.path) for number, run in runs]
        self._internal = internal
        self._server = _digest(json.dumps([[str(path.resolve()) for path in paths], internal]).encode())
        self._sent_runs: list[RunInfo] | None = None
        self._live = False
        self._continue_from(last)

    def _continue_from(self, last: str) -> None:
        """Set the positions from the id of an event, if it is an event of these runs."""
        server, *positions = last.split(".")
        if server != self._server or len(positions) != len(self._files):
            return
        for file, position in zip(self._files, positions, strict=True):
            size, _, digest = position.partition("-")
            if size.isdecimal() and digest:
                file.position, file.known = Position(int(size), digest), True

    @property
    def _id(self) -> str:
        """The positions of all files; a file that was not sent yet has none, and is sent from its beginning."""
        positions = [f"{file.position.size}-{file.position.digest}" if file.known else "" for file in self._files]
        return ".".join([self._server, *positions])

    def poll(self) -> list[Message]:
        """All new events, in order."""
        messages = []
        runs = [describe_run(name, run) for name, run in zip(self._names, self._runs, strict=True)]
        if runs != self._sent_runs:
            self._sent_runs = runs
            messages.append(Message("runs", {"runs": runs, "internal": self._internal}))
        for file in self._files:
            new = file.read()
            if new is not None:
                messages += self._lines(file, new)
        self._live = True
        return messages

    def _lines(self, file: _File, new: NewLines) -> list[Message]:
        """Long files go in pieces. Only the last has an id: a reader that is cut off before gets all pieces again."""
        rows = [_shown(file.kind, line) for line in new.lines]
        pieces = [rows[start : start + MAX_LINES] for start in range(0, len(rows), MAX_LINES)] or [[]]
        messages = []
        for number, piece in enumerate(pieces):
            again = new.again and number == 0
            data: LinesData = {
                "run": file.run,
                "again": again,
                "live": self._live,
                "time": file.written,
                "lines": piece,
            }
            messages.append(Message(file.kind, data, self._id if piece is pieces[-1] else ""))
        return messages
