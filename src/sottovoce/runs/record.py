"""Lines of JSON, one a round: `record.jsonl` (public or noised facts only) and `diagnostics.jsonl` (owner-only)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sottovoce.errors import DamagedRun
from sottovoce.files import Json


def coarse_count(people: int) -> int:
    """A number of people who are not protected, as public files tell it: two digits of it, rounded down."""
    unit = 10 ** max(len(str(people)) - 2, 0)
    return people // unit * unit


def of_held_out(evaluation: Json) -> Json:
    """What public files say of people who were held out: how well a model does on them, and about how many they are.

    Not how much they wrote, nor shares of so many digits that this could be worked out from them.
    """
    told = {name: _coarse(value) if isinstance(value, float) else value for name, value in evaluation.items()}
    told.pop("targets", None)
    return told | {"users": coarse_count(evaluation["users"])}


def _coarse(value: float) -> float:
    return round(value, 4) if value <= 1 else float(f"{value:.4g}")


class Lines:
    """A file of JSON objects that each carry a `round`."""

    def __init__(self, path: Path, *, private: bool = False):
        self.path = path
        self._mode = 0o600 if private else 0o644

    def append(self, entry: Json) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self._mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        if self.path.exists():
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self) -> list[Json]:
        """All whole lines; a last one torn by a crash is left out."""
        if not self.path.exists():
            return []
        entries = []
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                entry = json.loads(line)
                entries.append({**entry, "round": int(entry["round"])})
            except (KeyError, TypeError, ValueError):
                raise DamagedRun(f"line {number} of {self.path} is damaged; put the file back, or remove it") from None
        return entries

    def keep_up_to(self, round_number: int) -> None:
        """Forget the rounds after a checkpoint: they will be played, and written, again."""
        if not self.path.exists():
            return
        kept = [entry for entry in self.read() if entry["round"] <= round_number]
        partial = self.path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self._mode)
        with os.fdopen(descriptor, "wb") as file:
            for entry in kept:
                file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path)
