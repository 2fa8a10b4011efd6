"""Which sum each release of a run was made of, by a keyed hash: so that the same one is recognised after a crash.

It lies with the secrets, for the owner alone, and goes when they go. A plain hash would let whoever guesses a sum
confirm it, and would undo the noise.
"""

from __future__ import annotations

import os
from pathlib import Path

from sottovoce.files import sync_folder

_NAME, _TAG, _ROUND = 16, 64, 16  # characters


class Sums:
    """The tags of sums by the names of their releases. One that is damaged is as good as none."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._tags: dict[str, str] = {}
        self._of_round: dict[str, set[str]] = {}
        for path in sorted(folder.glob("round-*.sums")):
            for line in path.read_text(encoding="latin-1").split("\n"):
                parts = line.split(" ")
                if [len(part) for part in parts] == [_NAME, _TAG, _ROUND]:
                    self._note(*parts)

    def _note(self, release: str, tag: str, number: str) -> None:
        self._tags[release] = tag
        self._of_round.setdefault(number, set()).add(release)

    def tag_of(self, release: str) -> str | None:
        return self._tags.get(release)

    def of_round(self, round_number: int) -> set[str]:
        """The releases of a round whose sums are known: each was paid for, unless a crash came right between."""
        return self._of_round.get(_padded(round_number), set())

    def keep(self, first_round: int, round_number: int, release: str, tag: str) -> None:
        """Put a tag on disk before returning, beside the link that opens rounds from `first_round` on."""
        path = self._folder / f"round-{first_round:08d}.sums"
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"\n{release} {tag} {_padded(round_number)}".encode())  # a part of one does not spoil the next
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._folder)
        self._note(release, tag, _padded(round_number))


def _padded(round_number: int) -> str:
    return f"{round_number:0{_ROUND}d}"
