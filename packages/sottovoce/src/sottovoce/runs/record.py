"""Lines of JSON, one a round: `record.jsonl` (public or noised facts only) and `diagnostics.jsonl` (owner-only)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sottovoce.files import sync_folder, write_aside
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import LINES, Json, as_json, parse_json, read_plain, unreadable


def as_lines(record: list[Json]) -> bytes:
    """A record as its file has it."""
    return b"".join(map(_line, record))


class Lines:
    """A file of JSON objects that each have a `round`."""

    def __init__(self, path: Path, *, private: bool = False, then: str = "put the file back, or remove it"):
        self.path, self._private, self._then = path, private, then

    def append(self, entry: Json) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600 if self._private else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_line(entry))

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            sync_folder(self.path.parent)

    def read(self) -> list[Json]:
        """All whole lines. A last line that a crash tore is left out."""
        if not self.path.exists():
            return []
        entries = []
        try:
            lines = read_plain(self.path, LINES).split(b"\n")[:-1]
        except OSError as error:
            raise DamagedRun(unreadable(self.path, error), self._then) from None
        for number, line in enumerate(lines, 1):
            try:
                entry = parse_json(line)
                entries.append({**entry, "round": int(entry["round"])})
            except (KeyError, TypeError, ValueError):
                raise DamagedRun(f"line {number} of {self.path} is damaged", self._then) from None
        return entries

    def replace(self, entry: Json) -> None:
        """Write the line of a round anew."""
        lines = [entry if line["round"] == entry["round"] else line for line in self.read()]
        write_aside(self.path, as_lines(lines), private=self._private)

    def keep_up_to(self, round_number: int) -> None:
        """Remove the rounds after a checkpoint: they are done, and written, again."""
        if self.path.exists():
            kept = [entry for entry in self.read() if entry["round"] <= round_number]
            write_aside(self.path, as_lines(kept), private=self._private)


def _line(entry: Json) -> bytes:
    return json.dumps(as_json(entry), ensure_ascii=False, allow_nan=False).encode() + b"\n"
