"""What is new in the files of runs that other processes, here or elsewhere, write, cut back and write again.

Of a record only what the page shows is told on; diagnostics are opened only for an internal page.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce.runs.folder import RunFolder, names_of

MOST_LINES = 500  # of one message
_PUBLIC = ("round", "epsilon", "delta", "clip_norm", "evaluation")
_MEASURES = ("top1", "top3", "top5", "perplexity", "users")
_EXACT = ("round", "users", "seconds", "norm_quantiles", "clipped_share")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Place(NamedTuple):
    """How far a file was read: so many bytes of whole lines, and their digest. A file that was cut back, or whose
    rounds were played again, has another."""

    size: int = 0
    digest: str = _digest(b"")


class News(NamedTuple):
    """`again`: what was told before no longer holds, and `lines` are all there are."""

    place: Place
    again: bool
    lines: list[dict[str, Any]]


class Message(NamedTuple):
    """An event of the stream. Who was cut off after it names its `id` to go on from there."""

    event: str
    data: dict[str, Any]
    id: str = ""

    def encode(self) -> bytes:
        identity = f"id: {self.id}\n" if self.id else ""
        data = json.dumps(self.data, ensure_ascii=False, allow_nan=False)
        return f"event: {self.event}\n{identity}data: {data}\n\n".encode()


def read_news(path: Path, place: Place) -> News:
    """Whole lines after `place`. A line that is being written waits; one that cannot be read is left out."""
    try:
        data = path.read_bytes()
    except OSError:  # not there yet, or no longer
        data = b""
    whole = data[: data.rfind(b"\n") + 1]
    again = _digest(whole[: place.size]) != place.digest
    new = whole if again else whole[place.size :]
    lines = [entry for line in new.splitlines() if (entry := _entry(line)) is not None]
    return News(Place(len(whole), _digest(whole)), again, lines)


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line, parse_constant=lambda word: None)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("round"), int) else None


def public_part(entry: dict[str, Any]) -> dict[str, Any]:
    """Of a line of the record, what the page shows."""
    told = {key: entry[key] for key in _PUBLIC if key in entry}
    if isinstance(told.get("evaluation"), dict):
        told["evaluation"] = {key: told["evaluation"][key] for key in _MEASURES if key in told["evaluation"]}
    return told


def exact_part(entry: dict[str, Any]) -> dict[str, Any]:
    """Of a line of the diagnostics, what an internal page shows."""
    return {key: entry[key] for key in _EXACT if key in entry}


def describe_run(name: str, folder: RunFolder) -> dict[str, Any]:
    """What is planned and how far the run says it came; all unknown while there is no recipe."""
    recipe, statement = _read(folder.recipe_file, tomllib.loads), _read(folder.statement_file, json.loads)
    run, privacy = recipe.get("run", {}), recipe.get("privacy", {})
    return {
        "name": name,
        "there": bool(recipe),
        "rounds": run.get("rounds"),
        "budget": privacy.get("epsilon"),
        "delta": privacy.get("delta"),
        "rounds_done": statement.get("rounds_done"),  # written when a run ends or is stopped
    }


def _read(path: Path, parse: Any) -> dict[str, Any]:
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet
        return {}
    return found if isinstance(found, dict) else {}


@dataclass
class _File:
    """One followed file of one reader."""

    run: int
    kind: str  # "record" or "diagnostics"
    path: Path
    place: Place = field(default_factory=Place)
    known: bool = False  # does the reader have what is before `place`?
    seen: tuple[int, int, int] | None = None  # when it was last read, the file was this one

    def read(self) -> News | None:
        """Nothing while the file has not changed."""
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            seen = (0, 0, 0)
        if seen == self.seen:
            return None
        news = read_news(self.path, self.place if self.known else Place())
        if not self.known:
            news = news._replace(again=True)
        changed = news.again or news.place != self.place
        self.seen, self.place, self.known = seen, news.place, True
        return news if changed else None


class Follower:
    """What one reader of the page has been told, and what is new to it. `last` is the id of the last event it got."""

    def __init__(self, paths: Sequence[Path], *, internal: bool = False, last: str = ""):
        self._runs = [RunFolder(path) for path in paths]
        self._names = names_of(paths)
        self._files = [_File(number, "record", run.record.path) for number, run in enumerate(self._runs)]
        if internal:
            self._files += [_File(number, "diagnostics", run.diagnostics.path) for number, run in enumerate(self._runs)]
        self._internal = internal
        served = [str(path.resolve()) for path in paths]
        self._served = _digest(json.dumps([served, internal]).encode())
        self._told: list[dict[str, Any]] | None = None
        self._live = False
        self._go_on(last)

    def _go_on(self, last: str) -> None:
        """From where a reader was cut off, if these runs were what it read; else from the beginning."""
        served, *places = last.split(".")
        if served != self._served or len(places) != len(self._files):
            return
        for file, place in zip(self._files, places, strict=True):
            size, _, digest = place.partition("-")
            if size.isdecimal() and digest:
                file.place, file.known = Place(int(size), digest), True

    @property
    def _id(self) -> str:
        """Files that were not told yet have no place: they are told from the beginning."""
        places = [f"{file.place.size}-{file.place.digest}" if file.known else "" for file in self._files]
        return ".".join([self._served, *places])

    def poll(self) -> list[Message]:
        """All that is new, in order."""
        messages = []
        told = [describe_run(name, run) for name, run in zip(self._names, self._runs, strict=True)]
        if told != self._told:
            self._told = told
            messages.append(Message("runs", {"runs": told, "internal": self._internal}))
        for file in self._files:
            news = file.read()
            if news is not None:
                messages += self._told_on(file, news)
        self._live = True
        return messages

    def _told_on(self, file: _File, news: News) -> list[Message]:
        """Long files go in pieces; the id comes with the last, so that who is cut off in between gets all again."""
        part = public_part if file.kind == "record" else exact_part
        lines = [part(line) for line in news.lines]
        pieces = [lines[start : start + MOST_LINES] for start in range(0, len(lines), MOST_LINES)] or [[]]
        messages = []
        for number, piece in enumerate(pieces):
            data = {"run": file.run, "again": news.again and number == 0, "live": self._live, "lines": piece}
            messages.append(Message(file.kind, data, self._id if piece is pieces[-1] else ""))
        return messages
